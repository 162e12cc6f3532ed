"""A worker process that is replaced when it dies, and how often each variant ended it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from spec_decode_bench.harness.session.attribution import FaultAttribution
from spec_decode_bench.harness.session.messages import AuditReady, Event, Fatal, Job, Message, Ready, Up
from spec_decode_bench.harness.session.worker import RunError, Worker, WorkerDied, WorkerSilent

#: A variant that ended its process this often is not run at further points.
MAX_DEATHS = 2
#: How often a process that dies during start-up is started. The cause, such as the kernel's OOM killer, may be
#: gone by then.
MAX_STARTS = 3


@dataclass
class Deaths:
    """How often a variant ended its process, and how the process ended last."""

    count: int = 0
    last_reason: str = ""
    excluded: bool = False


class SupervisedWorker:
    """Owns one worker process at a time, from ``begin`` on.

    start:               makes a process for a job; it begins at once.
    attribution:         who had control in the latest item.
    unattributed_deaths: how often the process died while no variant had control.
    """

    def __init__(self, job: Job, start: Callable[[Job], Worker]) -> None:
        self._job, self._start = job, start
        self._worker: Worker | None = None
        self._closed = False
        self._deaths: dict[str, Deaths] = {}
        self._preparing: Iterator[Event] | None = None
        self.attribution = FaultAttribution()
        self.unattributed_deaths = 0

    def begin(self) -> None:
        """Start the first process."""
        self._worker = self._start(self._job)

    def wait_until_up(self) -> Up:
        """Wait until the process has brought the device up."""
        return self._answer(lambda worker: worker.up)

    def wait_until_ready(self, timed: bool = True) -> Ready | AuditReady:
        """What the process says of its calibration, which it leaves out where nothing is to be timed."""

        def wait(worker: Worker) -> Any:
            worker.times = timed
            return worker.ready

        return self._answer(wait)

    def _answer(self, wait: Callable[[Worker], Any]) -> Any:
        """A process that dies first is started MAX_STARTS times in all, one that hangs only once."""
        for starts in range(1, MAX_STARTS + 1):
            try:
                self._finish_preparing()
                answer = wait(self._worker)
            except WorkerDied as death:
                if isinstance(death, WorkerSilent) or starts == MAX_STARTS:
                    self.close(wait_s=0)
                    raise RunError(f"the worker could not start: {death}") from None
                self._worker.close(wait_s=0)
                self._preparing = None
                self._worker = self._start(self._job)
            else:
                break
        if isinstance(answer, Fatal):
            raise RunError(f"cannot use the device: {answer.reason}")
        return answer

    def prepare(self, message: Message) -> None:
        """Sends a message without waiting for its events; a death shows at the next one."""
        with suppress(WorkerDied, RunError):
            self._finish_preparing()
            self.wait_until_up()
            self._preparing = self._worker.ask(message)

    def _finish_preparing(self) -> None:
        for _ in self._preparing or ():
            pass
        self._preparing = None

    def ask(self, message: Message) -> Iterator[Event]:
        """Sends a message and yields its events. Raises WorkerDied; ``attribution`` then says who is to blame; call
        ``restart`` before the next message.
        """
        self.attribution = FaultAttribution()
        self._finish_preparing()
        for event in self._worker.ask(message):
            self.attribution.observe(event, time.monotonic())
            yield event

    def blame(self, variant_id: str, death: WorkerDied, most: int = MAX_DEATHS) -> None:
        """Count a death against ``operator/variant``, which is not run again after ``most`` of them."""
        deaths = self._deaths.setdefault(variant_id, Deaths())
        deaths.count += 1
        deaths.last_reason = str(death)
        deaths.excluded |= deaths.count >= most

    def excluded(self, variant_id: str) -> Deaths | None:
        """The deaths of a variant that has too many of them to be run again; None for any other."""
        deaths = self._deaths.get(variant_id)
        return deaths if deaths is not None and deaths.excluded else None

    def restart(self, compiles: bool = False) -> None:
        """Replace the process; then ``wait_until_up``. compiles: the CUDA sources, too, once more."""
        self._worker.close(wait_s=0)
        self._preparing = None
        if not compiles:
            self._job = replace(self._job, compiled=())
        self._worker = self._start(self._job)

    def request_exit(self) -> None:
        """Let the process finish without waiting for it."""
        if not self._closed and self._preparing is None:
            self._worker.request_exit()

    def close(self, wait_s: float = 30.0) -> None:
        """Let the process finish for ``wait_s`` seconds, then kill it; at once if it is still preparing an item.
        Closing twice is harmless.
        """
        if not self._closed:
            self._closed = True
            self._worker.close(wait_s if self._preparing is None else 0)
