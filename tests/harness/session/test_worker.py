"""The process boundary, with real processes: whatever ends a worker reaches the parent as one sentence, and nothing
stays.
"""

import os
import time

import pytest

from spec_decode_bench.harness.config.load import Measure
from spec_decode_bench.harness.config.work_items import AtPoint, Check, Result
from spec_decode_bench.harness.session import worker
from spec_decode_bench.harness.session.messages import Fatal, Heartbeat, Job, Ready
from spec_decode_bench.harness.session.worker import Worker, WorkerDied, WorkerSilent
from spec_decode_bench.harness.session.worker_output import MAX_LINES
from tests import faulty_session

ENDS = {
    "segfaults": "the worker process was killed by SIGSEGV",
    "exits": "the worker process ended with exit code 3",
    "ends": "the worker process ended with exit code 4",
    "loses_the_context": "the CUDA context was lost",
    "panics": "the worker process could not go on: Panic: at the disco",
    "returns_what_cannot_be_encoded": "the worker process could not go on: TypeError: Encoding objects",
    "hangs": "the worker process did not respond for 0.5 s (measure.timeout_s)",
    "closes_its_pipe": "the worker process closed its pipe without ending",
    "writes_into_the_pipe": "unreadable message from the worker process (",
}


@pytest.fixture
def start(monkeypatch):
    monkeypatch.setattr(worker, "_serve", faulty_session.serve)
    started = []

    def one(*files, timeout_s=60):
        started.append(Worker(Job("cpu", files, 0, Measure(timeout_s=timeout_s), timed=False)))
        return started[-1]

    yield one
    for one in started:
        one.close(wait_s=0)
        assert not os.path.exists(f"/proc/{one.process_id}")


def ask(one, name, hear=lambda event: None):
    request = Check(operator="o", variants=(name,), where=AtPoint(label="n=1", axes={"n": 1}))
    one.send(request)
    return one.receive(request, hear)


def test_a_worker_answers_and_ends_when_it_is_asked_to(start):
    one = start()
    assert isinstance(one.ready(), Ready)
    told = []
    for _ in range(2):
        assert [outcome.variant for outcome in ask(one, "fine", told.append).outcomes] == ["fine"]
    assert [type(event) for event in told] == [Heartbeat, Result] * 2
    began = time.monotonic()
    one.close(wait_s=60)
    assert time.monotonic() - began < 60, "it was killed"
    with pytest.raises(WorkerDied):
        ask(one, "fine")


@pytest.mark.parametrize("name", ENDS)
def test_whatever_ends_a_worker_is_one_sentence(name, start, monkeypatch, capfd):
    monkeypatch.setattr(worker, "EXIT_LIMIT_S", 0.2)
    one, told = start(timeout_s=0.5 if name == "hangs" else 60), []
    assert isinstance(one.ready(), Ready)
    with pytest.raises(WorkerDied) as died:
        ask(one, name, told.append)
    assert told[0] == Heartbeat((name,)), "what it tells arrives before its end"
    assert isinstance(told[1], Result)
    assert str(died.value).startswith(ENDS[name])
    assert "\n" not in str(died.value)
    assert isinstance(died.value, WorkerSilent) == (name == "hangs")
    assert "Traceback" not in capfd.readouterr().err


def test_a_worker_that_was_forked_answers_once(start):
    one = start()
    assert one.ready()
    for name in ("forks", "fine", "forks", "fine"):
        assert [outcome.variant for outcome in ask(one, name).outcomes] == [name]


def test_what_a_worker_prints_goes_to_standard_error_and_a_flood_is_cut(start, capfd):
    one = start()
    assert one.ready()
    assert ask(one, "floods").outcomes
    one.close()
    out, err = capfd.readouterr()
    lines = err.splitlines()
    assert out == ""
    asserts = [f"kernel.cu:7: block: [0,0,0], thread: [{i},0,0] Assertion failed." for i in range(MAX_LINES - 1)]
    assert lines == [
        "first, through Python",
        *asserts,
        f"… {5001 - MAX_LINES} more lines of the worker process dropped",
    ]


def test_the_last_output_of_a_killed_worker_is_passed_on(start, capfd):
    one = start()
    assert one.ready()
    with pytest.raises(WorkerDied, match="SIGKILL"):
        ask(one, "dies_in_the_middle_of_a_line")
    one.close()
    assert capfd.readouterr().err.splitlines()[-1:] == ["about to"]


@pytest.mark.parametrize("when", ["raises on start", "raises when it calibrates"])
def test_what_a_worker_raises_while_it_starts_is_fatal(when, start):
    fatal = start(when).ready()
    assert isinstance(fatal, Fatal)
    assert fatal.reason.startswith("Unprintable: its message cannot be read (faulty_session.py, line ")


def test_a_worker_that_dies_while_it_starts_is_dead(start):
    with pytest.raises(WorkerDied, match="SIGKILL"):
        _ = start("dies on start").ready()


def test_a_worker_that_never_gets_ready_is_not_blamed_on_the_timeout_of_variants(start, monkeypatch):
    monkeypatch.setattr(worker, "START_LIMIT_S", 0.01)
    with pytest.raises(WorkerSilent, match=r"did not respond for 0\.01 s \(it should have been ready by then\)"):
        _ = start("hangs on start").ready()
