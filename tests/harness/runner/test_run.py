"""The loop of a run with workers that die on cue: who is blamed, who is measured again, what is written, when it
gives up.
"""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.config.load import Measure
from harness.config.sweep import Group
from harness.contract import COMPILER, Axis, Operator, Point, Variant
from harness.records.schema import Cell, Segment
from harness.runner import run as loop
from harness.runner.protocol import Fatal, Heartbeat, Job
from harness.runner.run import RunError, Runner
from harness.runner.supervised_worker import MAX_DEATHS, MAX_STARTS, SupervisedWorker
from harness.runner.worker import WorkerDied
from tests.fake_worker import AUDIT_READY, KILLED, READY, SILENT, FakeWorkers, auditor, cell, session

OPERATOR = Operator(
    name="o",
    summary="",
    axes=(Axis("n", int, 0, ""),),
    make_inputs=None,
    make_outputs=None,
    views=None,
    reference=None,
    bytes_moved=None,
    baseline="a",
)


def groups(points=1, names="abc"):
    variants = tuple(Variant("o", name, None, "", "test") for name in names)
    return [Group(OPERATOR, Point({"n": n}), variants) for n in range(1, points + 1)]


def test_wall_time_is_counted_by_activity(monkeypatch):
    """A clock that ticks a second whenever it is read."""
    seconds = itertools.count()
    monkeypatch.setattr(loop.time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(loop, "Worker", FakeWorkers(session()))
    runner = Runner(Job("cpu", (), 0, Measure(), timed=True), lambda line: None, lambda progress: None)
    assert runner.wall_time.by_activity() == {"starting": 1.0, "verifying": 0.0, "timing": 0.0}
    runner.run(groups(2))
    spent_s = runner.wall_time.by_activity().values()
    assert min(spent_s) > 0
    # The last reading is the end of the second point.
    assert sum(spent_s) < next(seconds)


@pytest.fixture
def drive(monkeypatch):
    def one(workers, plan, **measure):
        monkeypatch.setattr(loop, "Worker", workers)
        lines, progress = [], []
        runner = Runner(Job("cpu", (), 0, Measure(**measure), timed=True), lines.append, progress.append)
        runner.run(plan)
        runner.close()
        cells = [line for line in lines if isinstance(line, Cell)]
        keys = [one.key for one in cells]
        assert sorted(keys) == sorted(f"o/{v.name}/{g.label}" for g in plan for v in g.variants), "each cell once"
        assert (progress[-1].done, progress[-1].total) == (len(keys), len(keys))
        return {(one.variant, one.axes["n"]): one.status for one in cells}, lines

    return one


def test_a_run_in_which_nobody_dies(drive):
    workers = FakeWorkers(session())
    fates, lines = drive(workers, groups(2))
    assert set(fates.values()) == {"passed"}
    assert workers.asked == [("a", "b", "c")] * 2
    assert not any(isinstance(line, Segment) for line in lines)


def test_what_is_slow_to_verify_comes_last_at_the_first_point_of_an_operator(drive, catalog):
    chain = catalog.find("decode_native", "chain").setup
    kernel = catalog.find("decode_native", "triton_fused").setup
    compiled = Variant("o", "a", chain, "", "test", requires=(COMPILER,))
    others = Variant("o", "b", kernel, "", "test"), Variant("o", "c", chain, "", "test")
    plan = [replace(group, variants=(compiled, *others)) for group in groups(2)]
    drive(workers := FakeWorkers(session()), plan)
    first = [("b", "c"), ("a",)] if torch.cuda.is_available() else [("c",), ("a", "b")]
    assert workers.asked == [*first, ("a", "b", "c")]
    assert sum(workers.budgets[:2]) == pytest.approx(Measure().time_budget_s / 2, rel=0.01)


def test_who_dies_while_it_is_verified_fails_alone(drive):
    workers = FakeWorkers(session(dies_verifying="b"))
    fates, lines = drive(workers, groups())
    assert fates == {("a", 1): "passed", ("b", 1): "failed", ("c", 1): "passed"}
    assert workers.asked == [("a", "b", "c"), ("a", "c")]
    assert [(line.why, line.environment) for line in lines if isinstance(line, Segment)] == [
        (KILLED, READY.environment)
    ]
    assert next(line.reason for line in lines if isinstance(line, Cell) and line.variant == "b") == KILLED


def test_who_dies_while_they_take_turns_is_found_by_asking_one_by_one(drive):
    workers = FakeWorkers(session(dies_timed="c"))
    fates, _ = drive(workers, groups())
    assert fates == {("a", 1): "passed", ("b", 1): "passed", ("c", 1): "failed"}
    assert workers.asked == [("a", "b", "c"), ("a",), ("b",), ("c",)]
    assert len(workers.started) == 3


def test_a_variant_whose_cell_has_arrived_is_not_blamed_for_the_next_one(drive):
    """The last sign of life of a measured batch names its first variant, which need not be the one that died."""
    workers = FakeWorkers(session(dies_late="c"))
    fates, _ = drive(workers, groups(MAX_DEATHS + 1))
    assert {fate for (name, _), fate in fates.items() if name in "ab"} == {"passed"}
    assert {fate for (name, _), fate in fates.items() if name == "c"} == {"failed"}


def test_who_was_reported_as_failed_right_before_the_death_is_to_blame(drive):
    workers = FakeWorkers(session(dies_reported="b"))
    fates, _ = drive(workers, groups(MAX_DEATHS + 1))
    assert [fates["b", n] for n in (1, 2, 3)] == ["failed"] * 3
    assert {fate for (name, _), fate in fates.items() if name != "b"} == {"passed"}
    assert sum("b" in asked for asked in workers.asked) == MAX_DEATHS


def test_who_has_ended_its_process_often_enough_is_not_run_again(drive):
    workers = FakeWorkers(session(dies_verifying="b"))
    fates, lines = drive(workers, groups(4))
    assert [fates["b", n] for n in (1, 2, 3, 4)] == ["failed"] * 4
    assert sum("b" in asked for asked in workers.asked) == MAX_DEATHS
    reasons = [line.reason for line in lines if isinstance(line, Cell) and line.variant == "b"]
    assert reasons == [KILLED] * MAX_DEATHS + [f"not run again, it ended its process {MAX_DEATHS} times: {KILLED}"] * 2


def test_a_worker_that_dies_between_two_tasks_costs_nobody_a_cell(drive):
    deaths = iter([True, False])

    def script(task):
        if task.axes["n"] == 2 and next(deaths):
            yield WorkerDied(KILLED)
        yield from session()(task)

    fates, _ = drive(FakeWorkers(script), groups(3))
    assert set(fates.values()) == {"passed"}


def test_a_worker_that_always_dies_before_anybody_has_control_does_not_go_on_for_ever(drive):
    fates, _ = drive(FakeWorkers(lambda task: iter([WorkerDied(KILLED)])), groups())
    assert set(fates.values()) == {"failed"}


@pytest.mark.parametrize("fault", ["another point", "twice", "none"])
def test_every_planned_cell_is_written_once_whatever_a_worker_answers(fault, drive):
    """The first process answers wrongly and is replaced; the next one answers as asked."""
    faults = iter([True])

    def script(task):
        for event in session()(task):
            wrong_here = isinstance(event, Cell) and event.variant == "b" and task.axes["n"] == 1
            if not wrong_here or not next(faults, False):
                yield event
            elif fault == "twice":
                yield from (event, event)
            elif fault == "another point":
                yield cell(replace(task, axes={"n": 7}), "b")

    fates, lines = drive(FakeWorkers(script), groups(2))
    assert set(fates.values()) == {"passed"}
    (why,) = [line.why for line in lines if isinstance(line, Segment)]
    assert (
        why
        == {
            "another point": "the worker process sent a cell that it was not asked for: o/b/n=7",
            "twice": "the worker process sent a cell that it was not asked for: o/b/n=1",
            "none": "the worker process finished without a cell of b",
        }[fault]
    )


def test_the_silence_of_a_hanging_variant_is_not_taken_from_the_time_of_the_others(drive, monkeypatch):
    now = iter(range(0, 10**6))
    monkeypatch.setattr(loop.time, "monotonic", lambda: next(now))

    def script(task):
        for event in session()(task):
            yield event
            if (
                task.axes["n"] == 1
                and isinstance(event, Heartbeat)
                and event.phase == "measure"
                and len(task.variants) == 1
            ):
                for _ in range(1000):
                    next(now)
                yield WorkerDied("no sign of life")

    workers = FakeWorkers(script)
    fates, _ = drive(workers, groups(2, "a"), time_budget_s=100)
    assert fates == {("a", 1): "failed", ("a", 2): "passed"}
    assert workers.budgets == [50, 100]


def test_batches_that_are_asked_again_share_the_time_of_the_point(drive):
    workers = FakeWorkers(session(dies_timed="c"))
    drive(workers, groups(), time_budget_s=30)
    assert workers.budgets == pytest.approx([30, 10, 10, 10])


def test_a_worker_killed_while_it_starts_is_started_again(drive):
    fates, _ = drive(FakeWorkers(session(), [WorkerDied(KILLED), WorkerDied(KILLED), READY]), groups())
    assert set(fates.values()) == {"passed"}


@pytest.mark.parametrize(
    ("answer", "starts", "message"),
    [
        (WorkerDied(KILLED), MAX_STARTS, f"the worker could not start: {KILLED}"),
        (SILENT, 1, "the worker could not start: no sign of life for 600 s"),
        (Fatal("RuntimeError: no memory"), 1, "the device cannot be used: RuntimeError: no memory"),
    ],
)
def test_a_run_that_cannot_start_says_why(answer, starts, message, drive):
    workers = FakeWorkers(session(), [answer])
    with pytest.raises(RunError) as refused:
        drive(workers, groups())
    assert str(refused.value) == message
    assert len(workers.started) == starts
    assert workers.closed >= starts


def test_a_worker_that_cannot_be_replaced_ends_the_run_and_keeps_the_cells(monkeypatch):
    workers = FakeWorkers(session(dies_verifying="b"), [READY, Fatal("gone")])
    monkeypatch.setattr(loop, "Worker", workers)
    lines = []
    runner = Runner(Job("cpu", (), 0, Measure(), timed=True), lines.append, lambda progress: None)
    with pytest.raises(RunError, match="gone"):
        runner.run(groups())
    assert [(line.variant, line.status) for line in lines] == [("b", "failed")]


def test_only_the_first_worker_compiles_sources(monkeypatch):
    workers = FakeWorkers(session(dies_verifying="b"))
    monkeypatch.setattr(loop, "Worker", workers)
    job = Job("cpu", (), 0, Measure(), timed=True, compiled=(Path("b.cu"),))
    Runner(job, lambda line: None, lambda progress: None).run(groups())
    assert [job.compiled for job in workers.started] == [(Path("b.cu"),), ()]


def test_the_cells_of_the_fake_are_those_of_the_plan():
    task = type("Task", (), {"operator": "o", "axes": {"n": 1}})
    assert cell(task, "a").key == f"o/a/{groups()[0].label}"


def test_with_an_auditor_every_point_is_written_before_the_next_one_begins(monkeypatch):
    """A killed run loses the point under way and no more, although cells wait for their audit."""
    lines, written_at = [], {}

    def script(task):
        written_at[task.axes["n"]] = len(lines)
        yield from session()(task)

    workers, auditors = FakeWorkers(script), FakeWorkers(auditor(rejects="b"), [AUDIT_READY])
    monkeypatch.setattr(loop, "Worker", lambda job: (auditors if job.role == "audit" else workers)(job))
    runner = Runner(Job("cuda", (), 0, Measure(), timed=True), lines.append, lambda progress: None)
    runner.run(groups(3))
    runner.close()
    assert written_at == {1: 0, 2: 3, 3: 6}
    assert [(line.variant, line.status) for line in lines[:3]] == [("a", "passed"), ("b", "mismatch"), ("c", "passed")]
    assert auditors.asked == [("a", "b", "c")] * 3


def test_cells_that_were_measured_before_another_variant_died_are_audited_and_written(monkeypatch):
    lines = []
    workers, auditors = FakeWorkers(session(dies_late="c")), FakeWorkers(auditor(), [AUDIT_READY])
    monkeypatch.setattr(loop, "Worker", lambda job: (auditors if job.role == "audit" else workers)(job))
    runner = Runner(Job("cuda", (), 0, Measure(), timed=True), lines.append, lambda progress: None)
    runner.run(groups())
    assert {line.variant: line.status for line in lines if isinstance(line, Cell)} == {
        "a": "passed",
        "b": "passed",
        "c": "failed",
    }
    assert isinstance(lines[-1], Segment)  # they belong to the process that died
    assert auditors.asked == [("a", "b")]


def test_processes_come_up_together_and_calibrate_one_by_one_and_no_time_waits_for_torch_compile(monkeypatch):
    happened = []
    for name in ("wait_until_up", "wait_until_ready"):
        wait = getattr(SupervisedWorker, name)

        def noted(this, name=name, wait=wait):
            happened.append((name, this._job.role))
            return wait(this)

        monkeypatch.setattr(SupervisedWorker, name, noted)

    def script(task):
        happened.append(("asked", task.variants))
        yield from session()(task)

    workers, auditors = FakeWorkers(script), FakeWorkers(auditor(), [AUDIT_READY])
    monkeypatch.setattr(loop, "Worker", lambda job: (auditors if job.role == "audit" else workers)(job))
    written = lambda line: happened.append(("written", line.variant))  # noqa: E731
    runner = Runner(Job("cuda", (), 0, Measure(), timed=True), written, lambda progress: None)
    assert happened == [
        ("wait_until_up", "evaluate"),
        ("wait_until_up", "audit"),
        ("wait_until_ready", "evaluate"),
        ("wait_until_ready", "audit"),
    ]
    (group,) = groups(names="ab")
    compiled = replace(group.variants[0], requires=(COMPILER,))
    runner.run([replace(group, variants=(compiled, group.variants[1]))])
    measured = [one for one in happened if not one[0].startswith("wait")]
    assert measured == [("asked", ("b",)), ("written", "b"), ("asked", ("a",)), ("written", "a")]
