"""Keeps the workers of one run for the next run of the same command: they are already calibrated, and know which
variants passed their edge cases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from msgspec import structs

from spec_decode_bench.harness.session.messages import Job
from spec_decode_bench.harness.session.worker import Worker


class KeptWorkers:
    """``start`` makes the workers of a Session, as Worker does. ``close`` ends those that no run uses."""

    def __init__(self) -> None:
        self._idle: list[_KeptWorker] = []

    def start(self, job: Job) -> Worker:
        """The worker of an earlier run with the same job, or a new one."""
        for worker in [idle for idle in self._idle if (idle.job.role, idle.job.gpu) == (job.role, job.gpu)]:
            self._idle.remove(worker)
            if _same(worker.job, job):
                return worker
            worker.end()
        worker = _KeptWorker(job, self._idle.append)
        worker.begin()
        return worker

    def close(self) -> None:
        while self._idle:
            self._idle.pop().end()


class _KeptWorker(Worker):
    """A worker that goes on when its run closes it, unless ``wait_s`` is 0, as after an error."""

    def __init__(self, job: Job, keep: Callable[[_KeptWorker], None]) -> None:
        super().__init__(job)
        self.job, self._keep = job, keep

    def request_exit(self) -> None:
        pass

    def close(self, wait_s: float = 30.0) -> None:
        if wait_s and self.times and self._process.is_alive():
            self._keep(self)
        else:
            super().close(0)

    def end(self) -> None:
        super().request_exit()
        super().close()


def _same(first: Job, second: Job) -> bool:
    """Whether two jobs differ at most in what a worker on a GPU ignores: time budget and sources to compile."""
    ours, theirs = (
        replace(job, compiled=(), measure=structs.replace(job.measure, time_budget_s=0.0)) for job in (first, second)
    )
    return ours == theirs
