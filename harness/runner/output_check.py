"""The parent's side of the comparing process: has the outputs of timed launches compared with the reference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from harness.records.schema import Status
from harness.runner.protocol import Fatal, Outputs, Rejection, Task
from harness.runner.supervised_worker import SupervisedWorker
from harness.runner.worker import WorkerDied


class OutputCheck:
    """Compares the outputs of one task at a time. A process that dies is replaced, and asked once more."""

    def __init__(self, worker: SupervisedWorker) -> None:
        self._worker = worker
        self._task: Task | None = None
        self._preparing: Iterator[Any] = iter(())

    def prepare(self, task: Task) -> None:
        """Have the reference of a task computed, without waiting for it."""
        self._task = task
        with suppress(WorkerDied):  # it is replaced when outputs come
            self._finish()
            self._ask_for_reference()

    def rejection(self, outputs: Outputs) -> Rejection | None:
        """What is wrong with the outputs of a variant; None where they are right."""
        try:
            try:
                mismatch = self._compare(outputs)
            except WorkerDied:
                self._worker.restart()
                self._ask_for_reference()
                mismatch = self._compare(outputs)
        except WorkerDied as death:
            return Rejection(Status.FAILED, f"after timing, {outputs.what} could not be checked: {death}")
        return Rejection(Status.MISMATCH, f"after timing, {outputs.what}: {mismatch}") if mismatch else None

    def _ask_for_reference(self) -> None:
        if isinstance(answer := self._worker.wait_until_up(), Fatal):
            raise WorkerDied(answer.reason)
        self._preparing = self._worker.ask(self._task)

    def _compare(self, outputs: Outputs) -> str | None:
        self._finish()
        (compared,) = self._worker.ask(outputs)
        return compared.mismatch

    def _finish(self) -> None:
        for _ in self._preparing:
            pass

    def request_exit(self) -> None:
        self._worker.request_exit()

    def close(self, wait_s: float = 30.0) -> None:
        self._worker.close(wait_s)
