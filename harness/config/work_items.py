"""Units of work, and the answers of workers: plain data, which travels through a pipe, to another GPU, or to a node.

A plan is a list of work items (harness/config), a Session runs them (harness/session). Operators and variants are
named, and looked up where they run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import msgspec
from msgspec import structs

from spec_decode_bench.harness import registry
from spec_decode_bench.harness.contract import Buffers
from spec_decode_bench.harness.records.schema import (
    AuditCounts,
    Cell,
    Code,
    Finding,
    Metrics,
    Place,
    Proof,
    Status,
    Where,
    added,
    cell_key,
)

if TYPE_CHECKING:
    from spec_decode_bench.harness.session.evaluator import Evaluator
    from spec_decode_bench.harness.session.measure import Evaluators


class WorkItem(Protocol):
    """What a session can run, beside a Task, which it measures. Rooms add kinds (``registry.Section``).

    variants: names of what outcomes are asked for: variants, or what else a room measures.
    label:    where they run, for the line of progress.
    """

    variants: tuple[str, ...]
    label: str

    def id_of(self, variant: str) -> str:
        """The name by which the session knows one of ``variants`` in all items."""

    def outcomes(self, worker: Evaluators) -> Iterator[Any]:
        """In the parent: the outcomes of all variants, by what the processes answer. Raises RunError."""


class Planned(WorkItem, Protocol):
    """One whose outcomes are lines of a record."""

    def of(self, variants: Collection[str]) -> Self:
        """The item with some of its variants."""

    def key(self, variant: str) -> str:
        """Of its line."""


class Request(Protocol):
    """What a process is asked. It answers with an outcome for each of ``variants``.

    answer: type of the answer.
    """

    variants: tuple[str, ...]
    answer: ClassVar[Any]

    def id_of(self, variant: str) -> str:
        """As of a work item."""

    def of(self, variants: Collection[str]) -> Self:
        """The request for some of its variants."""

    def run(self, owner: Any) -> list[Any]:
        """In the process. Raises ContextLost where any of several variants may have lost it."""

    def died(self, variant: str, death: Death) -> Any:
        """The outcome of a variant that ended the process."""


@dataclass(frozen=True)
class Death:
    """How a variant ended its process.

    culprit: who had control, "operator/variant"; None where nobody had. count: how often the variant did, where it is
             not run again. where: what it was run on, if it is known.
    """

    message: str
    culprit: str | None = None
    where: Where | None = None
    count: int | None = None

    def finding(self, status: Status, where: Where) -> Finding:
        """where: what it was run on, where the death does not say."""
        found = (self.where or where).finding(status, check="no_crash", message=self.message)
        return structs.replace(found, culprit=self.culprit, deaths=self.count)


AnOutcome = TypeVar("AnOutcome")


class Answer(msgspec.Struct, Generic[AnOutcome], frozen=True, tag="answer", tag_field="line"):
    """Of a process to a request.

    lost: whether the last outcome is of a variant that took the CUDA context with it; outcomes of others may then be
          missing, and the process ends.
    """

    outcomes: list[AnOutcome]
    lost: bool = False


# --- a point ----------------------------------------------------------------------------------------------------------


class Timed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The samples of a variant, or why there are none. seconds: activity -> how long it took."""

    variant: str
    metrics: Metrics | None = None
    finding: Finding | None = None
    seconds: dict[str, float] = {}
    process: int = 0


class Task(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="line", omit_defaults=True):
    """One operator at one point: verify its variants there, and time them in turns. As a request: time them.

    point:       label of the axes. baseline: the variant that ratios refer to.
    known_failures:      variant -> its known failures.
    budget_s:    seconds for which the variants may be timed together; None leaves it to the session.
    proven:      variants that passed their edge cases in an earlier run -> where.
    """

    answer: ClassVar[Any] = Answer[Timed]

    operator: str
    variants: tuple[str, ...]
    axes: dict[str, Any]
    point: str
    baseline: str
    phase: Literal["decode", "prefill"] = "decode"
    known_failures: dict[str, dict[str, str]] = {}
    budget_s: float | None = None
    proven: dict[str, Proof] = {}

    @property
    def label(self) -> str:
        return self.point

    def id_of(self, variant: str) -> str:
        return f"{self.operator}/{variant}"

    def key(self, variant: str) -> str:
        return cell_key(self.operator, variant, self.point)

    def run(self, owner: Evaluator) -> list[Timed]:
        return owner.time(self)

    def of(self, variants: Collection[str]) -> Task:
        """With their share of the time."""
        chosen = tuple(name for name in self.variants if name in variants)
        budget_s = self.budget_s and self.budget_s * len(chosen) / len(self.variants)
        return structs.replace(self, variants=chosen, budget_s=budget_s)

    def trusting(self, proven: dict[str, Proof]) -> Task:
        """proven: "operator/variant" -> where it passed its edge cases."""
        own = {name: proven[self.id_of(name)] for name in self.variants if self.id_of(name) in proven}
        return structs.replace(self, proven=own)

    def died(self, variant: str, death: Death) -> Timed:
        return Timed(variant=variant, finding=death.finding(Status.FAILED, Where(Place.POINT, self.point)))

    def cell(self, checked: Checked, timed: Timed | None = None, audited: Audited | None = None) -> Cell:
        """What became of a variant, by the answers about it."""
        ends = [answer for answer in (audited, timed, checked) if answer is not None]
        finding = next((answer.finding for answer in ends if answer.finding is not None), checked.finding)
        metrics = None
        if finding.status is Status.PASSED:
            metrics = timed.metrics if timed else Metrics(bytes_moved=checked.bytes_moved or 0)
            if audited is not None:
                metrics = _with_audit(metrics, audited)
        return Cell(
            operator=self.operator,
            variant=checked.variant,
            baseline=self.baseline,
            point=self.point,
            axes=self.axes,
            status=finding.status,
            finding=finding if finding.status.is_bad else None,
            reason=finding.reason,
            metrics=metrics,
            phase=self.phase,
            known_failures=self.known_failures.get(checked.variant, {}),
            process=(timed or checked).process,
            proof=checked.proof if finding.status is Status.PASSED else None,
            seconds=added(*(answer.seconds for answer in reversed(ends))),
        )


def _with_audit(metrics: Metrics, audited: Audited) -> Metrics:
    counts = audited.counts or AuditCounts()
    return structs.replace(
        metrics,
        no_audit=audited.no_audit,
        cupti_us=counts.cupti_us,
        cupti_launches=counts.cupti_launches,
        eager_launches=counts.eager_launches,
        allocations=counts.allocations,
        synchronizations=counts.synchronizations,
        memcpys=counts.memcpys,
    )


class Audited(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the auditor found of one variant.

    counts:   and CUPTI times. no_audit: why there are none.
    finding:  of the check that rejected it.
    """

    variant: str
    counts: AuditCounts | None = None
    no_audit: str | None = None
    finding: Finding | None = None
    seconds: dict[str, float] = {}
    process: int = 0


# --- verification -----------------------------------------------------------------------------------------------------


class _Where(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="at", omit_defaults=True):
    """What a Check runs its variants on. label: for the line of progress."""

    label: str = ""

    def finding_of(self, death: Death) -> Finding:
        """Of a variant that ended its process there. A death is a rejection."""
        return death.finding(Status.MISMATCH, Where(Place.EDGE_CASE, ""))


class EdgeCases(_Where):
    """All edge cases and sequences of the operator but those at which the variant has a known failure."""


class Named(_Where):
    """One edge case or sequence, in all buffers.

    known_failure: in these ``buffers`` alone, although the variant is known to fail there, and judged as such.
    """

    name: str
    buffers: Buffers | None = None
    known_failure: bool = False

    def finding_of(self, death: Death) -> Finding:
        status = Status.KNOWN_FAILURE if self.known_failure else Status.MISMATCH
        return death.finding(status, Where(Place.EDGE_CASE, self.name, self.buffers))


class AsEdgeCase(_Where):
    """Any point, checked as thoroughly as an edge case, and as a point of the covering array of the job's seed."""

    axes: dict[str, Any]


class AtPoint(_Where):
    """A point of the covering array, for one launch, or of a sweep. label: of the point.

    planned:  whether the operator may leave it out.
    rejected: the finding of an edge case or sequence that rejected the variant before. passed: whether it passed all
              of them before; proven: in an earlier run, so that one launch will do.
    """

    axes: dict[str, Any]
    in_array: bool = False
    planned: bool = True
    rejected: Finding | None = None
    passed: bool = False
    proven: bool = False

    @property
    def place(self) -> Place:
        return Place.ARRAY_POINT if self.in_array else Place.POINT

    def finding_of(self, death: Death) -> Finding:
        return death.finding(Status.FAILED, Where(self.place, self.label))


class Checked(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="line", omit_defaults=True):
    """One finding of a Check, of which a variant may have any number.

    bytes_moved: least traffic at a point of a sweep that it passed. proof: where it passed its edge cases, if an
    earlier run verified them.
    """

    operator: str
    variant: str
    finding: Finding
    bytes_moved: int | None = None
    proof: Proof | None = None
    seconds: dict[str, float] = {}
    process: int = 0

    @property
    def variant_id(self) -> str:
        return f"{self.operator}/{self.variant}"

    @property
    def is_to_be_timed(self) -> bool:
        """Whether it passed, and not in Triton's interpreter."""
        interpreted = self.finding.reason is not None and self.finding.reason.code is Code.INTERPRETED
        return self.finding.status is Status.PASSED and not interpreted


class Check(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="line", omit_defaults=True):
    """Verify variants of an operator, healthy or defective, one after the other. Nothing is timed."""

    answer: ClassVar[Any] = Answer[Checked]

    operator: str
    variants: tuple[str, ...]
    where: EdgeCases | Named | AsEdgeCase | AtPoint = EdgeCases()

    @property
    def label(self) -> str:
        return self.where.label

    def id_of(self, variant: str) -> str:
        return f"{self.operator}/{variant}"

    def of(self, variants: Collection[str]) -> Check:
        return structs.replace(self, variants=tuple(name for name in self.variants if name in variants))

    def outcomes(self, worker: Evaluators) -> Iterator[Checked]:
        for name in self.variants:
            yield from worker.check(self.of([name]))

    def run(self, owner: Evaluator) -> list[Checked]:
        return owner.check(self)

    def died(self, variant: str, death: Death) -> Checked:
        return Checked(operator=self.operator, variant=variant, finding=self.where.finding_of(death))


AnyItem = TypeVar("AnyItem", bound=Planned)


def item_kinds() -> tuple[type, ...]:
    """Of WorkItem, all that there are."""
    return (Task, Check, *(section.item for section in registry.SECTIONS.values()))


def keys_of(items: Collection[Planned]) -> list[str]:
    """Of all their lines, in order."""
    return [item.key(name) for item in items for name in item.variants]


def with_keys(items: Collection[AnyItem], keys: Collection[str]) -> list[AnyItem]:
    """The items with these lines only, without those that have none of them."""
    cut = (item.of([name for name in item.variants if item.key(name) in keys]) for item in items)
    return [item for item in cut if item.variants]
