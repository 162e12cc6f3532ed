"""The run of a configuration with decode loops: one loop after the other, each stack's line written at once.

Runs in the parent process, which never touches the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.config.loops import LoopGroup, PlannedStack
from harness.records.decode_loop import Loop
from harness.records.schema import Segment, Status
from harness.runner.protocol import Job, LoopTask, Ready
from harness.runner.run import Progress, WallTime, segment
from harness.runner.supervised_worker import SupervisedWorker
from harness.runner.worker import RunError, Worker, WorkerDied


class LoopRunner:
    """on_line, on_progress: as in Runner. ready: the worker's answer to the job."""

    def __init__(
        self,
        job: Job,
        on_line: Callable[[Loop | Segment], None],
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._on_line, self._on_progress, self._cache = on_line, on_progress, job.measure.cache
        self._worker = SupervisedWorker(job, Worker)
        self._done = self._total = 0
        self.wall_time = WallTime()
        self.ready = self._wait_until_ready()

    def run(self, groups: Sequence[LoopGroup]) -> None:
        """All loops in order. Raises RunError."""
        self._total = sum(len(group.stacks) for group in groups)
        for group in groups:
            began, timed_before = time.monotonic(), self.wall_time.timing
            left = list(group.stacks)
            while left:
                left = self._ask(replace(group, stacks=tuple(left)))
            self.wall_time.verifying += time.monotonic() - began - (self.wall_time.timing - timed_before)
        self._on_progress(Progress(self._total, self._total, ""))

    def close(self, wait_s: float = 30.0) -> None:
        self._worker.close(wait_s)

    def _ask(self, group: LoopGroup) -> list[PlannedStack]:
        """Run one loop; the stacks that are still without a line, because another one ended the process."""
        left = {stack.name: stack for stack in group.stacks}
        try:
            for event in self._worker.ask(LoopTask(group)):
                if isinstance(event, Loop):
                    self._keep(left, event, group)
                doing = f"{self._worker.attribution.control or ''} {group.point.label}"
                self._on_progress(Progress(self._done, self._total, doing))
            if left:
                raise WorkerDied(f"the worker process finished without a line of {', '.join(left)}")
        except WorkerDied as death:
            # Every block ends with a wait for the device, so the stack in control did it.
            culprit = self._worker.attribution.control
            if culprit not in left:
                culprit = next(iter(left), None)
            if culprit is not None:
                self._keep(left, group.loop(left[culprit], Status.FAILED, str(death)), group)
            self._restart(str(death))
        finally:
            self.wall_time.timing += self._worker.attribution.timing_s
        return list(left.values())

    def _keep(self, left: dict[str, PlannedStack], line: Loop, group: LoopGroup) -> None:
        if line.stack not in left or line.key != group.key(line.stack):
            raise WorkerDied(f"the worker process sent a line that it was not asked for: {line.key}")
        del left[line.stack]
        self._done += 1
        self._on_line(line)

    def _wait_until_ready(self) -> Ready:
        """Raises RunError."""
        began = time.monotonic()
        try:
            ready = self._worker.started()
        except RunError:
            self.close(wait_s=0)
            raise
        self.wall_time.starting += time.monotonic() - began
        return ready

    def _restart(self, why: str) -> None:
        self._worker.restart()
        self._on_line(segment(self._wait_until_ready(), why, self._cache))
