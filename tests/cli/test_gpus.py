"""--gpus on the command line, around fake workers: one record, completed by --resume; one sentence for bad input."""

from pathlib import Path

import pytest

from spec_decode_bench.cli import several_gpus
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.session.several_gpus import LOCK_NOTE
from spec_decode_bench.harness.timing import gpus
from spec_decode_bench.harness.timing.gpus import VisibleGpu
from tests.harness.session.test_resume import KEYS, bench, keys, says  # noqa: F401 - bench is a fixture


@pytest.fixture
def on_gpus(bench, monkeypatch):  # noqa: F811
    """bench, on a machine with two GPUs, whose workers answer as those of a CPU do."""
    monkeypatch.setattr(
        several_gpus, "choose_gpus", lambda wanted: [VisibleGpu(i, f"GPU-{i}") for i in range(int(wanted))]
    )
    monkeypatch.setattr(gpus, "choose_device", lambda wanted: "cpu")
    return lambda *arguments, **more: bench("--device", "auto", *arguments, **more)


def test_two_gpus_make_one_record(on_gpus):
    code, out, err, workers = on_gpus("--gpus", "2", "--out", "out")
    assert (code, err) == (0, "")
    assert sorted(keys()) == sorted(KEYS)
    assert {(job.gpu, job.host_lock) for job in workers.started["evaluate"]} == {("GPU-0", True), ("GPU-1", True)}
    read = read_run("out/run.jsonl")
    assert [(segment.process, segment.why) for segment in read.segments] == [(1, "GPU 1")]
    assert "note: measured by 2 workers (0: GPU 0, 1: GPU 1)" in says(out)
    assert "4 passed" in out


def test_an_interrupted_run_keeps_its_points_and_is_completed_on_another_number_of_gpus(on_gpus):
    code, _, err, _ = on_gpus("--gpus", "1", "--out", "out", dies_after=3)
    assert (code, keys()) == (130, KEYS[:2])  # a point is kept as a whole
    assert "interrupted: 2 of 4 cells are kept in out/run.jsonl" in err
    assert on_gpus("--gpus", "2", "--resume", "out")[0] == 0
    read = read_run("out/run.jsonl")
    assert sorted(keys()) == sorted(KEYS)
    assert [(segment.process, segment.why) for segment in read.segments] == [(1, "resumed"), (2, "GPU 1")]
    assert {cell.process for cell in read.cells} <= {0, 1, 2}


def test_a_run_without_the_flag_takes_no_lock_and_notes_nothing(bench):  # noqa: F811
    assert bench("--out", "out")[3].started["evaluate"][0].host_lock is False
    content = Path("out/run.jsonl").read_text()
    assert LOCK_NOTE not in content
