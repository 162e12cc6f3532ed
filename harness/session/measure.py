"""The life of a cell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from spec_decode_bench.harness.config.work_items import AtPoint, Check, EdgeCases, Result, Task
from spec_decode_bench.harness.records.schema import Cell, Finding, Place, Proof, Status, added
from spec_decode_bench.harness.session.messages import AuditOf, Job
from spec_decode_bench.harness.session.supervised_worker import SupervisedWorker
from spec_decode_bench.harness.session.worker import RunError, Worker, WorkerDied


def measure(task: Task, worker: Evaluators, auditor: Auditors | None) -> Iterator[Cell]:
    """Verify the variants of a point, time those that passed in turns, audit what they launch.

    Each answer is one value. A variant that ends a process has that for its finding, and the others are asked again.
    """
    results = {name: worker.verify(task, name) for name in task.variants}
    timed = worker.time(task.of([name for name, result in results.items() if result.is_to_be_timed]))
    for name, result in results.items():
        if name in timed:
            result = result.then(timed[name])
            if auditor and result.metrics:
                result = result.then(auditor.audit(task, result))
        yield task.cell(result)


#: Of findings that hold at every point.
_AT_EDGES = (Place.EDGE_CASE, Place.SEQUENCE, Place.IMPORT)


class Evaluators(SupervisedWorker):
    """The processes that verify and time, one after the other.

    timing_s: seconds for which variants were timed.
    """

    timing_s = 0.0

    def __init__(self, job: Job, start: Callable[[Job], Worker], replace: Callable[[WorkerDied], None]) -> None:
        super().__init__(job, start, replace)
        #: All that is remembered of who passed: variant -> the finding that rejects it at its edge cases and sequences,
        #: None where it passed them, or the proof that it did in an earlier run.
        self._at_edges: dict[str, Finding | Proof | None] = {}
        #: Key of a cell -> what was found at its point.
        self._at_points: dict[str, Result] = {}

    def verify(self, task: Task, name: str, planned: bool = True) -> Result:
        """Whether a variant passes its edge cases and sequences, of which the session runs it at once, and at a point:
        the first finding that rejects it, else that of the point. planned: whether the operator may leave it out.
        """
        if name in task.proven:
            self._at_edges.setdefault(task.id_of(name), task.proven[name])
        where = AtPoint(label=task.point, axes=task.axes, planned=planned)
        (checked,) = self.check(Check(operator=task.operator, variants=(name,), where=where))
        return checked

    def verify_once(self, task: Task, name: str) -> Result:
        """As ``verify``, of a point that comes again and that the operator may not leave out. A death is not
        remembered, as it may not happen again.
        """
        key = task.key(name)
        if (known := self._at_points.get(key)) is not None:
            return structs.replace(known, seconds={})
        checked = self.verify(task, name, planned=False)
        if checked.finding.check != "no_crash":
            self._at_points[key] = checked
        return checked

    def check(self, check: Check) -> list[Result]:
        """What is found of one variant somewhere."""
        (name,), where, known = check.variants, check.where, None
        variant_id = check.id_of(name)
        if isinstance(where, AtPoint) and variant_id in self._at_edges:
            known = self._at_edges[variant_id]
            rejected = known if isinstance(known, Finding) else None
            where = structs.replace(where, rejected=rejected, passed=not rejected, proven=isinstance(known, Proof))
        found = self.settle(structs.replace(check, where=where))
        if isinstance(where, EdgeCases | AtPoint):
            self.remember(variant_id, found)
        if isinstance(where, AtPoint):  # one outcome, for which its edge cases may have run, too
            first = next((one for one in found if one.finding.status.is_bad), found[-1])
            found = [structs.replace(first, seconds=added(*(one.seconds for one in found)))]
        if isinstance(known, Proof):
            found = [structs.replace(one, proof=known) for one in found]
        return found

    def remember(self, variant_id: str, found: Sequence[Result]) -> None:
        """Who passed the edge cases, or was rejected there; not a death, which may not happen again."""
        at_edges = [one.finding for one in found if one.finding.place in _AT_EDGES]
        if at_edges and at_edges[-1].check != "no_crash":
            rejection = next((finding for finding in at_edges if finding.status.is_bad), None)
            if rejection or any(finding.status is Status.PASSED for finding in at_edges):
                self._at_edges[variant_id] = rejection

    def time(self, task: Task) -> dict[str, Result]:
        """Variant -> its samples, of variants that passed at this point."""
        timed = {timed.variant: timed for timed in self.settle(task)}
        self.timing_s += sum(one.seconds.get("time", 0.0) for one in timed.values())
        return timed


class Auditors(SupervisedWorker):
    """The processes that use CUPTI, one after the other. Cells that cannot be audited are kept, with the reason.

    unable: why nothing is audited any more.
    """

    unable: str | None = None

    def audit(self, task: Task, timed: Result) -> Result:
        """What the auditor finds of a variant that was timed."""
        if self.unable is not None:
            return timed.unaudited(self.unable)
        began = time.monotonic()
        try:
            (audited,) = self.settle(AuditOf(task, timed))
        except RunError as error:
            self.give_up(str(error))
            return timed.unaudited(self.unable)
        audited = structs.replace(audited, seconds={"audit": time.monotonic() - began}, process=timed.process)
        launches, counted = timed.metrics.launches, audited.metrics and audited.metrics.cupti_launches
        if None in (launches, counted) or launches == counted:
            return audited
        message = f"its graph holds {launches} operations, CUPTI saw {counted}"
        finding = task.where.finding(Status.MISMATCH, check="same_work", message=message)
        return structs.replace(audited, finding=structs.replace(finding, when="audit"))

    def give_up(self, reason: str) -> None:
        """No further audit in this run."""
        if self.unable is None:
            self.unable = reason
            self.close(wait_s=0)
