"""A session: runs work items in the worker processes of one GPU, or of the CPU, and yields their outcomes.

It lives in the parent process, which never touches the device. Two more processes compare and audit timed cells before
the session yields them.
"""

from __future__ import annotations

import datetime
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from spec_decode_bench.harness import registry
from spec_decode_bench.harness.analysis import estimators
from spec_decode_bench.harness.config.work_items import Cells, Check, Checked, WorkItem
from spec_decode_bench.harness.records.schema import (
    SCHEMA_VERSION,
    Audit,
    Calibration,
    Cell,
    Environment,
    Finding,
    Header,
    Outcome,
    Place,
    Proof,
    Segment,
    Status,
    rounded,
)
from spec_decode_bench.harness.session.attribution import FaultAttribution, on_death
from spec_decode_bench.harness.session.messages import Audited, AuditReady, Compared, Heartbeat, Job, Outputs, Ready
from spec_decode_bench.harness.session.proofs import machine_hash
from spec_decode_bench.harness.session.supervised_worker import MAX_DEATHS, SupervisedWorker
from spec_decode_bench.harness.session.worker import RunError, Worker, WorkerDied, start_worker
from spec_decode_bench.harness.wording import counted

#: The audit is dropped for the rest of the run after this many deaths while no variant had control.
MAX_UNATTRIBUTED_DEATHS = 3
#: As many variants as an author edits together; more are verified when their first cells come.
MOST_VERIFIED_FIRST = 4


@dataclass(frozen=True)
class Progress:
    """For the console: how many outcomes there are, of how many, and the current activity."""

    done: int
    total: int
    doing: str


#: What a session yields.
Event = Outcome | Checked | Segment | Progress


class Session:
    """A context manager: entering it starts the processes, leaving it ends them.

    start:       makes a process for a job.
    environment: of the first process, before the calibration.
    timing_s:    seconds for which variants were timed.
    """

    environment: Environment
    timing_s: float = 0.0

    def __init__(self, job: Job, start: Callable[[Job], Worker] = start_worker) -> None:
        registry.load(job.rooms)  # in the process of a cluster's node
        self._job, self._start = job, start
        self._audits = job.timed and job.device == "cuda" and job.measure.audit and not job.brief
        self._compares = job.timed
        self._workers: list[SupervisedWorker] = []
        self._auditor: SupervisedWorker | None = None
        self._comparer: SupervisedWorker | None = None
        self._cupti: AuditReady | None = None
        self._no_audit: str | None = None
        self._begun: set[str] = set()
        #: False where every variant is known to be wrong.
        self._times = True
        self._process = 0
        self._ready: Ready | None = None

    def __enter__(self) -> Session:
        self._began = time.monotonic()
        try:
            # They bring the device up at the same time, and calibrate one after the other.
            self._evaluator = self._started("evaluate")
            self._auditor = self._started("audit") if self._audits else None
            self._comparer = self._started("compare") if self._compares else None
            self.environment = self._evaluator.wait_until_up().environment
            self._machine = machine_hash(self.environment)
        except BaseException:
            self.close(0)
            raise
        return self

    def __exit__(self, error: type | None, *_: Any) -> None:
        self.close(30.0 if error is None else 0)

    @property
    def ready(self) -> Ready:
        """What the first process says of the device once it is calibrated, which the first use waits for, with the
        auditor's times. Raises RunError.
        """
        if self._ready is None:
            self._ready = self._wait_until_ready(self._began)
        return self._ready

    def verify_first(self, items: Sequence[WorkItem], until_wrong: bool = False) -> Iterator[Checked]:
        """What is wrong with variants of ``items`` without a proof, if they are few: a wrong kernel is told before the
        timer is calibrated. What passed is not verified again. until_wrong: however many they are, and however slow;
        if some are wrong, nothing will be timed.
        """
        unproven = dict.fromkeys(
            (item.operator, name)
            for item in items
            if isinstance(item, Cells)
            for name in item.variants
            if name not in item.proven and (until_wrong or name not in item.slow)
        )
        if not unproven or (len(unproven) > MOST_VERIFIED_FIRST and not until_wrong):
            return
        if self._auditor:  # it loads and compiles meanwhile; its results are dropped
            operator, name = next(iter(unproven))
            item = next(item for item in items if isinstance(item, Cells) and item.operator == operator)
            self._auditor.prepare(item.of([name for of, name in unproven if of == operator]))
        wrong = set()
        for operator, name in unproven:
            for event in self._others(Check(operator=operator, variants=(name,))):
                if isinstance(event, Checked):
                    wrong.add((operator, name))
                    yield event
        self._times = not (until_wrong and wrong) and any(
            not isinstance(item, Cells) or any((item.operator, name) not in wrong for name in item.variants)
            for item in items
        )
        if not self._times:
            self._auditor, self._no_audit = None, "every variant was wrong"
        elif self._auditor and wrong:  # which may hang, or have ruined the process
            self._auditor.restart()

    def run(self, items: Sequence[WorkItem]) -> Iterator[Event]:
        """The outcomes of all items, in order. The remaining cells share the time budget. A variant that ends its
        process fails alone: the process is replaced and runs the others again.
        """
        _ = self.ready
        total = left = sum(len(item.variants) for item in items)
        for item in items:
            if isinstance(item, Cells) and item.budget_s is None:
                budget_left_s = max(self._job.measure.time_budget_s - self.timing_s, 0.0)
                item = structs.replace(item, budget_s=budget_left_s * len(item.variants) / left)
            left -= len(item.variants)
            done = total - left - len(item.variants)
            for outcome in self._cells(item) if isinstance(item, Cells) else self._others(item):
                if isinstance(outcome, Outcome):
                    done += 1
                elif isinstance(outcome, Heartbeat):
                    outcome = Progress(done, total, f"{item.id_of(outcome.variant)} {item.label}".rstrip())
                yield outcome
        yield Progress(total, total, "")

    def close(self, wait_s: float = 30.0) -> None:
        """End all processes, after up to ``wait_s`` seconds to finish on their own."""
        if wait_s:
            for worker in self._workers:
                worker.request_exit()
        for worker in self._workers:
            worker.close(wait_s)

    # --- items --------------------------------------------------------------------------------------------------------

    def _cells(self, item: Cells) -> Iterator[Cell | Segment | Heartbeat]:
        """Verify and time the variants of a point, compare what they wrote, audit those that were timed."""
        item = structs.replace(item, check_seed=secrets.randbelow(2**31))
        if self._comparer:
            self._comparer.prepare(item)
        wrong: dict[str, Finding] = {}
        comparing_s: Counter[str] = Counter()
        for batch in self._batches(item):
            to_audit: list[Cell] = []
            for event in self._settled(self._evaluator, item, batch):
                if isinstance(event, Outputs):
                    if event.variant not in wrong:
                        began = time.monotonic()
                        if finding := self._compared(event):
                            wrong[event.variant] = finding
                        comparing_s[event.variant] += time.monotonic() - began
                elif isinstance(event, Cell):
                    seconds = _with(event.seconds, "verify", comparing_s[event.variant])
                    event = structs.replace(event, process=self._process, seconds=seconds)
                    if finding := wrong.get(event.variant):
                        event = structs.replace(event, status=finding.status, finding=finding, metrics=None)
                    if not (self._audits and event.was_timed):
                        yield event
                    elif audit := self._remembered_audit(item, event):
                        yield _with_counts(event, audit.counts, audit.proof)
                    else:
                        to_audit.append(event)
                else:
                    yield event
            yield from self._audited(item, to_audit)  # after every batch, so that no cell waits for torch.compile

    def _batches(self, item: Cells) -> list[list[str]]:
        """At the first point of an operator, variants that are slow to verify run after the others, so that those are
        timed without waiting. At later points, or if a proof stands for the verification, all run together.
        """
        first = item.operator not in self._begun
        self._begun.add(item.operator)
        slow = set(item.slow) - set(item.proven) if first and self._job.timed else ()
        parts = [name for name in item.variants if name not in slow], [name for name in item.variants if name in slow]
        return [part for part in parts if part]

    def _others(self, item: WorkItem) -> Iterator[Checked | Outcome | Segment | Heartbeat]:
        # A variant may have any number of findings, and of one that was asked again they would come twice.
        parts = [item.of([name]) for name in item.variants] if isinstance(item, Check) else [item]
        for part in parts:
            for event in self._settled(self._evaluator, part, part.variants):
                yield structs.replace(event, process=self._process) if isinstance(event, Outcome) else event

    def _compared(self, outputs: Outputs) -> Finding | None:
        """The finding about wrong outputs of a timed launch; None if they are right."""
        events = self._settled(self._comparer, outputs, outputs.variants)
        return next((event.finding for event in list(events) if isinstance(event, Compared)), None)

    def _remembered_audit(self, item: Cells, cell: Cell) -> Audit | None:
        """An earlier audit of the cell, of this kind of machine, that saw as many operations as its graph holds now."""
        audit = item.audits.get(cell.variant)
        if audit is None or item.machine != self._machine:
            return None
        return audit if cell.metrics.launches in (None, audit.counts["cupti_launches"]) else None

    def _audited(self, item: Cells, cells: Sequence[Cell]) -> Iterator[Cell]:
        """The cells with the auditor's results. A cell that cannot be audited is kept, with the reason."""
        if not cells:
            return
        last, pending = time.monotonic(), {cell.variant: cell for cell in cells}
        if self._no_audit is None:
            try:
                for event in self._settled(self._auditor, item, list(pending)):
                    if isinstance(event, Audited):
                        cell = pending.pop(event.variant)
                        now, before = time.monotonic(), last
                        last = now
                        seconds = _with(cell.seconds, "audit", now - before)
                        yield structs.replace(_with_audit(cell, event), seconds=seconds)
                    elif isinstance(event, Cell):
                        yield _unaudited(pending.pop(event.variant), event.finding.message)
            except RunError as error:
                if self._no_audit is None:
                    self._give_up_audit(str(error))
        for cell in pending.values():
            yield _unaudited(cell, self._no_audit or "the second process did not answer")

    def _settled(self, worker: SupervisedWorker, item: Any, batch: Collection[str]) -> Iterator[Any]:
        """The events of some variants of an item; of a variant that ended the process, or may not run again because it
        did so too often, the outcome that ``item.failed`` makes. Raises RunError where the process cannot be replaced.
        """
        pending, died_before, batches = list(batch), False, [list(batch)]
        for name in batch:
            if deaths := worker.excluded(item.id_of(name)):
                text = f"not run again: it ended its process {counted(deaths.count, 'time')}; {deaths.last_reason}"
                pending.remove(name)
                yield item.failed(name, check="no_crash", message=text, deaths=deaths.count)
        while batches:
            asked = [name for name in batches.pop(0) if name in pending]
            if not asked:
                continue
            death = None
            try:
                for event in worker.ask(item.of(asked)):
                    if isinstance(event, Outcome | Audited | Compared):
                        if event.variant not in pending:
                            raise WorkerDied(f"the worker process sent {event.variant}, which was not requested")
                        pending.remove(event.variant)
                    yield event
                lost = [name for name in asked if name in pending]
                if lost and not isinstance(item, Check):  # of which any number of findings may come
                    raise WorkerDied(f"the worker process finished without an outcome for {', '.join(lost)}")
            except WorkerDied as error:
                death = error
            if worker is self._evaluator:
                self.timing_s += worker.attribution.timing_s
            if death is None:
                continue
            attribution = worker.attribution
            failed, again = on_death(asked, attribution, died_before)
            batches[:0] = again
            if attribution.culprit is None:
                died_before = True
                worker.unattributed_deaths += 1
            if failed is not None:
                worker.blame(item.id_of(failed), death, most=MAX_DEATHS if self._ready else 1)
                if failed in pending:
                    pending.remove(failed)
                    yield item.failed(failed, **_blame(item, attribution, death))
            yield from self._replaced(worker, death)

    # --- processes ----------------------------------------------------------------------------------------------------

    def _started(self, role: str) -> SupervisedWorker:
        worker = SupervisedWorker(replace(self._job, role=role), self._start)
        worker.begin()
        self._workers.append(worker)
        return worker

    def _wait_until_ready(self, began: float) -> Ready:
        """began: when the process was started, by time.monotonic()."""
        cupti_s = 0.0
        self._evaluator.wait_until_up()
        if self._auditor and self._no_audit is None:
            up = time.monotonic()
            try:  # nothing that it does to the device from here on is unsolicited
                self._auditor.wait_until_up()
            except RunError as error:
                self._give_up_audit(str(error))
            cupti_s = time.monotonic() - up
        ready = self._evaluator.wait_until_ready(self._times)
        if self._auditor:
            calibrated = time.monotonic()
            if self._cupti is None and self._no_audit is None:
                self._calibrate_auditor()
            ready = self._joined(ready)
            cupti_s += time.monotonic() - calibrated
        rest = time.monotonic() - began - cupti_s - sum(ready.seconds.values())
        cupti = {"CUPTI": cupti_s} if self._auditor else {}
        return structs.replace(ready, seconds=rounded({"start": max(rest, 0.0), **ready.seconds, **cupti}))

    def _replaced(self, worker: SupervisedWorker, death: WorkerDied) -> Iterator[Segment]:
        """Start a process anew. Before the first calibration the record does not know the one that died."""
        began = time.monotonic()
        if worker is self._auditor:
            if worker.unattributed_deaths >= MAX_UNATTRIBUTED_DEATHS:
                raise RunError(f"the second process died while no variant was running: {death}")
            worker.restart()
            self._calibrate_auditor()
            if self._no_audit is not None:
                raise RunError(self._no_audit)
            return
        worker.restart(compiles=self._ready is None)
        if worker is self._evaluator and self._ready is not None:
            self._process += 1
            yield segment(self._wait_until_ready(began), str(death), self._job.measure.cache, self._process)
        else:
            worker.wait_until_up()

    def _calibrate_auditor(self) -> None:
        """Where it cannot be, nothing is audited any more."""
        try:
            answer = self._auditor.wait_until_ready()
        except RunError as error:
            self._give_up_audit(str(error))
            return
        if answer.blocked is not None:
            self._give_up_audit(answer.blocked)
        else:
            self._cupti = answer

    def _give_up_audit(self, reason: str) -> None:
        self._no_audit = reason
        self._auditor.close(wait_s=0)

    def _joined(self, ready: Ready) -> Ready:
        """The evaluator's answer with CUPTI's times of the calibration kernels, or with a note why there are none."""
        if self._no_audit is not None:
            notes = (*ready.environment.notes, f"not audited: {self._no_audit}")
            return structs.replace(ready, environment=structs.replace(ready.environment, notes=notes))
        return structs.replace(ready, calibration=_with_cupti(ready.calibration, self._cupti))


def _blame(item: Any, attribution: FaultAttribution, death: WorkerDied) -> dict[str, Any]:
    """Fields of the Finding of a death."""
    culprit = attribution.culprit
    fields = {"check": "no_crash", "message": str(death), "culprit": None if culprit is None else item.id_of(culprit)}
    if (at := attribution.heartbeat) is not None and at.place is not None:
        fields |= {"place": at.place, "name": at.name, "buffers": at.buffers, "seed": at.seed}
    return fields


# --- calibration and audit --------------------------------------------------------------------------------------------


def _with_cupti(calibration: Calibration | None, answer: AuditReady) -> Calibration | None:
    if calibration is None:
        return None
    spins = {ns: structs.replace(times, **answer.spins.get(ns, {})) for ns, times in calibration.spins.items()}
    own = {name: structs.replace(times, **answer.own.get(name, {})) for name, times in calibration.own.items()}
    return structs.replace(calibration, spins=spins, own=own)


def _with_audit(cell: Cell, audit: Audited) -> Cell:
    finding = audit.finding
    if finding is None:
        launches = (cell.metrics.launches, audit.counts["cupti_launches"])
        if None in launches or launches[0] == launches[1]:
            return _with_counts(cell, audit.counts)
        message = f"its graph holds {launches[0]} operations, CUPTI saw {launches[1]}"
        failure = {"status": Status.MISMATCH, "when": "audit", "check": "same_work", "message": message}
        finding = Finding(place=Place.POINT, name=cell.point, **failure)
    return structs.replace(cell, status=finding.status, finding=finding, metrics=None)


def _with_counts(cell: Cell, counts: dict[str, Any], proof: Proof | None = None) -> Cell:
    return structs.replace(cell, metrics=structs.replace(cell.metrics, **counts), audit=proof)


def _with(seconds: dict[str, float], activity: str, more_s: float) -> dict[str, float]:
    return rounded(seconds | {activity: seconds.get(activity, 0.0) + more_s}) if more_s else seconds


def _unaudited(cell: Cell, reason: str) -> Cell:
    return structs.replace(cell, metrics=structs.replace(cell.metrics, no_audit=reason))


# --- lines of the record ----------------------------------------------------------------------------------------------


def utc_now() -> datetime.datetime:
    """To the second, as records have it."""
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def header(ready: Ready, config: dict[str, Any], **plan: Any) -> Header:
    """The first line of a record. config: as plain values. plan: the other fields of Header."""
    return Header(
        schema=SCHEMA_VERSION,
        name=config["name"],
        config=config,
        started=utc_now().isoformat(),
        environment=ready.environment,
        calibration=ready.calibration,
        uncalibrated=calibration_errors(ready, config["measure"]["cache"]),
        compiled=ready.compiled,
        seconds=ready.seconds,
        **plan,
    )


def segment(ready: Ready, why: str, cache: str, process: int) -> Segment:
    """The line of a further process."""
    return Segment(
        process=process,
        started=utc_now().isoformat(),
        why=why,
        environment=ready.environment,
        calibration=ready.calibration,
        uncalibrated=calibration_errors(ready, cache),
        seconds=ready.seconds,
    )


def calibration_errors(ready: Ready, cache: str) -> tuple[str, ...]:
    """Why the timer of a worker is not calibrated; empty where it is, and on a CPU."""
    return estimators.calibration_errors(ready.calibration, cache) if ready.calibration else ()
