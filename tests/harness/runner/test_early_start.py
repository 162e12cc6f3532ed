"""Workers that start before their job is known."""

import multiprocessing
import sys

import pytest

from harness.config.load import Measure
from harness.runner import early_start, worker
from harness.runner.early_start import early_workers
from harness.runner.protocol import Job, Ready
from harness.runner.worker import Worker
from tests import faulty_session


@pytest.fixture
def started(monkeypatch):
    """All workers that were started, in a process without torch; they run tests/faulty_session.py."""
    monkeypatch.setattr(worker, "multiprocessing", multiprocessing)
    monkeypatch.setattr(worker, "_serve", faulty_session.serve)
    monkeypatch.delitem(sys.modules, "torch")
    workers = []

    class Noted(Worker):
        def __init__(self, *arguments, **more):
            super().__init__(*arguments, **more)
            workers.append(self)

    monkeypatch.setattr(early_start, "Worker", Noted)
    yield workers
    for one in workers:
        one.close(wait_s=0)


def job():
    return Job("cpu", (), 0, Measure(), timed=False)


def alive(one):
    return one._process.is_alive()


def test_the_first_job_gets_the_process_that_runs_already(started):
    with early_workers("cpu", ["evaluate", "audit"]) as start:
        assert len(started) == 1
        first, second = start(job()), start(job())
        assert first is started[0] is not second
        assert isinstance(first.ready, Ready)
    assert alive(first)
    assert alive(second)


def test_a_process_without_a_job_ends_with_the_command(started):
    with pytest.raises(ValueError, match="planning failed"), early_workers("cpu", ["evaluate"]):
        raise ValueError("planning failed")
    assert not alive(started[0])


@pytest.mark.parametrize(
    ("device", "driver", "expected"),
    [
        ("auto", True, ["evaluate", "audit"]),
        ("auto", False, ["evaluate"]),
        ("cpu", True, ["evaluate"]),
        ("cuda", False, ["evaluate", "audit"]),
    ],
)
def test_an_auditor_starts_where_there_may_be_a_gpu(device, driver, expected, monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(early_start, "NVIDIA_DRIVER", tmp_path if driver else tmp_path / "none")
    started = []

    class Noted:
        def __init__(self, job, device, role):
            started.append(role)

        def close(self, wait_s):
            pass

    monkeypatch.setattr(early_start, "Worker", Noted)
    with early_workers(device, ["evaluate", "audit"]):
        pass
    assert started == expected


def test_a_process_that_has_torch_starts_nothing_early():
    assert "torch" in sys.modules
    with early_workers("cpu", ["evaluate"]) as start:
        assert start is None
