"""The main job on configs/smoke.yaml from the command line to the plots, on whatever device there is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from spec_decode_bench.harness.analysis.stats import METRICS, interval
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.sentences import ending
from tests.cli.test_cli import call
from tests.tier import FULL

ROOT = Path(__file__).parents[2]
#: A CPU compiles the C++ of Inductor for half of a minute. To verify decode_flatten, Triton's interpreter takes as long
#: as all other cells together.
CELLS = () if FULL else ("--only", "!*/compiled*", "--only", "!decode_flatten/triton*")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    out = tmp_path_factory.mktemp("smoke") / "run"
    command = [sys.executable, "bench.py", "configs/smoke.yaml", "--seed", "7", "--out", str(out)]
    command += ["--set", "measure.interpreter_budget_s=0.2", *CELLS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout, read_run(out / "run.jsonl")


def test_every_cell_is_there_and_verified(smoke):
    _, _, run = smoke
    assert sorted(cell.key for cell in run.cells) == sorted(
        call(ROOT / "configs/smoke.yaml", "--plan", *CELLS)[1].split()
    )
    assert {cell.status for cell in run.cells} <= {"passed", "skipped", "unavailable"}
    assert all(ending(cell) for cell in run.cells if cell.status != "passed")
    assert not run.truncated


def test_samples_stand_where_they_belong(smoke):
    """GPU times on a GPU; on a CPU wall times of PyTorch variants, none of interpreted or CUDA ones."""
    _, _, run = smoke
    assert run.header.seed == 7
    gpu = run.header.environment.device == "cuda"
    assert (run.header.calibration is not None) == gpu
    for cell in run.cells:
        timed = {metric for metric in METRICS if interval(cell, metric) is not None}
        kind = cell.variant.split("_")[0]
        if cell.status != "passed":
            assert timed == set()
        elif gpu:
            assert timed == {"gpu_us", "host_us", "eager_us"}
            assert cell.metrics.launches >= 1
        else:
            assert timed == (set() if kind == "triton" else {"cpu_us"})
    if not gpu:
        assert {c.status for c in run.cells if c.variant.startswith("cuda")} == {"unavailable"}
        assert set(run.header.compiled["kernels/decode_flatten/decode_flatten.cu"].values()) == {"ok"}


def test_tables_and_plots_are_written(smoke):
    out, text, _ = smoke
    for operator in ("decode_flatten", "decode_native"):
        assert re.search(rf"^{operator}: (GPU|CPU wall time)", text, re.M)
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    assert "| batch size |" in (out / "table.md").read_text()
    for figure in ("latency", "speedup"):
        for suffix in (".png", ".svg"):
            assert (out / f"{figure}{suffix}").stat().st_size > 10_000
    assert str(out) in " ".join(text.split())


def test_a_record_on_both_sides_of_a_comparison_is_refused(smoke, tmp_path):
    out, _, _ = smoke
    code, _, err = call("compare", out, out, "--out", tmp_path)
    assert code == 2
    assert "is on both sides" in " ".join(err.split())
    assert not (tmp_path / "comparison.md").exists()
