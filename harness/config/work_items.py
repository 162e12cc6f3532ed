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
    rounded,
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


class Result(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="line", omit_defaults=True):
    """What a process found of a variant that it verified, timed or audited. A Check may have any number for a variant.

    metrics: at a point of a sweep that it passed: the least traffic; once it is timed, with samples; once it is
             audited, with CUPTI's samples and counts, or why there are none.
    proof:   where it passed its edge cases, if an earlier run verified them.
    seconds: activity -> how long it took.
    """

    operator: str
    variant: str
    finding: Finding
    metrics: Metrics | None = None
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

    def unaudited(self, reason: str) -> Result:
        """Of a variant that was timed: the same, and why there is no audit."""
        return structs.replace(self, metrics=structs.replace(self.metrics, no_audit=reason), seconds={})

    def then(self, later: Result) -> Result:
        """What was found later, with the proof and the seconds of both."""
        return structs.replace(later, proof=self.proof, seconds=added(self.seconds, later.seconds))


class Task(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="line", omit_defaults=True):
    """One operator at one point: verify its variants there, and time them in turns. As a request: time them.

    point:       label of the axes. baseline: the variant that ratios refer to.
    known_failures:      variant -> its known failures.
    budget_s:    seconds for which the variants may be timed together; None leaves it to the session.
    proven:      variants that passed their edge cases in an earlier run -> where.
    """

    answer: ClassVar[Any] = Answer[Result]

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

    def run(self, owner: Evaluator) -> list[Result]:
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

    @property
    def where(self) -> Where:
        return Where(Place.POINT, self.point)

    def died(self, variant: str, death: Death) -> Result:
        return Result(operator=self.operator, variant=variant, finding=death.finding(Status.FAILED, self.where))

    def cell(self, result: Result) -> Cell:
        """What became of a variant."""
        finding = result.finding
        passed = finding.status is Status.PASSED
        return Cell(
            operator=self.operator,
            variant=result.variant,
            baseline=self.baseline,
            point=self.point,
            axes=self.axes,
            status=finding.status,
            finding=finding if finding.status.is_bad else None,
            reason=finding.reason,
            metrics=result.metrics if passed else None,
            phase=self.phase,
            known_failures=self.known_failures.get(result.variant, {}),
            process=result.process,
            proof=result.proof if passed else None,
            seconds=rounded(result.seconds),
        )


# --- verification -----------------------------------------------------------------------------------------------------


class _Where(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="at", omit_defaults=True):
    """What a Check runs its variants on. label: for the line of progress."""

    label: str = ""

    def finding_of(self, death: Death) -> Finding:
        """Of a variant that ended its process there. A death is a rejection."""
        return death.finding(Status.MISMATCH, Where(Place.EDGE_CASE, ""))


class EdgeCases(_Where):
    """All edge cases and sequences of the operator but those at which the variant has a known failure.

    until_rejected: as before timing: up to the first that it does not pass, and most properties at the first alone.
    """

    until_rejected: bool = False


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


class Check(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="line", omit_defaults=True):
    """Verify variants of an operator, healthy or defective, one after the other. Nothing is timed."""

    answer: ClassVar[Any] = Answer[Result]

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

    def outcomes(self, worker: Evaluators) -> Iterator[Result]:
        for name in self.variants:
            yield from worker.check(self.of([name]))

    def run(self, owner: Evaluator) -> list[Result]:
        return owner.check(self)

    def died(self, variant: str, death: Death) -> Result:
        return Result(operator=self.operator, variant=variant, finding=self.where.finding_of(death))


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
