"""A worker without a process: an evaluator or auditor of the tests' own, asked as a session asks one."""

from __future__ import annotations

from typing import Any

from spec_decode_bench.harness.config.work_items import Answer, Task
from spec_decode_bench.harness.records.schema import Cell
from spec_decode_bench.harness.session.measure import Evaluators, measure
from spec_decode_bench.harness.session.worker import WorkerDied


class InProcess:
    """In place of a Worker. What it tells is kept in ``told``."""

    def __init__(self, owner: Any) -> None:
        self._owner, self._request = owner, None
        self.told: list[Any] = []

    def send(self, request: Any) -> None:
        self._request = request

    def receive(self, request: Any, hear: Any) -> Answer:
        self._owner.tell = lambda event: (self.told.append(event), hear(event))
        return Answer(self._request.run(self._owner), self._owner.lost)


def evaluators(owner: Any) -> Evaluators:
    """As a session has them; a process that dies is not replaced."""

    def replace(death: WorkerDied) -> None:
        raise death

    worker = Evaluators(owner.job, lambda job: InProcess(owner), replace)
    worker.begin()
    return worker


def measured(owner: Any, task: Task) -> dict[str, Cell]:
    """Variant -> its cell, by an Evaluator."""
    return {cell.variant: cell for cell in measure(task, evaluators(owner), None)}
