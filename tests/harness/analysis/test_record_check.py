"""Each reason not to commit a record, and that the records of this repository have none but those that are known."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from spec_decode_bench.harness.analysis.record_check import CHECKS, problems
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.schema import Proof
from tests import factory
from tests.cli.test_cli import call

REFERENCE = Path(__file__).parents[3] / "results" / "reference"


@pytest.fixture(scope="module")
def good():
    run = factory.sweep_run(batch_sizes=(1,))
    return factory.with_header(run, cells=tuple(cell.key for cell in run.cells))


def environment_with(run, **changes):
    return factory.with_header(run, environment=replace(run.header.environment, **changes))


def cell_with(run, **changes):
    first = run.cells[0]
    cell = replace(first, **changes.pop("cell", {}))
    if changes:
        cell = factory.with_metrics(cell, **changes)
    return replace(run, cells=[cell, *run.cells[1:]])


FAULTS = {
    "complete sweep": {
        "17 planned cells missing, the first is": lambda run: replace(run, cells=run.cells[:1]),
        "the last line is incomplete": lambda run: replace(run, truncated=True),
        "is there more than once": lambda run: replace(run, cells=[*run.cells, run.cells[0]]),
        "recorded with --only": lambda run: factory.with_header(run, command="python bench.py x.yaml --only='a*'"),
        "recorded with --shard": lambda run: factory.with_header(
            run, command="bench.py x.yaml --shard=1/2", shard="1/2"
        ),
        "there is no cell in it": lambda run: replace(factory.with_header(run, cells=()), cells=[]),
    },
    "on a GPU": {"on a CPU": lambda run: environment_with(run, device="cpu")},
    "calibrated": {
        "too close to tell": lambda run: factory.with_header(run, uncalibrated=("too close to tell them apart",))
    },
    "clean commit": {
        "uncommitted changes": lambda run: environment_with(run, dirty=True),
        "names no commit": lambda run: environment_with(run, commit=None),
    },
    "clocks": {
        "NVML refuses": lambda run: environment_with(run, nvml_refused=("SM clock",)),
        "kept although the GPU was still throttled": lambda run: cell_with(run, disturbed=20),
    },
    "every cell passed": {
        "1 cell did not pass": lambda run: cell_with(run, cell={"status": factory.Status.MISMATCH, "metrics": None})
    },
    "audited": {
        "1 cell not audited: CUPTI": lambda run: cell_with(run, no_audit="CUPTI delivers nothing"),
        "verified on another GPU": lambda run: replace(
            run, cells=[replace(cell, proof=Proof(key="0", verified_at="", gpu_id="other")) for cell in run.cells]
        ),
        "recorded with --brief": lambda run: factory.with_header(run, command="python bench.py run mtp3.yaml --brief"),
    },
}


def test_a_good_record_has_no_problem(good):
    assert problems(good) == dict.fromkeys(CHECKS)
    assert set(FAULTS) == set(CHECKS)


@pytest.mark.parametrize(("name", "words"), [(name, words) for name, faults in FAULTS.items() for words in faults])
def test_each_fault_is_found_by_its_check_alone(name, words, good):
    wrong = {check: problem for check, problem in problems(FAULTS[name][words](good)).items() if problem}
    assert set(wrong) == {name}
    assert words in wrong[name]


def test_the_command_says_what_is_wrong_and_ends_accordingly(good, tmp_path):
    assert call("check-record", str(factory.write(good, tmp_path / "good.jsonl")))[0] == 0
    code, out, err = call("check-record", factory.write(environment_with(good, dirty=True), tmp_path / "bad.jsonl"))
    assert code == 1
    assert "clean commit: the tree had uncommitted changes" in " ".join(out.split())
    assert err.startswith("1 reason")
    assert call("check-record", str(tmp_path / "none.jsonl"))[0] == 2


@pytest.mark.parametrize("name", ["decode_tables", "full", "mamba_copy"])
def test_reference_records_are_fit(name):
    assert not any(problems(read_run(REFERENCE / "nvidia-h200" / f"{name}.jsonl")).values())
