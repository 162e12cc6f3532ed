"""A session with workers that die on cue: who is blamed, who is measured again, what is yielded, when it gives up."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec import structs

from spec_decode_bench.decode_loop.items import LoopItem
from spec_decode_bench.decode_loop.planning import plan_loops
from spec_decode_bench.harness.command.recording import Plan
from spec_decode_bench.harness.config.load import CONFIGS, Measure, load
from spec_decode_bench.harness.config.sweep import task_of
from spec_decode_bench.harness.config.work_items import Check, EdgeCases, Named, Result, Task, keys_of
from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.records.schema import Finding, Place, Proof, Status, Where
from spec_decode_bench.harness.records.sentences import ending
from spec_decode_bench.harness.session import side_by_side
from spec_decode_bench.harness.session.messages import AuditOf, AuditReady, Fatal, Heartbeat, Job, Ready
from spec_decode_bench.harness.session.session import RunError, Session
from spec_decode_bench.harness.session.supervised_worker import MAX_DEATHS, MAX_STARTS
from spec_decode_bench.harness.session.worker import WorkerDied
from tests import factory
from tests.fake_worker import (
    AUDIT_READY,
    KILLED,
    READY,
    SILENT,
    FakeWorkers,
    auditor,
    checked,
    evaluator,
    items,
    run,
    timed,
)

DIED, BLOCKED = WorkerDied(KILLED), AuditReady({}, {}, "CUPTI delivers nothing")


def drive(workers, plan, device="cpu", **measure):
    """({(variant, n): status}, cells, lines of further processes); each planned cell must be there once."""
    cells, processes = run(workers, plan, device, **measure)
    assert sorted(one.key for one in cells) == sorted(keys_of(plan)), "each cell once"
    assert {one.process for one in cells} <= {0, *(process.process for process in processes)}
    return {(one.variant, one.axes["n"]): one.status for one in cells}, cells, processes


def cells_of(cells, variant):
    return [one for one in cells if one.variant == variant]


# --- who is blamed for a death ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dies", ["dies_verifying", "dies_timed", "dies_late"])
def test_who_ends_its_process_fails_alone_and_not_for_ever(dies):
    workers = FakeWorkers(evaluator(**{dies: "b"}))
    fates, cells, processes = drive(workers, items(MAX_DEATHS + 2))
    assert {fate for (name, _), fate in fates.items() if name != "b"} == {"passed"}
    assert {fate for (name, _), fate in fates.items() if name == "b"} == {"failed"}
    first, *_, last = cells_of(cells, "b")
    assert (first.finding.check, first.finding.culprit, ending(first)) == ("no_crash", "o/b", KILLED)
    assert ending(last).startswith(f"not run again: it ended its process {MAX_DEATHS} times")
    assert {process.why for process in processes} == {KILLED}
    assert all(one.metrics is None for one in cells_of(cells, "b"))


def test_those_that_were_timed_again_have_the_process_that_timed_them():
    workers = FakeWorkers(evaluator(dies_timed="c"))
    assert [one.process for one in drive(workers, items())[1]] == [1, 1, 1]


def test_a_worker_that_dies_before_anybody_has_control_is_nobodys_fault():
    """Between two items it costs nobody a cell; where every one dies, they end all the same."""
    deaths = iter([True, False])

    def script(request):
        if isinstance(request, Check) and request.where.axes["n"] == 2 and next(deaths, False):
            yield DIED
        yield from evaluator()(request)

    assert set(drive(FakeWorkers(script, [DIED, DIED, READY]), items(3))[0].values()) == {"passed"}
    fates, cells, _ = drive(FakeWorkers(lambda request: iter([DIED])), items())
    assert set(fates.values()) == {"failed"}
    assert {one.finding.culprit for one in cells} == {None}


@pytest.mark.parametrize("fault", ["another", "twice", "none"])
def test_every_planned_cell_is_yielded_once_whatever_a_worker_answers(fault):
    """The first process answers wrongly and is replaced; the next one answers as asked."""
    faults = iter([True])

    def script(request):
        for event in evaluator()(request):
            wrong_here = isinstance(request, Task) and getattr(event, "variant", "") == "b"
            if not wrong_here or not next(faults, False):
                yield event
            elif fault == "twice":
                yield from (event, event)
            elif fault == "another":
                yield timed("z")

    fates, _, (process,) = drive(FakeWorkers(script), items(2))
    assert set(fates.values()) == {"passed"}
    assert process.why.startswith("the worker process was asked for a, b, c, and answered for ")


def test_a_stack_that_ends_the_process_costs_itself_alone(catalog):
    """Each block ends with a wait for the device, so the stack in control did it."""
    item = plan_loops(load(CONFIGS / "decode_loop.yaml"), catalog, ["chains", "fused"])[0]

    def script(request):
        if isinstance(request, Check):
            yield checked(request)
            return
        assert isinstance(request, LoopItem)
        for name in request.variants:
            yield Heartbeat((name,))
        if "fused" in request.variants:
            yield DIED
        yield from (request.line(name, Status.PASSED) for name in request.variants)

    lines, _ = run(FakeWorkers(script), [item])
    lines = {one.stack: one for one in lines}
    assert {name: (line.status, line.process) for name, line in lines.items()} == {
        "chains": ("passed", 1),
        "fused": ("failed", 0),
    }
    assert lines["fused"].finding.culprit == "fused"


def test_a_variant_of_a_stack_is_verified_once_for_loops_of_a_shape(catalog):
    loops = plan_loops(load(CONFIGS / "decode_loop.yaml"), catalog, ["chains", "fused"])[:2]
    wrong = loops[0].stacks[1].parts[0]

    def script(request):
        if not isinstance(request, Check):
            yield from (request.line(name, Status.PASSED) for name in request.variants)
        elif (request.operator, request.variants[0]) == wrong:
            yield checked(request, Status.MISMATCH, check="exact")
        else:
            yield checked(request)

    lines, _ = run(workers := FakeWorkers(script), loops)
    assert [(line.stack, line.status) for line in lines] == [("chains", "passed"), ("fused", "mismatch")] * 2
    assert {line.finding.variant for line in lines if line.finding} == {"/".join(wrong)}
    asked = workers.asked_to(Check)
    assert len(asked) == len(loops[0].stacks[0].parts) + 1


@pytest.mark.parametrize(("limited", "status"), [(False, "mismatch"), (True, "known failure")])
def test_a_death_in_verification_rejects_the_variant_and_names_the_place(limited, status):
    """What was found before stays."""

    def script(request):
        if request.variants == ("dies",):
            yield Heartbeat(("dies",), Where(Place.EDGE_CASE, "B = 1"))
            fine = Finding(status=Status.PASSED, place=Place.EDGE_CASE, name="B = 1")
            yield Result(operator="o", variant="dies", finding=fine)
            yield Heartbeat(("dies",), Where(Place.SEQUENCE, "shrinks"))
            yield DIED

    where = Named(name="B = 1", known_failure=True) if limited else EdgeCases()
    plan = [Check(operator="o", variants=("dies",), where=where), Check(operator="o", variants=("fine",))]
    outcomes, _ = run(FakeWorkers(script), plan)
    passed, died = [one.finding for one in outcomes]
    assert (passed.status, passed.name) == ("passed", "B = 1")
    assert (died.status, died.check, died.place, died.name) == (status, "no_crash", "sequence", "shrinks")
    assert (died.culprit, died.message) == ("o/dies", KILLED)


# --- what is remembered of who passed ---------------------------------------------------------------------------------


EDGE = {"place": Place.EDGE_CASE, "name": "B = 1"}


def test_edge_cases_run_once_in_a_session_also_where_its_process_died():
    """Of a variant that is rejected, too; one that was left out at a point has not run them."""
    asked = []

    def script(request):
        if not isinstance(request, Check):
            yield from evaluator(dies_timed="a")(request)
            return
        (name,), where = request.variants, request.where
        asked.append((name, where.axes["n"], where.passed, where.rejected and where.rejected.check))
        if name == "skips" and where.axes["n"] == 1:
            yield checked(request, Status.SKIPPED)
            return
        if not where.passed and where.rejected is None:
            found = {"status": Status.MISMATCH, "check": "exact"} if name == "wrong" else {"status": Status.PASSED}
            yield Result(operator="o", variant=name, finding=Finding(**EDGE, **found))
        if name == "wrong":
            yield from [Result(operator="o", variant=name, finding=where.rejected)] if where.rejected else []
            return
        yield checked(request)

    fates, _, _ = drive(FakeWorkers(script), items(2, ("a", "wrong", "skips")))
    assert fates["a", 1] == "failed"
    assert [fates["wrong", n] for n in (1, 2)] == ["mismatch"] * 2
    first, second = asked[:3], asked[3:]
    assert first == [("a", 1, False, None), ("wrong", 1, False, None), ("skips", 1, False, None)]
    assert second == [("a", 2, True, None), ("wrong", 2, False, "exact"), ("skips", 2, False, None)]


# --- time -------------------------------------------------------------------------------------------------------------


def test_the_seconds_of_a_cell_are_those_of_its_answers():
    def script(request):
        for event in evaluator()(request):
            own = {Check: {"compile": 1.0, "verify": 2.0}, Task: {"time": 3.0, "verify": 0.5}}[type(request)]
            yield structs.replace(event, seconds=own) if isinstance(event, Result) else event

    _, (cell,), _ = drive(FakeWorkers(script), items(names="a"))
    assert cell.seconds == {"compile": 1.0, "verify": 2.5, "time": 3.0}


@pytest.mark.parametrize(
    ("names", "dies", "budgets"), [("ab", "", [50, 80]), ("a", "a", [50, 100])], ids=["10 s each", "silence is free"]
)
def test_the_cells_that_are_left_share_the_time_that_is_left(names, dies, budgets):
    def script(request):
        yield from evaluator(dies_timed=dies if getattr(request, "point", "") == "n=1" else "")(request)

    drive(workers := FakeWorkers(script), items(2, names), time_budget_s=100)
    assert workers.budgets == budgets


def test_progress_counts_what_is_done_and_names_who_has_control():
    told = []
    with Session(Job("cpu", (), 0, Measure(), timed=True), FakeWorkers(evaluator())) as session:
        session.on_progress = lambda *progress: told.append(progress)
        list(session.run(items(2)))
    assert told[0] == (0, 6, "o/a n=1")
    assert (told[-1], sorted(done for done, *_ in told)) == ((6, 6, ""), [done for done, *_ in told])


# --- starting and ending ----------------------------------------------------------------------------------------------


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
    def script(request):
        yield from evaluator(dies_timed="b" if getattr(request, "point", "") == "n=2" else "")(request)

    workers, kept = FakeWorkers(script, [READY, Fatal("gone")]), []
    with pytest.raises(RunError, match="gone"), Session(Job("cpu", (), 0, Measure(), timed=True), workers) as session:
        kept.extend(iter(session.run(items(2)).__next__, None))
    assert workers.closed["evaluate"] == 2


def rejects(*wrong, dies=()):
    """An evaluator that verifies all, of which some are wrong."""

    def script(request):
        name = request.variants[0]
        if not isinstance(request, Check):
            yield from evaluator()(request)
        elif name in dies:
            yield from (Heartbeat((name,)), WorkerDied(KILLED))
        elif name in wrong:
            finding = Finding(**EDGE, status=Status.MISMATCH, check="exact")
            yield Result(operator="o", variant=name, finding=finding)
        else:
            yield checked(request)

    return script


def test_until_one_is_wrong_new_variants_are_verified_before_the_calibration():
    names = ("proven", "right", "wrong", "dies")
    plan = items(2, names=names, proven={"proven": Proof(key="k", verified_at="2026")})
    workers = FakeWorkers(rejects("wrong", dies=("dies",)))
    with Session(Job("cpu", (), 0, Measure(), timed=True), workers) as session:
        processes = []
        session.on_process = processes.append
        told = {checked.variant: checked.finding.check for checked in session.verify_first(plan, {"o/right"})}
        assert workers.asked_to(Check) == [("right",), ("wrong",), ("dies",)]
        cells = list(session.run(plan))
    assert told == {"wrong": "exact", "dies": "no_crash"}
    # The record begins after it, so it knows one process, and does not run again what ended one before it.
    assert processes == []
    assert [(cell.status, cell.finding.check) for cell in cells_of(cells, "dies")] == [("failed", "no_crash")] * 2
    assert ("dies",) not in workers.asked_to(Check)[3:]


@pytest.mark.parametrize("decisive", ["wrong", "right"])
def test_nothing_is_calibrated_where_nothing_will_be_timed(decisive):
    fakes, made = FakeWorkers(rejects("wrong")), {}
    plan = items(names=("wrong", "right"))
    with Session(
        Job("cuda", (), 0, Measure(), timed=True), lambda job: made.setdefault(job.role, fakes(job))
    ) as session:
        assert [checked.variant for checked in session.verify_first(plan, {f"o/{decisive}"})] == ["wrong"]
        assert ("CUPTI" in session.ready.seconds) == (decisive == "right")
    assert made["evaluate"].timed == (decisive == "right")


@pytest.mark.parametrize("ends", ["", "dies", "no memory"])
@pytest.mark.parametrize("wrong", ["", "other"])
def test_on_a_gpu_processes_verify_beside_each_other_before_anything_is_timed(monkeypatch, ends, wrong):
    """What one found is not asked again, except of a variant that ended its process or had no memory there."""
    monkeypatch.setattr(side_by_side, "processes", lambda: 2)
    happened, first_time = [], [True]

    def script(request):
        happened.append(request)
        if not isinstance(request, Check) or not isinstance(request.where, EdgeCases):
            yield from rejects(wrong)(request)
        elif request.variants == ("new",) and ends and first_time.pop():
            yield Heartbeat(request.variants)
            yield DIED if ends == "dies" else checked(request, Status.FAILED, error="OutOfMemoryError")
        else:
            (found,) = rejects(wrong)(request)
            yield structs.replace(found, seconds={"compile": 30.0, "verify": 10.0})

    workers = FakeWorkers(script, audit=auditor())
    names = ("proven", "new", "other")
    plan = items(2, names=names, proven={"proven": Proof(key="k", verified_at="2026")})
    job = Job("cuda", (), 0, Measure(), timed=True)
    with Session(job, workers) as session:
        assert [found.variant for found in session.verify_first(plan, ())] == ["other"] * bool(wrong)
        seconds = session.ready.seconds
        cells = list(session.run(plan))
    assert {cell.variant: cell.status for cell in cells} == {
        name: Status.MISMATCH if name == wrong else Status.PASSED for name in names
    }
    first = [request for request in happened if isinstance(request, Check) and isinstance(request.where, EdgeCases)]
    assert happened[: len(first)] == first
    assert sorted(request.variants for request in first) == [("new",), ("other",)]
    replaced = ends == "dies"
    assert [job.timed for job in workers.started["evaluate"]] == [True] + [False] * (2 + replaced)
    assert seconds["compile"] + seconds["verify"] < 1, "what passed, not what all of them took together"
    later = [request.where for request in happened[2:] if isinstance(request, Check)]
    assert all(where.passed != bool(where.rejected) for where in later if not where.proven) or ends


def test_variants_that_take_none_of_their_points_are_not_verified_first():
    chain = discover(operators=("decode_native",)).find("decode_native", "chain_clamp")
    skips = {
        "never": lambda p: "no",
        "small": lambda p: "no" if p.batch_size > 1 else "",
        "broken": lambda p: p.nothing,
    }
    operator = discover(operators=("decode_native",)).operators["decode_native"]
    variants = {name: replace(chain, name=name, skip=skip) for name, skip in skips.items()}
    catalog = SimpleNamespace(find=lambda operator, name: variants[name])
    plan = [task_of(operator, operator.complete({"batch_size": size}), variants.values()) for size in (1, 2)]
    job = Job("cuda", (), 0, Measure(), timed=True)
    to_run = Plan(None, job, catalog, plan, plan, {}, None, None, None, None).that_run(plan)
    assert [item.variants for item in to_run] == [("small", "broken"), ("broken",)]


def test_without_further_processes_variants_are_verified_at_their_first_cell(monkeypatch):
    monkeypatch.setattr(side_by_side, "processes", lambda: 2)
    workers = FakeWorkers(evaluator(), [READY, Fatal("the GPU is in exclusive mode")], audit=auditor())
    with Session(Job("cuda", (), 0, Measure(), timed=True), workers) as session:
        assert not list(session.verify_first(items(), ()))
        assert {cell.status for cell in session.run(items())} == {Status.PASSED}


def test_a_worker_that_dies_before_the_record_begins_leaves_the_sources_to_the_next():
    workers = FakeWorkers(rejects(dies="b"))
    job = Job("cpu", (), 0, Measure(), timed=True, compiled=(Path("b.cu"),))
    with Session(job, workers) as session:
        assert [checked.variant for checked in session.verify_first(items(), {"o/a"})] == ["b"]
    assert [job.compiled for job in workers.started["evaluate"]] == [(Path("b.cu"),)] * 2


# --- the audit --------------------------------------------------------------------------------------------------------


def audited(workers, plan):
    """Variant -> its cells, in the order of the plan."""
    found = {}
    for one in drive(workers, plan, "cuda")[1]:
        found.setdefault(one.variant, []).append(one)
    return found


def with_auditor(script, answers=(AUDIT_READY,), launches=None):
    workers = FakeWorkers(evaluator(launches=launches), audit=script)
    workers.starts["audit"] = list(answers)
    return workers


def counts_launches(count):
    def script(request):
        if isinstance(request, AuditOf):
            metrics = structs.replace(request.timed.metrics, cupti_launches=count)
            yield structs.replace(request.timed, metrics=metrics)

    return script


@pytest.mark.parametrize(
    ("workers", "status", "check", "no_audit"),
    [
        (with_auditor(auditor()), "passed", None, None),
        (with_auditor(auditor(rejects="b")), "mismatch", "no_sync", None),
        (with_auditor(counts_launches(2), launches=1), "mismatch", "same_work", None),
        (with_auditor(lambda request: [Heartbeat(request.variants)]), "passed", None, ""),
        (with_auditor(auditor(dies="a"), [AUDIT_READY, BLOCKED]), "passed", None, "CUPTI delivers nothing"),
    ],
    ids=["agrees", "rejects", "counts other launches", "never answers", "is replaced by one that cannot calibrate"],
)
def test_what_the_auditor_found_of_a_cell_is_joined(workers, status, check, no_audit):
    (cell,) = audited(workers, items())["b"]
    assert (cell.status, cell.finding.check if status == "mismatch" else None) == (status, check)
    assert (cell.metrics is None) == (status == "mismatch")
    if status == "passed":
        assert (cell.metrics.no_audit is None) == (no_audit is None) == (cell.metrics.eager_launches == 1)
        assert (no_audit or "") in (cell.metrics.no_audit or "")


def test_cupti_times_the_calibration_kernels_too():
    calibration, workers = factory.calibration(np.random.default_rng(0)), with_auditor(auditor())
    workers.starts["evaluate"] = [Ready(factory.gpu_environment(), calibration, {})]
    with Session(Job("cuda", (), 0, Measure(), timed=True), workers) as session:
        joined = session.ready.calibration
    assert session.ready.environment.notes == ()
    assert (joined.own["null"].cupti_us, joined.spins[1000].cupti_us) == ([0.7], [1.7])
    assert joined.own["null"].graph_us == calibration.own["null"].graph_us


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        (Fatal("RuntimeError: no memory"), "RuntimeError: no memory"),
        (BLOCKED, "CUPTI delivers nothing"),
        (SILENT, "did not respond for 600 s"),
        (DIED, KILLED),
    ],
    ids=["refuses", "blocked", "silent", "dies"],
)
def test_a_run_without_an_auditor_says_so_in_its_notes_and_in_every_cell(answer, note):
    workers = with_auditor(auditor(), [answer])
    workers.scripts["evaluate"] = evaluator(dies_verifying="b")
    segments = []
    with Session(Job("cuda", (), 0, Measure(), timed=True), workers) as session:
        session.on_process = segments.append
        cells = list(session.run(items()))
        first = session.ready.environment.notes
    (segment,) = segments
    assert first == segment.environment.notes  # a replaced worker gets the same note
    assert len(first) == 1
    assert note in first[0]
    unaudited = [one.metrics.no_audit for one in cells if one.metrics]
    assert len(unaudited) == 2
    assert all(note in one for one in unaudited)


def test_who_kills_the_auditor_stays_unaudited_and_the_others_are_not():
    workers = with_auditor(auditor(dies="b"))
    found = audited(workers, items(MAX_DEATHS + 2))
    assert all(one.status == "passed" for of in found.values() for one in of)
    assert {one.metrics.no_audit for name in "ac" for one in found[name]} == {None}
    said = [one.metrics.no_audit for one in found["b"]]
    assert said[:MAX_DEATHS] == [KILLED] * MAX_DEATHS
    assert all(one.startswith("not run again") for one in said[MAX_DEATHS:])


def test_every_point_is_yielded_before_the_next_one_begins():
    """A killed run loses the point under way and no more, although cells wait for their audit."""
    yielded, yielded_at = [], {}

    def script(request):
        if isinstance(request, Task):
            yielded_at[request.axes["n"]] = len(yielded)
        yield from evaluator()(request)

    workers = FakeWorkers(script, audit=auditor(rejects="b"))
    with Session(Job("cuda", (), 0, Measure(), timed=True), workers) as session:
        for one in session.run(items(3)):
            yielded.append(one)
    assert yielded_at == {1: 0, 2: 3, 3: 6}
