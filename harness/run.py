"""The loop of a run: hand groups to the worker, write each cell at once, replace a worker that died.

Runs in the parent, which never touches the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.protocol import Begin, Job, Refused, Task
from harness.records import Cell
from harness.sweep import Group
from harness.worker import Worker, WorkerDied


class RunError(Exception):
    """The run cannot start; nothing was measured."""


@dataclass(frozen=True)
class Progress:
    """What the console is told: cells finished of all, and what has control now."""

    done: int
    total: int
    doing: str


class Runner:
    """Drives one worker at a time over the groups of a plan.

    on_cell(cell) is called for every cell as soon as it is known; on_progress(Progress) whenever something begins.
    """

    def __init__(self, job: Job, on_cell: Callable[[Cell], None], on_progress: Callable[[Progress], None]) -> None:
        self._job, self._on_cell, self._on_progress = job, on_cell, on_progress
        self._deadly: dict[str, str] = {}
        self._worker = self._start()
        self.ready = self._worker.ready

    def _start(self) -> Worker:
        try:
            worker = Worker(self._job)
        except WorkerDied as death:
            raise RunError(f"the worker could not start: {death}") from None
        if isinstance(worker.ready, Refused):
            worker.close(wait_s=0)
            raise RunError(f"the device cannot be used: {worker.ready.reason}")
        return worker

    def close(self, wait_s: float = 30.0) -> None:
        self._worker.close(wait_s)

    def ask(self, message: Any) -> list[Any]:
        """Events of a message that is no group; a dead worker is replaced and WorkerDied passed on."""
        try:
            return list(self._worker.ask(message))
        except WorkerDied:
            self._replace()
            raise

    def _replace(self) -> None:
        self._worker.close(wait_s=0)
        self._worker = self._start()

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
        waiting = [variant.name for variant in group.variants]
        for variant in group.variants:
            if variant.id in self._deadly:
                waiting.remove(variant.name)
                self._on_cell(_failed(group, variant.name, f"not run again: {self._deadly[variant.id]}"))
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
                        self._on_cell(event)
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
                    self._deadly[f"{group.operator.name}/{guilty}"] = str(death)
                    if guilty in waiting:
                        waiting.remove(guilty)
                        self._on_cell(_failed(group, guilty, str(death)))
                    batches.insert(0, left)
                self._replace()
        return 0.0 if measuring is None else time.monotonic() - measuring


def _failed(group: Group, variant: str, reason: str) -> Cell:
    return Cell(
        operator=group.operator.name, variant=variant, baseline=group.operator.baseline, point=group.label,
        axes=dict(group.point), status="failed", reason=reason,
    )  # fmt: skip
