"""The loop of a run: measure one point after the other, have its cells audited, and write each of them at once.

Runs in the parent process, which never touches the device.
"""

from __future__ import annotations

import datetime
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from harness import interpreter
from harness.analysis import estimators
from harness.config.sweep import Group
from harness.contract import COMPILER, Variant
from harness.records.schema import SCHEMA_VERSION, Cell, Header, Segment, Status
from harness.runner.audit_client import AuditClient
from harness.runner.output_check import OutputCheck
from harness.runner.protocol import CheckRequest, Job, Outputs, RandomRequest, Ready, Rejection, Task
from harness.runner.supervised_worker import MAX_DEATHS, SupervisedWorker
from harness.runner.worker import RunError, Worker, WorkerDied


@dataclass(frozen=True)
class Progress:
    """For the console: cells finished of all, and the variant that has control."""

    done: int
    total: int
    doing: str


@dataclass
class WallTime:
    """Seconds of a run by activity. verifying includes compilation; auditing is None where nothing is audited."""

    starting: float = 0.0
    verifying: float = 0.0
    timing: float = 0.0
    auditing: float | None = None

    @property
    def total(self) -> float:
        return sum(self.by_activity().values())

    def by_activity(self) -> dict[str, float]:
        return {activity: seconds for activity, seconds in vars(self).items() if seconds is not None}


@dataclass
class _Point:
    """One group while it is measured.

    pending:  variants without a cell yet.
    batches:  variants to ask for together, in this order; those without a cell of them.
    to_audit: cells that wait for their audit.
    """

    group: Group
    pending: list[str]
    batches: list[list[str]] = field(default_factory=list)
    to_audit: list[Cell] = field(default_factory=list)
    died_without_culprit: bool = False


class Runner:
    """Drives the evaluator's process over the groups of a plan and, on a GPU, the auditor's process beside it.

    on_line:     called with every Cell as soon as it is known, and with a Segment when a worker was replaced.
    on_progress: called whenever a variant gets control.
    start:       makes a process for a job.
    ready:       the evaluator's answer to the job, with the auditor's times joined to it.
    """

    def __init__(
        self,
        job: Job,
        on_line: Callable[[Cell | Segment], None],
        on_progress: Callable[[Progress], None],
        start: Callable[[Job], Worker] | None = None,
    ) -> None:
        start = start or Worker
        self._measure_config = job.measure
        self._on_line, self._on_progress = on_line, on_progress
        self._done = self._total = 0
        self._at_capacity = False
        self._begun: set[str] = set()
        self._device, self._timed, self._verified = job.device, job.timed, job.verified
        audited = job.timed and job.device == "cuda" and job.measure.audit and not job.verified
        self.wall_time = WallTime(auditing=0.0 if audited else None)
        # They bring the device up at the same time, and calibrate one after the other.
        self._worker = SupervisedWorker(job, start)
        self._audit_client = AuditClient(SupervisedWorker(replace(job, role="audit"), start)) if audited else None
        self._output_check = OutputCheck(SupervisedWorker(replace(job, role="compare"), start)) if job.timed else None
        self.ready = self._wait_until_ready()

    def run(self, groups: Sequence[Group], at_capacity: bool = False) -> None:
        """All groups in order. The time budget is divided among the remaining cells. Raises RunError."""
        self._at_capacity = at_capacity
        cells_left = self._total = sum(len(group.variants) for group in groups)
        self._done = 0
        for group in groups:
            budget_left_s = max(self._measure_config.time_budget_s - self.wall_time.timing, 0.0)
            self.point(group, budget_left_s * len(group.variants) / cells_left)
            cells_left -= len(group.variants)
        self._on_progress(Progress(self._total, self._total, ""))

    def point(self, group: Group, budget_s: float) -> None:
        """One group: verify, time for ``budget_s`` seconds, audit, and write its cells. Raises RunError.

        A variant that kills its process fails alone: the process is replaced, and asked for the others again.
        """
        began, wall_time = time.monotonic(), self.wall_time.total
        point = _Point(group, self._without_excluded(group))
        point.batches = self._batches(group, point.pending)
        while point.batches:
            batch = [name for name in point.batches.pop(0) if name in point.pending]
            if not batch:
                continue
            death = None
            try:
                self._ask_for(point, batch, budget_s * len(batch) / len(group.variants))
            except WorkerDied as error:
                death = error
                self._settle_blame(point, batch, death)
            self.wall_time.timing += self._worker.attribution.timing_s
            self._audit_and_write(point)
            if death is not None:
                self._restart(str(death))  # after the cells of the process that died
        self.wall_time.verifying += time.monotonic() - began - (self.wall_time.total - wall_time)

    def ask(self, request: CheckRequest | RandomRequest) -> list[Any]:
        """Findings of one variant. A dead worker is replaced, and WorkerDied passed on."""
        try:
            return list(self._worker.ask(request))
        except WorkerDied as death:
            self._restart(str(death))
            raise

    def close(self, wait_s: float = 30.0) -> None:
        """End all processes; they get ``wait_s`` seconds to finish by themselves."""
        clients = [client for client in (self._worker, self._audit_client, self._output_check) if client]
        if wait_s:
            for client in clients:
                client.request_exit()
        for client in clients:
            client.close(wait_s)

    # --- one point ----------------------------------------------------------------------------------------------------

    def _batches(self, group: Group, names: Sequence[str]) -> list[list[str]]:
        """At the first point of an operator the variants that take long to verify come behind the others, whose times
        need not wait for them. From the second one on, and where another run has verified them, all take turns.
        """
        first = group.operator.name not in self._begun
        self._begun.add(group.operator.name)
        slow = {variant.name for variant in group.variants if is_slow_to_verify(variant, self._device)}
        if not (first and self._timed) or self._verified:
            slow = set()
        parts = [name for name in names if name not in slow], [name for name in names if name in slow]
        return [part for part in parts if part]

    def _without_excluded(self, group: Group) -> list[str]:
        """The variants to run; those that ended their process too often get their cells right away."""
        to_run = []
        for variant in group.variants:
            if deaths := self._worker.excluded(variant.id):
                reason = f"not run again, it ended its process {MAX_DEATHS} times: {deaths.last_reason}"
                self._done += 1
                self._on_line(group.cell(variant.name, Status.FAILED, reason))
            else:
                to_run.append(variant.name)
        return to_run

    def _ask_for(self, point: _Point, batch: Sequence[str], budget_s: float) -> None:
        """Ask for some variants together and take their cells. Raises WorkerDied, also for an answer without a cell of
        each of them.
        """
        group = point.group
        seed = secrets.randbelow(2**31)
        task = Task(
            group.operator.name, dict(group.point), tuple(batch), budget_s, self._at_capacity, seed, group.baseline
        )
        if self._output_check:
            self._output_check.prepare(task)
        rejections: dict[str, Rejection] = {}
        for event in self._worker.ask(task):
            if isinstance(event, Outputs):
                if event.variant not in rejections and (rejection := self._output_check.rejection(event)):
                    rejections[event.variant] = rejection
            elif isinstance(event, Cell):
                if rejection := rejections.get(event.variant):
                    event = structs.replace(event, status=rejection.status, reason=rejection.reason, metrics=None)
                if event.variant not in point.pending or event.key != group.key(event.variant):
                    raise WorkerDied(f"the worker process sent a cell that it was not asked for: {event.key}")
                point.pending.remove(event.variant)
                self._done += 1
                was_timed = event.status == Status.PASSED and event.metrics and event.metrics.rounds
                if self._audit_client and was_timed:
                    point.to_audit.append(event)
                else:
                    self._on_line(event)
            doing = f"{group.operator.name}/{self._worker.attribution.control or ''} {group.label}"
            self._on_progress(Progress(self._done, self._total, doing))
        if lost := [name for name in batch if name in point.pending]:
            raise WorkerDied(f"the worker process finished without a cell of {', '.join(lost)}")

    def _settle_blame(self, point: _Point, batch: list[str], death: WorkerDied) -> None:
        """Fail the variant that ended the process, and queue the others of its batch again."""
        attribution = self._worker.attribution
        culprit = attribution.culprit
        if culprit is None and attribution.timing_began:
            # They were timed in turns, so any of them may have done it: asked one by one, only that one dies again.
            point.batches[:0] = [[name] for name in batch]
            return
        point.batches.insert(0, batch)
        if culprit is None and not point.died_without_culprit:
            point.died_without_culprit = True  # no variant had control; it may not happen again
            return
        culprit = culprit or batch[0]  # exclude one, or this might never end
        self._worker.blame(f"{point.group.operator.name}/{culprit}", death)
        if culprit in point.pending:  # else its cell arrived before the process died
            point.pending.remove(culprit)
            self._done += 1
            self._on_line(point.group.cell(culprit, Status.FAILED, str(death)))

    def _audit_and_write(self, point: _Point) -> None:
        """After every batch, so that no cell waits for torch.compile."""
        if point.to_audit:
            began = time.monotonic()
            for cell in self._audit_client.audited(point.group, point.to_audit):
                self._on_line(cell)
            point.to_audit.clear()
            self.wall_time.auditing += time.monotonic() - began

    # --- processes ----------------------------------------------------------------------------------------------------

    def _wait_until_ready(self) -> Ready:
        """Raises RunError."""
        began = time.monotonic()
        try:
            self._worker.started(self._worker.wait_until_up)
            if self._audit_client:
                self._audit_client.wait_until_up()
            ready = self._worker.started()
        except RunError:
            self.close(wait_s=0)
            raise
        if self._audit_client:
            ready = self._audit_client.joined(ready)
        self.wall_time.starting += time.monotonic() - began
        return ready

    def _restart(self, why: str) -> None:
        """Replace the evaluator's process and note it in the record. Raises RunError."""
        self._worker.restart()
        self._on_line(segment(self._wait_until_ready(), why, self._measure_config.cache))


def is_slow_to_verify(variant: Variant, device: str) -> bool:
    """Whether torch.compile, or on a CPU Triton's interpreter, needs seconds for its hard points."""
    return COMPILER in variant.requires or (device == "cpu" and interpreter.runs(variant.setup))


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
        **plan,
    )


def segment(ready: Ready, why: str, cache: str, worker: int = 0) -> Segment:
    """The line between cells of different processes. worker: as in Segment."""
    return Segment(
        started=utc_now().isoformat(),
        why=why,
        environment=ready.environment,
        calibration=ready.calibration,
        uncalibrated=calibration_errors(ready, cache),
        worker=worker,
    )


def calibration_errors(ready: Ready, cache: str) -> tuple[str, ...]:
    """Why the timer of a worker is not calibrated; empty where it is, and on a CPU."""
    return estimators.calibration_errors(ready.calibration, cache) if ready.calibration else ()
