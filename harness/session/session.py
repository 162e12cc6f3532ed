"""A session: runs work items in the worker processes of one GPU, or of the CPU, and yields their outcomes.

It lives in the parent process, which never touches the device. A second process audits timed cells before the session
yields them.
"""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from msgspec import structs

from spec_decode_bench.harness import registry
from spec_decode_bench.harness.analysis import estimators
from spec_decode_bench.harness.config.work_items import Check, EdgeCases, Result, Task, WorkItem
from spec_decode_bench.harness.records.schema import (
    SCHEMA_VERSION,
    Calibration,
    Environment,
    Header,
    Segment,
    added,
    rounded,
)
from spec_decode_bench.harness.session.measure import Auditors, Evaluators, measure
from spec_decode_bench.harness.session.messages import AuditReady, Heartbeat, Job, Load, Loaded, Ready
from spec_decode_bench.harness.session.supervised_worker import MAX_DEATHS
from spec_decode_bench.harness.session.worker import RunError, Worker, WorkerDied

#: The audit is dropped for the rest of the run after this many deaths while no variant had control.
MAX_UNATTRIBUTED_DEATHS = 3


class Session:
    """A context manager: entering it starts the processes, leaving it ends them.

    start:       makes a process for a job.
    environment: of the first process, before the calibration.
    on_progress: called with how many outcomes there are, of how many, and the current activity.
    on_process:  called with the line of a process that replaces one.
    """

    environment: Environment

    def __init__(self, job: Job, start: Callable[[Job], Worker] = Worker) -> None:
        registry.load(job.rooms)  # in the process of a cluster's node
        self._job, self._start = job, start
        self.on_progress: Callable[[int, int, str], None] = lambda done, total, doing: None
        self.on_process: Callable[[Segment], None] = lambda segment: None
        audits = job.timed and job.device == "cuda" and job.measure.audit and not job.brief
        self._evaluator = Evaluators(replace(job, role="evaluate"), start, self._replace_evaluator)
        self._auditor = Auditors(replace(job, role="audit"), start, self._replace_auditor) if audits else None
        self._begun: list[Evaluators | Auditors] = []
        self._cupti: AuditReady | None = None
        #: False where a variant is wrong with which nothing is timed.
        self._times = True
        self._verified_s: Counter[str] = Counter()
        self._ready: Ready | None = None

    def __enter__(self) -> Session:
        return self if self._begun else self.start()

    def start(self) -> Session:
        """Start the processes, unless that is left to ``with``."""
        self._began = time.monotonic()
        self._evaluator.most_deaths = 1  # until the record begins
        try:
            # They bring the device up at the same time, and calibrate one after the other.
            for worker in filter(None, (self._evaluator, self._auditor)):
                worker.begin()
                self._begun.append(worker)
            self.environment = self._evaluator.wait_until_up().environment
        except BaseException:
            self.close(0)
            raise
        return self

    def __exit__(self, error: type | None, *_: Any) -> None:
        self.close(30.0 if error is None else 0)

    @property
    def timing_s(self) -> float:
        """Seconds for which variants were timed."""
        return self._evaluator.timing_s

    @property
    def ready(self) -> Ready:
        """What the first process says of the device once it is calibrated, which the first use waits for, with the
        auditor's times. Raises RunError.
        """
        if self._ready is None:
            self._ready = self._wait_until_ready(self._began)
            self._evaluator.most_deaths = MAX_DEATHS
        return self._ready

    def load(self, files: tuple[str, ...]) -> Loaded:
        """Have the processes import files of --variants; what the first one plans with them. A variant that ends a
        process is not run again. Raises WorkerDied.
        """
        self._evaluator.most_deaths, request = 1, Load(files)
        if self._auditor:
            self._auditor.load(request, wait=False)
        found = self._evaluator.load(request)
        packages, checkouts = found.environment.packages, found.environment.checkouts
        self.environment = structs.replace(self.environment, packages=packages, checkouts=checkouts)
        environment = structs.replace(self.ready.environment, packages=packages, checkouts=checkouts)
        self._ready = structs.replace(self.ready, environment=environment, compiled=found.compiled)
        return found

    def verify_first(self, items: Sequence[WorkItem], until_wrong: Collection[str]) -> Iterator[Result]:
        """What is wrong with variants of ``items`` at their edge cases and sequences, without those that have a proof,
        before anything is timed. What passed is not verified again.

        until_wrong: variants ("operator/variant") of which one that is wrong means that nothing will be timed. Without
        any, a CPU verifies nothing first, and a GPU in processes beside each other.
        """
        checks = dict.fromkeys(
            Check(operator=task.operator, variants=(name,), where=EdgeCases(until_rejected=True))
            for task in items
            if isinstance(task, Task)
            for name in task.variants
            if name not in task.proven
        )
        if not until_wrong:
            if self._job.device == "cuda":
                yield from self._verified_beside(list(checks))
            return
        wrong = set()
        for check in checks:
            # Where it ends its process, the next one times nothing.
            self._times = check.id_of(*check.variants) not in until_wrong
            found = self._evaluator.check(check)
            for checked in found:
                self._verified_s.update(checked.seconds)
            if rejection := _rejection(found):
                wrong.add(rejection.variant_id)
                yield rejection
        self._times = wrong.isdisjoint(until_wrong)
        if self._auditor and not self._times:
            self._auditor.close(wait_s=0)
            self._auditor = None

    def _verified_beside(self, checks: Sequence[Check]) -> Iterator[Result]:
        """What is wrong. The first process verifies at a cell whatever nobody has; also a variant that ended its
        process, or had no memory, beside the others.
        """
        from spec_decode_bench.harness.session.side_by_side import processes, side_by_side

        began, found = time.monotonic(), []
        tasks = iter([lambda ask, check=check: found.append(list(ask(check))) for check in checks])
        lanes = [tasks] * min(processes(), len(checks))
        if len(lanes) > 1:
            with suppress(RunError):  # one could not be started
                side_by_side(replace(self._job, timed=False), lanes, start=self._start)
        seconds = added(*(checked.seconds for of_one in found for checked in of_one))
        wall_s = time.monotonic() - began
        self._verified_s.update({what: wall_s * one / sum(seconds.values()) for what, one in seconds.items()})
        for of_one in filter(None, found):  # of those that are available here
            rejection = _rejection(of_one)
            if rejection and (rejection.finding.check == "no_crash" or rejection.finding.lacked_memory):
                continue
            self._evaluator.remember(of_one[0].variant_id, of_one)
            if rejection:
                yield rejection

    def run(self, items: Sequence[WorkItem]) -> Iterator[Any]:
        """The outcomes of all items, in order. The remaining cells share the time budget. A variant that ends its
        process fails alone: the process is replaced and runs the others again.
        """
        _ = self.ready
        total = left = sum(len(item.variants) for item in items)
        for item in items:
            if isinstance(item, Task) and item.budget_s is None:
                budget_left_s = max(self._job.measure.time_budget_s - self.timing_s, 0.0)
                item = structs.replace(item, budget_s=budget_left_s * len(item.variants) / left)

            def doing(heartbeat: Heartbeat, item: WorkItem = item, done: int = total - left) -> None:
                self.on_progress(done, total, f"{item.id_of(heartbeat.variants[0])} {item.label}".rstrip())

            for worker in self._begun:
                worker.on_heartbeat = doing
            if isinstance(item, Task):
                yield from measure(item, self._evaluator, self._auditor)
            else:
                yield from item.outcomes(self._evaluator)
            left -= len(item.variants)
            self.on_progress(total - left, total, "")

    def close(self, wait_s: float = 30.0) -> None:
        """End all processes, after up to ``wait_s`` seconds to finish on their own."""
        if wait_s:
            for worker in self._begun:
                worker.request_exit()
        for worker in self._begun:
            worker.close(wait_s)

    # --- processes ----------------------------------------------------------------------------------------------------

    def _wait_until_ready(self, began: float) -> Ready:
        """began: when the process was started, by time.monotonic()."""
        cupti_s, auditor = 0.0, self._auditor
        self._evaluator.wait_until_up()
        if auditor and auditor.unable is None:
            up = time.monotonic()
            try:  # nothing that it does to the device from here on is unsolicited
                auditor.wait_until_up()
            except RunError as error:
                auditor.give_up(str(error))
            cupti_s = time.monotonic() - up
        ready = self._evaluator.wait_until_ready(self._times)
        if auditor:
            calibrated = time.monotonic()
            if self._cupti is None:
                self._calibrate_auditor()
            ready = self._joined(ready)
            cupti_s += time.monotonic() - calibrated
        seconds = {**ready.seconds, **(self._verified_s if self._ready is None else {})}
        rest = time.monotonic() - began - cupti_s - sum(seconds.values())
        cupti = {"CUPTI": cupti_s} if auditor else {}
        return structs.replace(ready, seconds=rounded({"start": max(rest, 0.0), **seconds, **cupti}))

    def _replace_evaluator(self, death: WorkerDied) -> None:
        """Before the first calibration the record does not know the process that died."""
        began = time.monotonic()
        self._evaluator.restart(compiles=self._ready is None)
        if self._ready is None:
            self._evaluator.wait_until_up()
            return
        ready = self._wait_until_ready(began)
        self._evaluator.number += 1
        self.on_process(segment(ready, str(death), self._job.measure.cache, self._evaluator.number))

    def _replace_auditor(self, death: WorkerDied) -> None:
        if self._auditor.unattributed_deaths >= MAX_UNATTRIBUTED_DEATHS:
            raise RunError(f"the second process died while no variant was running: {death}")
        self._auditor.restart()
        self._calibrate_auditor()
        if self._auditor.unable is not None:
            raise RunError(self._auditor.unable)

    def _calibrate_auditor(self) -> None:
        """Where it cannot be, nothing is audited any more."""
        if self._auditor.unable is not None:
            return
        try:
            answer = self._auditor.wait_until_ready()
        except RunError as error:
            self._auditor.give_up(str(error))
            return
        if answer.blocked is not None:
            self._auditor.give_up(answer.blocked)
        else:
            self._cupti = answer

    def _joined(self, ready: Ready) -> Ready:
        """The evaluator's answer with CUPTI's times of the calibration kernels, or with a note why there are none."""
        if self._auditor.unable is not None:
            notes = (*ready.environment.notes, f"not audited: {self._auditor.unable}")
            return structs.replace(ready, environment=structs.replace(ready.environment, notes=notes))
        return structs.replace(ready, calibration=_with_cupti(ready.calibration, self._cupti))


def _rejection(found: Sequence[Result]) -> Result | None:
    return next((checked for checked in found if checked.finding.status.is_bad), None)


def _with_cupti(calibration: Calibration | None, answer: AuditReady) -> Calibration | None:
    if calibration is None:
        return None
    spins = {
        ns: structs.replace(times, cupti_us=answer.spins.get(ns, times.cupti_us))
        for ns, times in calibration.spins.items()
    }
    own = {
        name: structs.replace(times, cupti_us=answer.own.get(name, times.cupti_us))
        for name, times in calibration.own.items()
    }
    return structs.replace(calibration, spins=spins, own=own)


# --- lines of the record ----------------------------------------------------------------------------------------------


def utc_now() -> datetime.datetime:
    """To the second, as records have it."""
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def header(
    ready: Ready,
    config: dict[str, Any],
    *,
    command: str,
    seed: int,
    variants: tuple[str, ...] = (),
    cells: tuple[str, ...] = (),
    shard: str | None = None,
    sources: dict[str, str] | None = None,
) -> Header:
    """The first line of a record. config: as plain values; all others: as in Header."""
    return Header(
        schema=SCHEMA_VERSION,
        name=config["name"],
        command=command,
        seed=seed,
        variants=variants,
        cells=cells,
        shard=shard,
        sources=sources or {},
        config=config,
        started=utc_now().isoformat(),
        environment=ready.environment,
        calibration=ready.calibration,
        uncalibrated=calibration_errors(ready, config["measure"]["cache"]),
        compiled=ready.compiled,
        seconds=ready.seconds,
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
