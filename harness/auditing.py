"""The parent's side of the audit: asks the second process about the cells of a point and joins its answers to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from harness.protocol import Audited, AuditReady, Begin, Ready, Task
from harness.records import Calibration, Cell
from harness.sweep import Group
from harness.worker import Worker, WorkerDied

#: An auditor that died this often is not started again; the cells after that say so.
DEATHS = 3


class AuditDesk:
    """Owns the auditor's process; ``start`` makes a new one. A cell whose audit cannot be had is kept and says why."""

    def __init__(self, worker: Worker, start: Callable[[], Worker]) -> None:
        self._worker, self._start = worker, start
        self._answer: AuditReady | None = None
        self._deaths = 0
        self._closed: str | None = None

    @property
    def process_id(self) -> int | None:
        return None if self._closed else self._worker.process_id

    def joined(self, ready: Ready) -> Ready:
        """The worker's answer with CUPTI's view of the ruler's kernels in its calibration, or a note why there is none."""
        if self._answer is None and self._closed is None:
            self._answer = self._first_answer()
        if self._closed is not None:
            environment = structs.replace(ready.environment, notes=(*ready.environment.notes, f"not audited: {self._closed}"))
            return Ready(environment, ready.calibration, ready.compiled)
        return Ready(ready.environment, _with_cupti(ready.calibration, self._answer), ready.compiled)

    def _first_answer(self) -> AuditReady | None:
        try:
            answer = self._worker.ready
        except WorkerDied as death:
            self._give_up(f"the second process could not start: {death}")
            return None
        reason = answer.blocked if isinstance(answer, AuditReady) else answer.reason
        if reason is not None:
            self._give_up(reason)
            return None
        return answer

    def _give_up(self, why: str) -> None:
        self._closed = why
        self._worker.close(wait_s=0)

    def close(self, wait_s: float = 30.0) -> None:
        if self._closed is None:
            self._worker.close(wait_s)

    def audited(self, group: Group, cells: Sequence[Cell]) -> Iterator[Cell]:
        """The cells of one point, each with what the auditor found; one that broke a promise is a mismatch now."""
        waiting = {cell.variant: cell for cell in cells}
        while waiting and self._closed is None:
            last: Begin | None = None
            try:
                for event in self._worker.ask(Task(group.operator.name, dict(group.point), tuple(waiting), 0.0)):
                    if isinstance(event, Audited):
                        yield _with_audit(waiting.pop(event.variant), event)
                    else:
                        last = event
            except WorkerDied as death:
                self._deaths += 1
                if last is not None and last.variant in waiting:
                    yield _unaudited(waiting.pop(last.variant), str(death))
                self._worker.close(wait_s=0)
                if self._deaths >= DEATHS:
                    self._give_up(f"the second process died {DEATHS} times, last: {death}")
                else:
                    self._worker = self._start()
                    self._first_answer()
        for cell in waiting.values():
            yield _unaudited(cell, self._closed or "")


def _with_cupti(calibration: Calibration | None, answer: AuditReady) -> Calibration | None:
    if calibration is None:
        return None
    spins = {ns: structs.replace(probe, cupti_us=answer.spins.get(ns, [])) for ns, probe in calibration.spins.items()}
    own = {name: structs.replace(probe, cupti_us=answer.own.get(name, [])) for name, probe in calibration.own.items()}
    return structs.replace(calibration, spins=spins, own=own)


def _with_audit(cell: Cell, audit: Audited) -> Cell:
    if audit.rejection is not None:
        status, reason = audit.rejection
        return structs.replace(cell, status=status, reason=reason, metrics=None)
    launches = (cell.metrics.launches, audit.counts["cupti_launches"])
    if None not in launches and launches[0] != launches[1]:
        reason = f"same_work: its graph holds {launches[0]} operations, CUPTI saw {launches[1]}"
        return structs.replace(cell, status="mismatch", reason=reason, metrics=None)
    return structs.replace(cell, metrics=structs.replace(cell.metrics, **audit.counts))


def _unaudited(cell: Cell, why: str) -> Cell:
    return structs.replace(cell, metrics=structs.replace(cell.metrics, no_audit=why))
