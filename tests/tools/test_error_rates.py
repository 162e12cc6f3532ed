"""The rates describe the rule that compare applies, and the corpus has the noise of the records it is drawn from."""

import json

import numpy as np
import pytest
from msgspec.structs import replace

from spec_decode_bench.harness.analysis.stats import trimmed_mean
from spec_decode_bench.regression.comparison import compare
from tests import factory
from tests.sides import side, write_side
from tools import error_rates
from tools.error_rates import MODELS, ROUNDS, main, of_machine, rates, recorded, suite

TIMES = np.geomspace(1.0, 100.0, 20)
SPREAD = 0.003


def process(seed: int, slowed: int | None = None):
    rng = np.random.default_rng(seed)
    effects = np.exp(SPREAD * rng.standard_normal(len(TIMES)))
    if slowed is not None:
        effects[slowed] *= 1.05
    axes = [{"batch_size": i} for i in range(len(TIMES))]
    return factory.run(
        factory.gpu_environment(),
        [
            factory.cell("decode_native", "flat_view", one, gpu=us, rng=rng, rounds=ROUNDS)
            for one, us in zip(axes, TIMES * effects, strict=True)
        ],
    )


def arrays(runs):
    return recorded(runs).samples[None]


@pytest.mark.parametrize("slowed", [None, 7])
def test_the_rule_of_the_rates_is_the_rule_of_compare(slowed):
    base, head = side(process, 4), side(lambda seed: process(seed, slowed), 4, first=20)
    comparison = compare(base, head)
    found = suite(arrays(base), arrays(head))
    assert found.exit_code[0] == comparison.exit_code == (0 if slowed is None else 1)
    assert found.slower[0].tolist() == [cell.verdict == "slower" for cell in comparison.gating_cells]
    assert found.faster[0].tolist() == [cell.verdict == "faster" for cell in comparison.gating_cells]


def test_synthetic_processes_spread_as_the_recorded_ones():
    source = recorded(side(process, 8))
    base, head = of_machine("test", source).draw(np.random.default_rng(0), 400, 4)
    drawn = trimmed_mean(np.concatenate([base, head], axis=1)).std((0, 1))
    observed = trimmed_mean(source.samples)
    assert np.median(drawn / observed.std(0, ddof=1)) == pytest.approx(1, abs=0.1)
    assert np.allclose(trimmed_mean(base).mean((0, 1)), observed.mean(0), atol=0.001)


def test_rates_of_quiet_noise():
    found = rates(MODELS[0], "suite", 4, 100)
    assert found["any_slower"] <= 0.02
    assert found["exit_0"] >= 0.98
    assert found["found_1"] < 0.1
    assert found["found_5"] > 0.95
    assert found["found_5"] <= found["found_10"]
    assert rates(MODELS[0], "mann_whitney", 4, 100)["any_slower"] > 0.5


def test_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(error_rates, "MODELS", MODELS[:1])
    monkeypatch.setattr(error_rates, "PROCESSES", (4,))
    monkeypatch.setattr(error_rates, "RESAMPLES", 20)
    write_side(side(process, 4), tmp_path / "first")
    write_side(side(process, 4, first=10), tmp_path / "second")
    file = tmp_path / "rates.json"
    sides = [str(tmp_path / "first"), f"other={tmp_path / 'second'}"]
    assert main([*sides, "--comparisons", "20", "--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert list(document["machines"]) == ["first", "other"]
    kinds = [(row["kind"], row["corpus"]) for row in document["rows"] if row["rule"] == "suite"]
    assert kinds == [("recorded", "first"), ("recorded", "other"), ("model", "plain"), ("two machines", "first, other")]
    assert {row["rule"] for row in document["rows"]} == {"suite", "gate", *error_rates.OTHERS}
    assert main([f"third={tmp_path / 'second'}", "--comparisons", "20", "--json", str(file)]) == 0
    kept = json.loads(file.read_text())
    assert sorted(kept["machines"]) == ["first", "other", "third"]
    assert [row for row in document["rows"] if row["corpus"] == "first"] == [
        row for row in kept["rows"] if row["corpus"] == "first"
    ]
    (tmp_path / "empty").mkdir()
    write_side([replace(run, cells=[]) for run in side(process, 4)], tmp_path / "untimed")
    assert main([str(tmp_path / "empty")]) == 2
    assert "no record here" in capsys.readouterr().err
    assert main([*sides, str(tmp_path / "untimed")]) == 2
    assert "have no gpu_us of one cell in common" in capsys.readouterr().err
    assert main([*sides, "--json", str(file / "under a file.json")]) == 2
    assert "cannot write to" in capsys.readouterr().err
