"""The parent's side of the audit: asks the second process about the cells of a point and joins its answers to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from harness.config.sweep import Group
from harness.records.schema import Calibration, Cell
from harness.runner.protocol import Audited, AuditReady, Begin, Ready, Task
from harness.runner.worker import Worker, WorkerDied, WorkerSilent

#: A variant that ended the auditor's process this often is not audited at further points.
DEATHS = 2
#: An auditor that died this often while no variant had control is not started again; the cells after that say so.
STRAY_DEATHS = 3


class AuditClient:
    """Owns the auditor's process; ``start`` makes a new one. A cell whose audit cannot be had is kept and says why."""

    def __init__(self, worker: Worker, start: Callable[[], Worker]) -> None:
        self._worker, self._start = worker, start
        self._answer: AuditReady | None = None
        self._deaths: Counter[str] = Counter()
        self._stray_deaths = 0
        self._closed: str | None = None

    def joined(self, ready: Ready) -> Ready:
        """The worker's answer with CUPTI's view of the ruler's kernels in its calibration, or a note why there is
        none.
        """
        if self._answer is None and self._closed is None:
            self._answer = self._first_answer()
        if self._closed is not None:
            notes = (*ready.environment.notes, f"not audited: {self._closed}")
            return replace(ready, environment=structs.replace(ready.environment, notes=notes))
        return replace(ready, calibration=_with_cupti(ready.calibration, self._answer))

    def _first_answer(self) -> AuditReady | None:
        while True:
            try:
                answer = self._worker.ready
                break
            except WorkerDied as death:
                if isinstance(death, WorkerSilent):
                    self._stray_deaths = STRAY_DEATHS
                if not self._survives_stray(death):
                    return None
                self._restart()
        reason = answer.blocked if isinstance(answer, AuditReady) else answer.reason
        if reason is not None:
            self._give_up(reason)
            return None
        return answer

    def _survives_stray(self, death: WorkerDied) -> bool:
        """Count a death that no variant is to blame for; False where it was the last one."""
        self._stray_deaths += 1
        if self._stray_deaths >= STRAY_DEATHS:
            self._give_up(f"the second process died although no variant had control: {death}")
        return self._closed is None

    def _restart(self) -> None:
        self._worker.close(wait_s=0)
        self._worker = self._start()

    def _give_up(self, why: str) -> None:
        self._closed = why
        self._worker.close(wait_s=0)

    def dismiss(self) -> None:
        if self._closed is None:
            self._worker.dismiss()

    def close(self, wait_s: float = 30.0) -> None:
        if self._closed is None:
            self._worker.close(wait_s)

    def audited(self, group: Group, cells: Sequence[Cell]) -> Iterator[Cell]:
        """The cells of one point, each with what the auditor found; one that broke a promise is a mismatch now."""
        waiting = {cell.variant: cell for cell in cells}
        for cell in cells:
            if self._deaths[f"{cell.operator}/{cell.variant}"] >= DEATHS:
                yield _unaudited(
                    waiting.pop(cell.variant), f"not audited again, it ended the second process {DEATHS} times"
                )
        while waiting and self._closed is None:
            last: Begin | None = None
            try:
                for event in self._worker.ask(Task(group.operator.name, dict(group.point), tuple(waiting), 0.0)):
                    if isinstance(event, Audited):
                        yield _with_audit(waiting.pop(event.variant), event)
                    else:
                        last = event
                break
            except WorkerDied as death:
                if last is not None:
                    self._deaths[f"{group.operator.name}/{last.variant}"] += 1
                    if last.variant in waiting:
                        yield _unaudited(waiting.pop(last.variant), str(death))
                elif not self._survives_stray(death):
                    break
                self._restart()
                self._first_answer()
        for cell in waiting.values():
            yield _unaudited(cell, self._closed or "the second process did not answer")


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
