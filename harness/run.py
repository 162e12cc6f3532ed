"""The loop of a run: hand groups to the worker, join what the auditor found, write each cell at once, replace what died.

Runs in the parent, which never touches the device.
"""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness import trust
from harness.auditing import AuditDesk
from harness.protocol import Begin, Job, Ready, Refused, Task
from harness.records import Cell, Segment
from harness.sweep import Group
from harness.worker import Worker, WorkerDied

#: A variant that ended its process this often is not run at further points.
DEATHS = 2


class RunError(Exception):
    """The run cannot start; nothing was measured."""


@dataclass(frozen=True)
class Progress:
    """What the console is told: cells finished of all, and what has control now."""

    done: int
    total: int
    doing: str


class Runner:
    """Drives one worker at a time over the groups of a plan, and beside it, on a GPU, the auditor.

    on_line(Cell | Segment) is called for every cell as soon as it is known, and with a segment when a worker was replaced;
    on_progress(Progress) whenever something begins.
    """

    def __init__(self, job: Job, on_line: Callable[[Cell | Segment], None], on_progress: Callable[[Progress], None]) -> None:
        self._job, self._on_line, self._on_progress = job, on_line, on_progress
        self._deaths: Counter[str] = Counter()
        self._last_words: dict[str, str] = {}
        audited = job.timed and job.device == "cuda" and job.measure.audit
        # Both import torch at the same time; the auditor touches the device only when the worker has calibrated.
        self._worker = Worker(job)
        self._auditor = AuditDesk(Worker(replace(job, audit=True)), lambda: Worker(replace(job, audit=True))) if audited else None
        self.ready = self._begin()

    def _begin(self) -> Ready:
        """The worker's answer with the auditor's joined to it. Raises RunError."""
        try:
            ready = self._worker.ready
        except WorkerDied as death:
            self.close(wait_s=0)
            raise RunError(f"the worker could not start: {death}") from None
        if isinstance(ready, Refused):
            self.close(wait_s=0)
            raise RunError(f"the device cannot be used: {ready.reason}")
        return self._auditor.joined(ready) if self._auditor else ready

    @property
    def process_ids(self) -> list[int]:
        """Of the worker and, where there is one, the auditor: the processes that own the device."""
        return [pid for pid in (self._worker.process_id, self._auditor and self._auditor.process_id) if pid]

    def close(self, wait_s: float = 30.0) -> None:
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
        self._worker = Worker(self._job)
        self._on_line(segment(self._begin(), why, self._job.measure.cache))

    def run(self, groups: Sequence[Group]) -> None:
        """All groups in order. The time budget is shared out over the points that are still to come."""
        total, done, spent = sum(len(group.variants) for group in groups), 0, 0.0
        for i, group in enumerate(groups):
            budget = max(self._job.measure.time_budget_s - spent, 0.0) / (len(groups) - i)
            spent += self._run_group(group, budget, done, total)
            done += len(group.variants)
        self._on_progress(Progress(total, total, ""))

    def _run_group(self, group: Group, budget_s: float, done: int, total: int) -> float:
        """One group; a variant that kills its process fails alone, the others are asked for again. Seconds it timed."""
        measuring: float | None = None
        timed: list[Cell] = []
        waiting = [variant.name for variant in group.variants]
        for variant in group.variants:
            if self._deaths[variant.id] >= DEATHS:
                waiting.remove(variant.name)
                reason = f"not run again, it ended its process {DEATHS} times: {self._last_words[variant.id]}"
                self._on_line(_failed(group, variant.name, reason))
        batches = [list(waiting)]
        while batches:
            batch = [name for name in batches.pop(0) if name in waiting]
            if not batch:
                continue
            last: Begin | None = None
            try:
                for event in self._worker.ask(Task(group.operator.name, dict(group.point), tuple(batch), budget_s)):
                    if isinstance(event, Cell):
                        waiting.remove(event.variant)
                        if self._auditor and event.status == "passed" and event.metrics and event.metrics.rounds:
                            timed.append(event)
                        else:
                            self._on_line(event)
                    else:
                        last = event
                        if event.phase == "measure" and measuring is None:
                            measuring = time.monotonic()
                    finished = done + len(group.variants) - len(waiting)
                    self._on_progress(Progress(finished, total, f"{group.operator.name}/{last.variant if last else ''} {group.label}"))
            except WorkerDied as death:
                left = [name for name in batch if name in waiting]
                if len(left) > 1 and last is not None and last.phase == "measure":
                    batches = [[name] for name in left]  # they took turns: one by one, only the guilty one dies again
                else:
                    guilty = last.variant if last is not None else batch[0]
                    self._deaths[f"{group.operator.name}/{guilty}"] += 1
                    self._last_words[f"{group.operator.name}/{guilty}"] = str(death)
                    if guilty in waiting:  # else its cell was told before its process went down
                        waiting.remove(guilty)
                        self._on_line(_failed(group, guilty, str(death)))
                    batches.insert(0, left)
                self._replace(str(death))
        timing_s = 0.0 if measuring is None else time.monotonic() - measuring
        for cell in self._auditor.audited(group, timed) if self._auditor and timed else timed:
            self._on_line(cell)
        return timing_s


def segment(ready: Ready, why: str, cache: str) -> Segment:
    """The line a record gets when its cells come from another process than those before."""
    calibration = ready.calibration
    return Segment(
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        why=why,
        environment=ready.environment,
        calibration=calibration,
        uncalibrated=trust.doubts(calibration, cache) if calibration else (),
    )


def _failed(group: Group, variant: str, reason: str) -> Cell:
    return Cell(
        operator=group.operator.name, variant=variant, baseline=group.operator.baseline, point=group.label,
        axes=dict(group.point), status="failed", reason=reason,
    )  # fmt: skip

