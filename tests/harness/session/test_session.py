"""A session with workers that die on cue: who is blamed, who is measured again, what is yielded, when it gives up."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs

from spec_decode_bench.decode_loop.planning import plan_loops
from spec_decode_bench.harness.config.load import CONFIGS, Measure, load
from spec_decode_bench.harness.config.sweep import cells
from spec_decode_bench.harness.config.work_items import Cells, Check, Checked, EdgeCases, Named, keys_of
from spec_decode_bench.harness.contract import COMPILER
from spec_decode_bench.harness.records.endings import ending
from spec_decode_bench.harness.records.schema import AUDITED, Audit, Cell, Finding, Place, Proof, Segment, Status
from spec_decode_bench.harness.session import session as module
from spec_decode_bench.harness.session.messages import (
    Audited,
    AuditReady,
    Compared,
    Done,
    Fatal,
    Heartbeat,
    Job,
    Outputs,
    Ready,
)
from spec_decode_bench.harness.session.proofs import machine_hash
from spec_decode_bench.harness.session.session import MAX_UNATTRIBUTED_DEATHS, Progress, RunError, Session
from spec_decode_bench.harness.session.supervised_worker import MAX_DEATHS, MAX_STARTS, SupervisedWorker
from spec_decode_bench.harness.session.worker import WorkerDied
from tests import factory
from tests.fake_worker import (
    AUDIT_READY,
    KILLED,
    READY,
    SILENT,
    FakeWorkers,
    auditor,
    cell,
    evaluator,
    items,
    run,
)

DIED = WorkerDied(KILLED)


def drive(workers, plan, **measure):
    """({(variant, n): status}, lines); each planned cell must be there once."""
    outcomes = run(workers, plan, **measure)
    found = [one for one in outcomes if isinstance(one, Cell)]
    assert sorted(one.key for one in found) == sorted(keys_of(plan)), "each cell once"
    progress = [one for one in outcomes if isinstance(one, Progress)]
    assert (progress[-1].done, progress[-1].total) == (len(found), len(found))
    return {(one.variant, one.axes["n"]): one.status for one in found}, outcomes


def cells_of(outcomes, variant=None):
    return [one for one in outcomes if isinstance(one, Cell) and variant in (None, one.variant)]


def segments_of(outcomes):
    return [one for one in outcomes if isinstance(one, Segment)]


# --- who is blamed for a death ----------------------------------------------------------------------------------------


def test_a_run_in_which_nobody_dies():
    workers = FakeWorkers(evaluator())
    fates, outcomes = drive(workers, items(2))
    assert set(fates.values()) == {"passed"}
    assert workers.asked["evaluate"] == [("a", "b", "c")] * 2
    assert segments_of(outcomes) == []
    assert {one.process for one in cells_of(outcomes)} == {0}


def test_who_dies_while_it_is_verified_fails_alone():
    workers = FakeWorkers(evaluator(dies_verifying="b"))
    fates, outcomes = drive(workers, items())
    assert fates == {("a", 1): "passed", ("b", 1): "failed", ("c", 1): "passed"}
    assert workers.asked["evaluate"] == [("a", "b", "c"), ("a", "c")]
    (segment,) = segments_of(outcomes)
    assert (segment.why, segment.environment, segment.process) == (KILLED, READY.environment, 1)
    (wrong,) = cells_of(outcomes, "b")
    assert (wrong.finding.check, wrong.finding.culprit, ending(wrong)) == ("no_crash", "o/b", KILLED)
    assert {one.variant: one.process for one in cells_of(outcomes)} == {"a": 1, "b": 0, "c": 1}


def test_who_dies_while_they_take_turns_is_found_by_asking_one_by_one():
    workers = FakeWorkers(evaluator(dies_timed="c"))
    fates, _ = drive(workers, items())
    assert fates == {("a", 1): "passed", ("b", 1): "passed", ("c", 1): "failed"}
    assert workers.asked["evaluate"] == [("a", "b", "c"), ("a",), ("b",), ("c",)]
    assert len(workers.started["evaluate"]) == 3


def test_a_variant_whose_cell_has_arrived_is_not_blamed_for_the_next_one():
    """The last sign of life of a measured batch names its first variant, which need not be the one that died."""
    fates, _ = drive(FakeWorkers(evaluator(dies_late="c")), items(MAX_DEATHS + 1))
    assert {fate for (name, _), fate in fates.items() if name in "ab"} == {"passed"}
    assert {fate for (name, _), fate in fates.items() if name == "c"} == {"failed"}


def test_who_was_reported_as_failed_right_before_the_death_is_to_blame():
    workers = FakeWorkers(evaluator(dies_reported="b"))
    fates, _ = drive(workers, items(MAX_DEATHS + 1))
    assert [fates["b", n] for n in (1, 2, 3)] == ["failed"] * 3
    assert {fate for (name, _), fate in fates.items() if name != "b"} == {"passed"}
    assert sum("b" in asked for asked in workers.asked["evaluate"]) == MAX_DEATHS


def test_who_has_ended_its_process_often_enough_is_not_run_again():
    workers = FakeWorkers(evaluator(dies_verifying="b"))
    fates, outcomes = drive(workers, items(4))
    assert [fates["b", n] for n in (1, 2, 3, 4)] == ["failed"] * 4
    assert sum("b" in asked for asked in workers.asked["evaluate"]) == MAX_DEATHS
    deaths = [one.finding.deaths for one in cells_of(outcomes, "b")]
    assert deaths == [None] * MAX_DEATHS + [MAX_DEATHS] * 2
    assert ending(cells_of(outcomes, "b")[-1]).startswith("not run again")


def test_a_worker_that_dies_between_two_items_costs_nobody_a_cell():
    deaths = iter([True, False])

    def script(item):
        if item.axes["n"] == 2 and next(deaths):
            yield DIED
        yield from evaluator()(item)

    fates, _ = drive(FakeWorkers(script), items(3))
    assert set(fates.values()) == {"passed"}


def test_a_worker_that_always_dies_before_anybody_has_control_does_not_go_on_for_ever():
    fates, outcomes = drive(FakeWorkers(lambda item: iter([DIED])), items())
    assert set(fates.values()) == {"failed"}
    assert {one.finding.culprit for one in cells_of(outcomes)} == {None}


@pytest.mark.parametrize("fault", ["another", "twice", "none"])
def test_every_planned_cell_is_yielded_once_whatever_a_worker_answers(fault):
    """The first process answers wrongly and is replaced; the next one answers as asked."""
    faults = iter([True])

    def script(item):
        for event in evaluator()(item):
            wrong_here = isinstance(event, Cell) and event.variant == "b" and item.axes["n"] == 1
            if not wrong_here or not next(faults, False):
                yield event
            elif fault == "twice":
                yield from (event, event)
            elif fault == "another":
                yield cell(item, "z")

    fates, outcomes = drive(FakeWorkers(script), items(2))
    assert set(fates.values()) == {"passed"}
    (segment,) = segments_of(outcomes)
    said = {
        "another": "z, which was not requested",
        "twice": "b, which was not requested",
        "none": "outcome for b",
    }
    assert said[fault] in segment.why


def test_a_stack_that_ends_the_process_costs_itself_alone(catalog):
    """Each block ends with a wait for the device, so the stack in control did it."""
    item = plan_loops(load(CONFIGS / "decode_loop.yaml"), catalog, ["chains", "fused"])[0]

    def script(item):
        for name in item.variants:
            yield Heartbeat(name, "block")
        if "fused" in item.variants:
            yield DIED
        yield from (item.line(name, Status.PASSED) for name in item.variants)

    outcomes = run(FakeWorkers(script), [item])
    lines = {one.stack: one for one in outcomes if not isinstance(one, Segment | Progress)}
    assert {name: (line.status, line.process) for name, line in lines.items()} == {
        "chains": ("passed", 1),
        "fused": ("failed", 0),
    }
    assert lines["fused"].finding.culprit == "fused"


@pytest.mark.parametrize(("limited", "status"), [(False, "mismatch"), (True, "known failure")])
def test_a_death_in_verification_rejects_the_variant_and_names_the_place(limited, status):
    """What was found before stays."""

    def script(item):
        if is_check_of(item, "dies"):
            yield Heartbeat("dies", "verify", Place.EDGE_CASE, "B = 1")
            fine = Finding(status=Status.PASSED, place=Place.EDGE_CASE, name="B = 1")
            yield Checked(operator="o", variant="dies", finding=fine)
            yield Heartbeat("dies", "verify", Place.SEQUENCE, "shrinks")
            yield DIED

    where = Named(name="B = 1", known_failure=True) if limited else EdgeCases()
    plan = [Check(operator="o", variants=("dies",), where=where), Check(operator="o", variants=("fine",))]
    outcomes = run(FakeWorkers(script), plan)
    passed, died = [one.finding for one in outcomes if isinstance(one, Checked)]
    assert (passed.status, passed.name) == ("passed", "B = 1")
    assert (died.status, died.check, died.place, died.name) == (status, "no_crash", "sequence", "shrinks")
    assert (died.culprit, died.message) == ("o/dies", KILLED)


# --- time -------------------------------------------------------------------------------------------------------------


def test_what_no_other_activity_took_is_the_start(monkeypatch):
    """A clock that ticks a second whenever it is read."""
    seconds = itertools.count()
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(seconds)))
    ready = structs.replace(READY, seconds={"import": 2.0, "verify": 3.0})
    with Session(Job("cpu", (), 0, Measure(), timed=True), FakeWorkers(evaluator(), [ready])) as session:
        for _ in range(9):
            next(seconds)
        assert session.ready.seconds == {"start": 5.0, "import": 2.0, "verify": 3.0}
        list(session.run(items(2)))
    assert session.timing_s > 0


def test_what_is_slow_to_verify_comes_last_at_the_first_point_of_an_operator(catalog):
    chain, kernel = catalog.find("decode_native", "chain"), catalog.find("decode_native", "triton_fused")
    compiled = replace(chain, name="compiled", requires=(COMPILER,))
    item = cells(catalog.operators["decode_native"], catalog.operators["decode_native"].complete({}), [compiled, chain])
    assert item.slow == ("compiled",)
    assert kernel.is_slow_to_verify == (not torch.cuda.is_available())
    run(workers := FakeWorkers(evaluator()), items(2, slow=("a",)))
    assert workers.asked["evaluate"] == [("b", "c"), ("a",), ("a", "b", "c")]
    assert sum(workers.budgets[:2]) == pytest.approx(Measure().time_budget_s / 2, rel=0.01)


def test_the_silence_of_a_hanging_variant_is_not_taken_from_the_time_of_the_others(monkeypatch):
    now = iter(range(0, 10**6))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(now))

    def script(item):
        for event in evaluator()(item):
            yield event
            if item.axes["n"] == 1 and isinstance(event, Heartbeat) and event.phase == "measure":
                for _ in range(1000):
                    next(now)
                yield WorkerDied("did not respond")

    workers = FakeWorkers(script)
    fates, _ = drive(workers, items(2, "a"), time_budget_s=100)
    assert fates == {("a", 1): "failed", ("a", 2): "passed"}
    assert workers.budgets == [50, 100]


def test_batches_that_are_asked_again_share_the_time_of_the_point():
    drive(workers := FakeWorkers(evaluator(dies_timed="c")), items(), time_budget_s=30)
    assert workers.budgets == pytest.approx([30, 10, 10, 10])


# --- starting and ending ----------------------------------------------------------------------------------------------


def test_nothing_starts_before_a_session_is_entered():
    workers = FakeWorkers(evaluator())
    session = Session(Job("cpu", (), 0, Measure(), timed=True), workers)
    assert not any(workers.started.values())
    with session:
        assert {role: len(jobs) for role, jobs in workers.started.items()} == {"evaluate": 1, "audit": 0, "compare": 1}
    assert workers.closed == {"evaluate": 1, "audit": 0, "compare": 1}


def test_a_worker_killed_while_it_starts_is_started_again():
    fates, _ = drive(FakeWorkers(evaluator(), [DIED, DIED, READY]), items())
    assert set(fates.values()) == {"passed"}


@pytest.mark.parametrize(
    ("answer", "starts", "words"),
    [
        (DIED, MAX_STARTS, f"could not start: {KILLED}"),
        (SILENT, 1, "did not respond for 600 s"),
        (Fatal("RuntimeError: no memory"), 1, "cannot use the device: RuntimeError: no memory"),
    ],
)
def test_a_session_that_cannot_start_says_why(answer, starts, words):
    workers = FakeWorkers(evaluator(), [answer])
    with pytest.raises(RunError, match=words):
        drive(workers, items())
    assert len(workers.started["evaluate"]) == starts
    assert workers.closed["evaluate"] >= starts


def test_a_worker_that_cannot_be_replaced_ends_the_run_and_keeps_the_cells():
    workers = FakeWorkers(evaluator(dies_verifying="b"), [READY, Fatal("gone")])
    outcomes = []
    with pytest.raises(RunError, match="gone"), Session(Job("cpu", (), 0, Measure(), timed=True), workers) as session:
        outcomes.extend(iter(session.run(items()).__next__, None))
    assert workers.closed["evaluate"] == 2


def is_check_of(item, name):
    return isinstance(item, Check) and item.variants == (name,)


def test_few_new_variants_are_verified_before_the_calibration():
    def script(item):
        yield Heartbeat(item.variants[0], "verify")
        if is_check_of(item, "dies"):
            yield WorkerDied(KILLED)
        elif is_check_of(item, "wrong"):
            finding = Finding(status=Status.MISMATCH, place=Place.EDGE_CASE, name="B = 1", check="exact")
            yield Checked(operator="o", variant="wrong", finding=finding)
        elif isinstance(item, Cells):
            yield from evaluator()(item)

    names = ("proven", "slow", "right", "wrong", "dies")
    plan = items(2, names=names, proven={"proven": Proof(key="k", verified_at="2026")}, slow=("slow",))
    workers = FakeWorkers(script)
    with Session(Job("cpu", (), 0, Measure(), timed=True), workers) as session:
        told = {checked.variant: checked.finding.check for checked in session.verify_first(plan)}
        assert workers.asked["evaluate"] == [("right",), ("wrong",), ("dies",)]
        outcomes = list(session.run(plan))
    assert told == {"wrong": "exact", "dies": "no_crash"}
    # The record begins after it, so it knows one process, and does not run again what ended one before it.
    assert not any(isinstance(outcome, Segment) for outcome in outcomes)
    ended = [outcome for outcome in outcomes if isinstance(outcome, Cell) and outcome.variant == "dies"]
    assert [(cell.status, cell.finding.check) for cell in ended] == [("failed", "no_crash")] * 2
    assert ("dies",) not in workers.asked["evaluate"][3:]


@pytest.mark.parametrize("right", [(), ("right",)])
def test_nothing_is_calibrated_where_every_variant_is_wrong(right):
    def script(item):
        finding = Finding(status=Status.MISMATCH, place=Place.EDGE_CASE, name="B = 1", check="exact")
        if is_check_of(item, "wrong"):
            yield Checked(operator="o", variant="wrong", finding=finding)
        elif isinstance(item, Cells):
            yield from (item.cell(name, Status.MISMATCH, finding=finding) for name in item.variants)

    fakes, made = FakeWorkers(script), {}
    plan = items(names=("wrong", *right))
    with Session(
        Job("cuda", (), 0, Measure(), timed=True), lambda job: made.setdefault(job.role, fakes(job))
    ) as session:
        assert [checked.variant for checked in session.verify_first(plan)] == ["wrong"]
        outcomes = [outcome for outcome in session.run(plan) if isinstance(outcome, Cell)]
        assert ("CUPTI" in session.ready.seconds) == bool(right)
    assert made["evaluate"].times == bool(right)
    assert {cell.status for cell in outcomes} == {Status.MISMATCH}


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("early", ["passes", "rejects", "dies"])
def test_the_auditor_loads_new_variants_while_they_are_verified(early, wrong):
    """What it finds then does not count, and after a wrong variant it is a new process."""

    def script(item):
        if wrong and is_check_of(item, "new"):
            finding = Finding(status=Status.MISMATCH, place=Place.EDGE_CASE, name="B = 1", check="exact")
            yield Checked(operator="o", variant="new", finding=finding)
        elif isinstance(item, Cells):
            yield from (cell(item, name, "mismatch" if wrong and name == "new" else "passed") for name in item.variants)

    early_script = auditor(dies={"dies": "new"}.get(early, ()), rejects={"rejects": ("new",)}.get(early, ()))
    scripts = iter([early_script])
    workers = FakeWorkers(script, audit=lambda item: next(scripts, auditor())(item))
    plan = items(2, names=("proven", "new"), proven={"proven": Proof(key="k", verified_at="2026")})
    with Session(Job("cuda", (), 0, Measure(), timed=True), workers) as session:
        assert len(list(session.verify_first(plan))) == wrong
        outcomes = [outcome for outcome in session.run(plan) if isinstance(outcome, Cell)]
    right = ("proven",) if wrong else ("proven", "new")
    assert [cell.variant for cell in outcomes if cell.metrics and cell.metrics.eager_launches == 1] == [*right * 2]
    assert {cell.status for cell in outcomes if cell.variant in right} == {Status.PASSED}
    # A generator begins when it is read: the request of a process that is replaced is not.
    assert workers.asked["audit"] == ([] if wrong else [("new",)]) + [right] * 2
    assert len(workers.started["audit"]) == 1 + (wrong or early == "dies")


def test_many_new_variants_are_verified_with_their_cells():
    plan = items(names=[str(number) for number in range(module.MOST_VERIFIED_FIRST + 1)])
    workers = FakeWorkers(lambda item: ())
    with Session(Job("cpu", (), 0, Measure(), timed=True), workers) as session:
        assert not list(session.verify_first(plan))
        assert not workers.asked["evaluate"]
        list(session.verify_first(plan, until_wrong=True))
        assert len(workers.asked["evaluate"]) == len(plan[0].variants)


def test_only_the_first_worker_compiles_sources():
    workers = FakeWorkers(evaluator(dies_verifying="b"))
    job = Job("cpu", (), 0, Measure(), timed=True, compiled=(Path("b.cu"),))
    with Session(job, workers) as session:
        list(session.run(items()))
    assert [job.compiled for job in workers.started["evaluate"]] == [(Path("b.cu"),), ()]


def test_a_worker_that_dies_before_the_record_begins_leaves_the_sources_to_the_next():
    def script(item):
        yield Heartbeat(item.variants[0], "verify")
        if is_check_of(item, "b"):
            yield WorkerDied(KILLED)

    workers = FakeWorkers(script)
    job = Job("cpu", (), 0, Measure(), timed=True, compiled=(Path("b.cu"),))
    with Session(job, workers) as session:
        assert [checked.variant for checked in session.verify_first(items())] == ["b"]
    assert [job.compiled for job in workers.started["evaluate"]] == [(Path("b.cu"),)] * 2


def test_processes_come_up_together_and_calibrate_one_by_one_and_no_time_waits_for_torch_compile(monkeypatch):
    happened = []
    for name in ("wait_until_up", "wait_until_ready"):
        wait = getattr(SupervisedWorker, name)

        def noted(this, *arguments, name=name, wait=wait):
            happened.append((name, this._job.role))
            return wait(this, *arguments)

        monkeypatch.setattr(SupervisedWorker, name, noted)

    def script(item):
        happened.append(("asked", item.variants))
        yield from evaluator()(item)

    with Session(Job("cuda", (), 0, Measure(), timed=True), FakeWorkers(script, audit=auditor())) as session:
        came_up = list(happened)
        _ = session.ready
        ready = happened[len(came_up) :]
        happened.clear()
        for one in session.run(items(names="ab", slow=("a",))):
            if isinstance(one, Cell):
                happened.append(("cell", one.variant))
    assert came_up == [("wait_until_up", "evaluate")]
    assert ready == [
        ("wait_until_up", "evaluate"),
        ("wait_until_up", "audit"),
        ("wait_until_ready", "evaluate"),
        ("wait_until_ready", "audit"),
    ]
    happened = [one for one in happened if one != ("wait_until_up", "compare")]
    assert happened == [("asked", ("b",)), ("cell", "b"), ("asked", ("a",)), ("cell", "a")]


# --- the audit --------------------------------------------------------------------------------------------------------


def audited(workers, plan):
    """Variant -> its cells, in the order of the plan."""
    found = {}
    for one in cells_of(run(workers, plan, "cuda")):
        found.setdefault(one.variant, []).append(one)
    return found


def with_auditor(script, answers=(AUDIT_READY,)):
    workers = FakeWorkers(evaluator(), audit=script)
    workers.starts["audit"] = list(answers)
    return workers


def test_what_the_auditor_found_is_joined_and_a_failed_check_is_a_mismatch():
    found = audited(with_auditor(auditor(rejects="b")), items())
    (a,), (b,) = found["a"], found["b"]
    assert (a.status, a.metrics.eager_launches, a.metrics.no_audit) == ("passed", 1, None)
    assert (b.status, b.finding.check, b.metrics) == ("mismatch", "no_sync", None)


def test_cupti_times_the_calibration_kernels_too():
    calibration = factory.calibration(np.random.default_rng(0))
    workers = with_auditor(auditor())
    workers.starts["evaluate"] = [Ready(factory.gpu_environment(), calibration, {})]
    with Session(Job("cuda", (), 0, Measure(), timed=True), workers) as session:
        joined = session.ready.calibration
    assert session.ready.environment.notes == ()
    assert (joined.own["null"].cupti_us, joined.spins[1000].cupti_us) == ([0.7], [1.7])
    assert joined.own["null"].graph_us == calibration.own["null"].graph_us
    assert joined.own["chain"] == calibration.own["chain"]


def one_launch(item):
    for event in evaluator()(item):
        yield factory.with_metrics(event, launches=1) if isinstance(event, Cell) else event


@pytest.mark.parametrize(
    ("launches", "environment", "again"),
    [(1, {}, False), (2, {}, True), (1, {"driver": "581"}, True)],
    ids=["same", "other graph", "other machine"],
)
def test_a_remembered_audit_is_not_repeated(launches, environment, again):
    proof = Proof(key="k", verified_at="2026")
    counts = dict.fromkeys(AUDITED, 7) | {"cupti_launches": launches, "memcpys": {"DtoH": 1}}
    workers = with_auditor(auditor())
    workers.scripts["evaluate"] = one_launch
    workers.starts["evaluate"] = [Ready(factory.gpu_environment(), None, {})]
    machine = machine_hash(factory.gpu_environment(**environment))
    (cell,) = audited(workers, items(names="a", audits={"a": Audit(proof=proof, counts=counts)}, machine=machine))["a"]
    assert workers.asked["audit"] == [("a",)] * again
    assert (cell.audit, cell.metrics.eager_launches) == ((None, 1) if again else (proof, 7))


def test_another_number_of_launches_under_cupti_is_a_mismatch():
    workers = with_auditor(lambda item: iter([Audited("a", {"cupti_launches": 2})]))
    workers.scripts["evaluate"] = one_launch
    (found,) = audited(workers, items(names="a"))["a"]
    assert (found.status, found.finding.check, found.finding.when) == ("mismatch", "same_work", "audit")


@pytest.mark.parametrize(
    ("answer", "starts", "note"),
    [
        (Fatal("RuntimeError: no memory"), 1, "RuntimeError: no memory"),
        (AuditReady({}, {}, "CUPTI delivers nothing"), 1, "CUPTI delivers nothing"),
        (SILENT, 1, "did not respond for 600 s"),
        (DIED, MAX_STARTS, KILLED),
    ],
    ids=["refuses", "blocked", "silent", "dies"],
)
def test_a_run_without_an_auditor_says_so_in_its_notes_and_in_every_cell(answer, starts, note):
    workers = with_auditor(auditor(), [answer])
    workers.scripts["evaluate"] = evaluator(dies_verifying="b")
    with Session(Job("cuda", (), 0, Measure(), timed=True), workers) as session:
        outcomes = list(session.run(items()))
        first = session.ready.environment.notes
    (segment,) = segments_of(outcomes)
    assert first == segment.environment.notes  # a replaced worker gets the same note
    assert len(first) == 1
    assert note in first[0]
    unaudited = [one.metrics.no_audit for one in cells_of(outcomes) if one.metrics]
    assert len(unaudited) == 2
    assert all(note in one for one in unaudited)
    assert len(workers.started["audit"]) == starts
    assert workers.asked["audit"] == []


def test_who_kills_the_auditor_stays_unaudited_and_the_others_are_not():
    workers = with_auditor(auditor(dies="b"))
    found = audited(workers, items(MAX_DEATHS + 2))
    assert all(one.status == "passed" for of in found.values() for one in of)
    assert {one.metrics.no_audit for name in "ac" for one in found[name]} == {None}
    said = [one.metrics.no_audit for one in found["b"]]
    assert said[:MAX_DEATHS] == [KILLED] * MAX_DEATHS
    assert all(one.startswith("not run again") for one in said[MAX_DEATHS:])
    assert len(workers.started["audit"]) == 1 + MAX_DEATHS


def test_an_auditor_that_dies_between_two_points_costs_nothing_until_it_happens_too_often():
    deaths = [2, 3, 4]

    def script(item):
        if item.axes["n"] in deaths:
            deaths.remove(item.axes["n"])
            yield DIED
        yield from auditor()(item)

    found = audited(workers := with_auditor(script), items(5))
    assert [one.metrics.no_audit for one in found["a"][:3]] == [None] * 3
    assert all("while no variant was running" in one.metrics.no_audit for one in found["a"][3:])
    assert len(workers.started["audit"]) == MAX_UNATTRIBUTED_DEATHS


def test_an_auditor_that_cannot_be_started_again_leaves_the_rest_unaudited():
    found = audited(with_auditor(auditor(dies="a"), [AUDIT_READY, Fatal("gone")]), items())
    said = {name: of[0].metrics.no_audit for name, of in found.items()}
    assert said["a"] == KILLED
    assert "gone" in said["b"]
    assert "gone" in said["c"]


def test_an_auditor_in_place_of_one_that_died_calibrates_too():
    """It learns how often its traces wait, and so does not take its own waits for those of a variant."""
    blocked = AuditReady({}, {}, "CUPTI delivers nothing")
    found = audited(with_auditor(auditor(dies="a"), [AUDIT_READY, blocked]), items())
    assert found["b"][0].metrics.no_audit == "CUPTI delivers nothing"


def test_an_audit_that_never_comes_is_no_endless_loop():
    found = audited(with_auditor(lambda item: iter([Heartbeat("a", "audit")])), items())
    assert all(of[0].metrics.no_audit for of in found.values())


def test_every_point_is_yielded_before_the_next_one_begins():
    """A killed run loses the point under way and no more, although cells wait for their audit."""
    yielded, yielded_at = [], {}

    def script(item):
        yielded_at[item.axes["n"]] = len(yielded)
        yield from evaluator()(item)

    workers = FakeWorkers(script, audit=auditor(rejects="b"))
    with Session(Job("cuda", (), 0, Measure(), timed=True), workers) as session:
        for one in session.run(items(3)):
            yielded += [one] if isinstance(one, Cell) else []
    assert yielded_at == {1: 0, 2: 3, 3: 6}
    assert workers.asked["audit"] == [("a", "b", "c")] * 3


def test_cells_that_were_measured_before_another_variant_died_are_audited():
    """They belong to the process that died."""
    workers = FakeWorkers(evaluator(dies_late="c"), audit=auditor())
    found = {one.variant: one for one in cells_of(run(workers, items(), "cuda"))}
    assert {name: (one.status, one.process) for name, one in found.items()} == {
        "a": ("passed", 0),
        "b": ("passed", 0),
        "c": ("failed", 1),
    }
    assert workers.asked["audit"] == [("a", "b")]


# --- the outputs of timed launches ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("deaths", "status"), [(0, "mismatch"), (1, "mismatch"), (2, "failed")])
def test_a_wrong_output_costs_the_time_and_a_comparer_that_dies_is_asked_once_more(deaths, status):
    def writes(item):
        more = {"check_seed": item.check_seed, "what": "a call", "poison": 1, "contents": {"buffer": b"1234"}}
        yield Outputs(operator="o", variant="a", axes=item.axes, point=item.point, **more)
        yield from evaluator()(item)

    left = [DIED] * deaths

    def compares(outputs):
        if left:
            yield left.pop()
        found = {"status": Status.MISMATCH, "check": "exact", "when": "after_timing", "message": "a call: differs"}
        yield Compared("a", Finding(place=Place.POINT, name=outputs.point, **found))

    workers = FakeWorkers(writes, compare=compares)
    found = {one.variant: one for one in cells_of(run(workers, items()))}
    assert (found["a"].status, found["a"].metrics, found["a"].finding.when) == (status, None, "after_timing")
    assert found["b"].status == found["c"].status == "passed"
    assert len(workers.started["compare"]) == 1 + deaths
    assert Done() in workers.starts["compare"]
