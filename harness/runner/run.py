"""The loop of a run: hand groups to the worker, join what the auditor found, write each cell at once, replace what
died.

Runs in the parent, which never touches the device.
"""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.analysis import estimators
from harness.config.sweep import Group
from harness.records.schema import SCHEMA_VERSION, Cell, Header, Segment
from harness.runner.audit_client import AuditClient
from harness.runner.fault_attribution import FaultAttribution
from harness.runner.protocol import Job, Ready, Refused, Task
from harness.runner.worker import Worker, WorkerDied, WorkerSilent

#: A variant that ended its process this often is not run at further points.
DEATHS = 2
#: How often a worker that dies while it starts is started; whoever killed it (the system, out of memory) may have been
#: done then.
STARTS = 3


class RunError(Exception):
    """No worker can be had: the run cannot start, or cannot go on after a worker died. The message says why."""


@dataclass(frozen=True)
class Progress:
    """What the console is told: cells finished of all, and what has control now."""

    done: int
    total: int
    doing: str


class Runner:
    """Drives one worker at a time over the groups of a plan, and beside it, on a GPU, the auditor.

    on_line(Cell | Segment) is called for every cell as soon as it is known, and with a segment when a worker was
    replaced; on_progress(Progress) whenever something begins. spent_s: seconds of wall time by what they went into:
    starting processes, proving (verification and compilation), timing, auditing.
    """

    def __init__(
        self, job: Job, on_line: Callable[[Cell | Segment], None], on_progress: Callable[[Progress], None]
    ) -> None:
        self._job, self._on_line, self._on_progress = job, on_line, on_progress
        self._deaths: Counter[str] = Counter()
        self._last_words: dict[str, str] = {}
        audited = job.timed and job.device == "cuda" and job.measure.audit
        self.spent_s = dict.fromkeys(
            ("starting", "proving", "timing", "auditing") if audited else ("starting", "proving", "timing"), 0.0
        )
        # Both import torch at the same time; the auditor touches the device only when the worker has calibrated.
        self._worker = Worker(job)
        self._auditor = (
            AuditClient(Worker(replace(job, audit=True)), lambda: Worker(replace(job, audit=True))) if audited else None
        )
        self.ready = self._begin()

    def _begin(self) -> Ready:
        """The worker's answer with the auditor's joined to it. Raises RunError."""
        began = time.monotonic()
        for left in reversed(range(STARTS)):
            try:
                ready = self._worker.ready
                break
            except WorkerDied as death:
                self._worker.close(wait_s=0)
                if isinstance(death, WorkerSilent) or not left:
                    self.close(wait_s=0)
                    raise RunError(f"the worker could not start: {death}") from None
                self._worker = Worker(self._job)
        if isinstance(ready, Refused):
            self.close(wait_s=0)
            raise RunError(f"the device cannot be used: {ready.reason}")
        ready = self._auditor.joined(ready) if self._auditor else ready
        self.spent_s["starting"] += time.monotonic() - began
        return ready

    def close(self, wait_s: float = 30.0) -> None:
        if wait_s:
            self._worker.dismiss()
            if self._auditor:
                self._auditor.dismiss()
        self._worker.close(wait_s)
        if self._auditor:
            self._auditor.close(wait_s)

    def ask(self, message: Any) -> list[Any]:
        """Events of a message that is no group; a dead worker is replaced and WorkerDied passed on."""
        try:
            return list(self._worker.ask(message))
        except WorkerDied as death:
            self._replace(str(death))
            raise

    def _replace(self, why: str) -> None:
        self._worker.close(wait_s=0)
        self._job = replace(self._job, compiled=False)
        self._worker = Worker(self._job)
        self._on_line(segment(self._begin(), why, self._job.measure.cache))

    def run(self, groups: Sequence[Group]) -> None:
        """All groups in order. The time budget is shared out over the points that are still to come."""
        total, done = sum(len(group.variants) for group in groups), 0
        for i, group in enumerate(groups):
            budget = max(self._job.measure.time_budget_s - self.spent_s["timing"], 0.0) / (len(groups) - i)
            measured = self._measure(group, budget, done, total)
            began = time.monotonic()
            for cell in self._auditor.audited(group, measured) if self._auditor and measured else measured:
                self._on_line(cell)
            if self._auditor:
                self.spent_s["auditing"] += time.monotonic() - began
            done += len(group.variants)
        self._on_progress(Progress(total, total, ""))

    def _measure(self, group: Group, budget_s: float, done: int, total: int) -> list[Cell]:
        """One group; a variant that kills its process fails alone, the others are asked for again. The cells to be
        audited.
        """
        began, started_s, timing_s, stray = time.monotonic(), self.spent_s["starting"], 0.0, False
        measured: list[Cell] = []
        waiting = [variant.name for variant in group.variants]
        for variant in group.variants:
            if self._deaths[variant.id] >= DEATHS:
                waiting.remove(variant.name)
                reason = f"not run again, it ended its process {DEATHS} times: {self._last_words[variant.id]}"
                self._on_line(group.cell(variant.name, "failed", reason))
        batches = [list(waiting)]
        while batches:
            batch = [name for name in batches.pop(0) if name in waiting]
            if not batch:
                continue
            attribution = FaultAttribution()
            share_s = budget_s * len(batch) / len(group.variants)
            try:
                for event in self._worker.ask(Task(group.operator.name, dict(group.point), tuple(batch), share_s)):
                    attribution.saw(event, time.monotonic())
                    if isinstance(event, Cell):
                        waiting.remove(event.variant)
                        if self._auditor and event.status == "passed" and event.metrics and event.metrics.rounds:
                            measured.append(event)
                        else:
                            self._on_line(event)
                    finished = done + len(group.variants) - len(waiting)
                    self._on_progress(
                        Progress(finished, total, f"{group.operator.name}/{attribution.control or ''} {group.label}")
                    )
            except WorkerDied as death:
                guilty = attribution.guilty
                if (
                    guilty is None and not attribution.timed
                ):  # nobody had control; if it happens again, something must give
                    guilty, stray = (batch[0], stray) if stray else (None, True)
                if guilty is not None:
                    self._deaths[f"{group.operator.name}/{guilty}"] += 1
                    self._last_words[f"{group.operator.name}/{guilty}"] = str(death)
                    if guilty in waiting:  # else its cell was told before its process went down
                        waiting.remove(guilty)
                        self._on_line(group.cell(guilty, "failed", str(death)))
                # They took turns and any of them may have done it: one by one, only the guilty one dies again.
                one_by_one = guilty is None and attribution.timed
                batches[:0] = [[name] for name in batch] if one_by_one else [batch]
                self._replace(str(death))
            timing_s += attribution.timing_s
        self.spent_s["timing"] += timing_s
        self.spent_s["proving"] += time.monotonic() - began - timing_s - (self.spent_s["starting"] - started_s)
        return measured


def utc_now() -> datetime.datetime:
    """As a record tells time: to the second."""
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def header(ready: Ready, config: dict[str, Any], **plan: Any) -> Header:
    """The first line of a record; ``config`` as plain values, ``plan``: the other fields of Header."""
    cache = config["measure"]["cache"]
    return Header(
        schema=SCHEMA_VERSION,
        name=config["name"],
        config=config,
        started=utc_now().isoformat(),
        environment=ready.environment,
        calibration=ready.calibration,
        uncalibrated=_calibration_errors(ready, cache),
        compiled=ready.compiled,
        **plan,
    )


def segment(ready: Ready, why: str, cache: str) -> Segment:
    """The line a record gets when its cells come from another process than those before."""
    return Segment(
        started=utc_now().isoformat(),
        why=why,
        environment=ready.environment,
        calibration=ready.calibration,
        uncalibrated=_calibration_errors(ready, cache),
    )


def _calibration_errors(ready: Ready, cache: str) -> tuple[str, ...]:
    return estimators.calibration_errors(ready.calibration, cache) if ready.calibration else ()
