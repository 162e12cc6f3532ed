"""The parent's side of the audit: asks the auditor about the cells of a point and joins its answers to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from harness.config.sweep import Group
from harness.records.schema import Calibration, Cell, Status
from harness.runner.protocol import Audited, AuditReady, Fatal, Ready, Task
from harness.runner.supervised_worker import MAX_DEATHS, SupervisedWorker
from harness.runner.worker import WorkerDied

#: After so many deaths while no variant had control the audit is given up for the rest of the run.
MAX_UNATTRIBUTED_DEATHS = 3


class AuditClient:
    """Audits cells through the second process. A cell that cannot be audited is kept and says why.

    _given_up: why nothing is audited any more.
    """

    def __init__(self, worker: SupervisedWorker) -> None:
        self._worker = worker
        self._answer: AuditReady | None = None
        self._unattributed_deaths = 0
        self._given_up: str | None = None

    def wait_until_up(self) -> None:
        """Nothing that the process does to the device from here on is unasked for."""
        if self._given_up is not None:
            return
        try:
            answer = self._worker.wait_until_up()
        except WorkerDied as death:
            self._give_up(_died_without_culprit(death))
            return
        if isinstance(answer, Fatal):
            self._give_up(answer.reason)

    def joined(self, ready: Ready) -> Ready:
        """The first process's answer with CUPTI's times of the calibration kernels in its calibration, or with a note
        why there are none.
        """
        if self._answer is None and self._given_up is None:
            self._calibrate()
        if self._given_up is not None:
            notes = (*ready.environment.notes, f"not audited: {self._given_up}")
            return replace(ready, environment=structs.replace(ready.environment, notes=notes))
        return replace(ready, calibration=_with_cupti(ready.calibration, self._answer))

    def audited(self, group: Group, cells: Sequence[Cell]) -> Iterator[Cell]:
        """The cells of one point with the auditor's findings; a cell that fails one of its checks is a mismatch now."""
        pending = {cell.variant: cell for cell in cells}
        for cell in cells:
            if self._worker.excluded(f"{cell.operator}/{cell.variant}"):
                reason = f"not audited again, it ended the second process {MAX_DEATHS} times"
                yield _unaudited(pending.pop(cell.variant), reason)
        while pending and self._given_up is None:
            try:
                for event in self._worker.ask(Task(group.operator.name, dict(group.point), tuple(pending), 0.0)):
                    if isinstance(event, Audited):
                        yield _with_audit(pending.pop(event.variant), event)
                break
            except WorkerDied as death:
                culprit = self._worker.attribution.culprit
                if culprit is not None:
                    self._worker.blame(f"{group.operator.name}/{culprit}", death)
                    if culprit in pending:
                        yield _unaudited(pending.pop(culprit), str(death))
                self._recover(culprit, death)
        for cell in pending.values():
            yield _unaudited(cell, self._given_up or "the second process did not answer")

    def request_exit(self) -> None:
        self._worker.request_exit()

    def close(self, wait_s: float = 30.0) -> None:
        self._worker.close(wait_s)

    def _calibrate(self) -> None:
        try:
            answer = self._worker.wait_until_ready()
        except WorkerDied as death:
            self._give_up(_died_without_culprit(death))
            return
        reason = answer.blocked if isinstance(answer, AuditReady) else answer.reason
        if reason is not None:
            self._give_up(reason)
        else:
            self._answer = answer

    def _recover(self, culprit: str | None, death: WorkerDied) -> None:
        """Replace the process, unless it died too often without a variant to blame."""
        self._unattributed_deaths += culprit is None
        if self._unattributed_deaths >= MAX_UNATTRIBUTED_DEATHS:
            self._give_up(_died_without_culprit(death))
        else:
            self._worker.restart()
            self._calibrate()

    def _give_up(self, reason: str) -> None:
        self._given_up = reason
        self._worker.close(wait_s=0)


def _died_without_culprit(death: WorkerDied) -> str:
    return f"the second process died although no variant had control: {death}"


def _with_cupti(calibration: Calibration | None, answer: AuditReady) -> Calibration | None:
    if calibration is None:
        return None
    spins = {ns: structs.replace(times, **answer.spins.get(ns, {})) for ns, times in calibration.spins.items()}
    own = {name: structs.replace(times, **answer.own.get(name, {})) for name, times in calibration.own.items()}
    return structs.replace(calibration, spins=spins, own=own)


def _with_audit(cell: Cell, audit: Audited) -> Cell:
    if audit.rejection is not None:
        return structs.replace(cell, status=audit.rejection.status, reason=audit.rejection.reason, metrics=None)
    launches = (cell.metrics.launches, audit.counts["cupti_launches"])
    if None not in launches and launches[0] != launches[1]:
        reason = f"same_work: its graph holds {launches[0]} operations, CUPTI saw {launches[1]}"
        return structs.replace(cell, status=Status.MISMATCH, reason=reason, metrics=None)
    return structs.replace(cell, metrics=structs.replace(cell.metrics, **audit.counts))


def _unaudited(cell: Cell, reason: str) -> Cell:
    return structs.replace(cell, metrics=structs.replace(cell.metrics, no_audit=reason))
