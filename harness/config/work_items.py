"""Units of work: plain data, which travels through a pipe, to another GPU, a node or a test.

A plan is a list of them (harness/config), a Session runs them (harness/session). Operators and variants are named, and
looked up where they run. Each item asks for the outcomes of ``variants``, and can be cut down to some of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar

import msgspec
from msgspec import structs

from spec_decode_bench.harness import registry
from spec_decode_bench.harness.contract import Buffers
from spec_decode_bench.harness.records.schema import (
    Audit,
    Cell,
    Finding,
    Metrics,
    Place,
    Proof,
    Reason,
    Status,
    cell_key,
)

if TYPE_CHECKING:
    from spec_decode_bench.harness.session.evaluator import Evaluator


class WorkItem(Protocol):
    """What a session can run. Rooms add kinds (``registry.Section``).

    variants: names of what outcomes are asked for: variants, or what else a room measures.
    label:    where they run, for the line of progress.
    """

    variants: tuple[str, ...]
    label: str

    def id_of(self, variant: str) -> str:
        """The name by which the session knows one of ``variants`` in all items."""

    def of(self, variants: Collection[str]) -> Self:
        """The item with some of its variants."""

    def run(self, evaluator: Evaluator) -> Iterator[Any]:
        """In a worker: heartbeats, and an outcome for each variant. Raises ContextLost."""

    def failed(self, variant: str, **fields: Any) -> Any:
        """The outcome of a variant that ended its process. fields: of Finding."""


class Planned(WorkItem, Protocol):
    """One whose outcomes are lines of a record."""

    def key(self, variant: str) -> str:
        """Of its line."""

    def with_proofs(self, proven: dict[str, Proof], machine: str) -> Self:
        """proven: "operator/variant" -> proof, on the kind of machine of this hash."""


class Task(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="line", omit_defaults=True):
    """One operator at one point: verify its variants there, and time them in turns.

    point:       label of the axes. baseline: the variant that ratios refer to.
    slow:        variants whose verification takes seconds.
    known_failures:      variant -> its known failures.
    budget_s:    seconds for which the variants may be timed together; None leaves it to the session.
    proven:      variants that passed their edge cases before -> where; on the kind of machine that ``machine`` is the
                 hash of (harness/session/proofs.py). audits: likewise, variants that were audited at this point.
    """

    operator: str
    variants: tuple[str, ...]
    axes: dict[str, Any]
    point: str
    baseline: str
    phase: Literal["decode", "prefill"] = "decode"
    slow: tuple[str, ...] = ()
    known_failures: dict[str, dict[str, str]] = {}
    budget_s: float | None = None
    proven: dict[str, Proof] = {}
    audits: dict[str, Audit] = {}
    machine: str = ""

    @property
    def label(self) -> str:
        return self.point

    def id_of(self, variant: str) -> str:
        return f"{self.operator}/{variant}"

    def key(self, variant: str) -> str:
        return cell_key(self.operator, variant, self.point)

    def run(self, evaluator: Evaluator) -> Iterator[Any]:
        return evaluator.cells(self)

    def of(self, variants: Collection[str]) -> Task:
        """With their share of the time."""
        chosen = tuple(name for name in self.variants if name in variants)
        budget_s = self.budget_s and self.budget_s * len(chosen) / len(self.variants)
        return structs.replace(self, variants=chosen, budget_s=budget_s)

    def with_proofs(self, proven: dict[str, Proof], machine: str) -> Task:
        own = {name: proven[self.id_of(name)] for name in self.variants if self.id_of(name) in proven}
        return structs.replace(self, proven=own, machine=machine)

    def cell(
        self,
        variant: str,
        status: Status,
        *,
        finding: Finding | None = None,
        reason: Reason | None = None,
        metrics: Metrics | None = None,
    ) -> Cell:
        return Cell(
            operator=self.operator,
            variant=variant,
            baseline=self.baseline,
            point=self.point,
            axes=self.axes,
            status=status,
            finding=finding,
            reason=reason,
            metrics=metrics,
            phase=self.phase,
            known_failures=self.known_failures.get(variant, {}),
        )

    def failed(self, variant: str, **fields: Any) -> Cell:
        """The cell of a variant that is wrong at this point. fields: of Finding; a death has no status."""
        finding = Finding(**{"status": Status.FAILED, "place": Place.POINT, "name": self.point} | fields)
        return self.cell(variant, finding.status, finding=finding)


class _Where(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="at", omit_defaults=True):
    """What a Check runs its variants on. label: for the line of progress."""

    label: str = ""

    @property
    def of_death(self) -> dict[str, Any]:
        """Fields of the Finding of a variant that ended its process there. A death is a rejection."""
        return {"status": Status.MISMATCH, "place": Place.EDGE_CASE, "name": ""}


class EdgeCases(_Where):
    """All edge cases and sequences of the operator but those at which the variant has a known failure."""


class Named(_Where):
    """One edge case or sequence, in all buffers.

    known_failure: in these ``buffers`` alone, although the variant is known to fail there, and judged as such.
    """

    name: str
    buffers: Buffers | None = None
    known_failure: bool = False

    @property
    def of_death(self) -> dict[str, Any]:
        status = Status.KNOWN_FAILURE if self.known_failure else Status.MISMATCH
        return {"status": status, "place": Place.EDGE_CASE, "name": self.name, "buffers": self.buffers}


class AsEdgeCase(_Where):
    """Any point, checked as thoroughly as an edge case, and as a random batch of the job's seed."""

    axes: dict[str, Any]


class AtPoint(_Where):
    """A point of the covering array, for one launch, or of a sweep. label: of the point."""

    axes: dict[str, Any]
    in_array: bool = False

    @property
    def place(self) -> Place:
        return Place.ARRAY_POINT if self.in_array else Place.POINT

    @property
    def of_death(self) -> dict[str, Any]:
        return {"status": Status.FAILED, "place": self.place, "name": self.label}


class RandomBatches(_Where, kw_only=True):
    """``count`` random batches."""

    count: int
    label: str = "random batches"

    @property
    def of_death(self) -> dict[str, Any]:
        return {"status": Status.MISMATCH, "place": Place.RANDOM_BATCH, "name": ""}


class Check(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="line", omit_defaults=True):
    """Verify variants of an operator, healthy or defective, one after the other. Nothing is timed."""

    operator: str
    variants: tuple[str, ...]
    where: EdgeCases | Named | AsEdgeCase | AtPoint | RandomBatches = EdgeCases()

    @property
    def label(self) -> str:
        return self.where.label

    def id_of(self, variant: str) -> str:
        return f"{self.operator}/{variant}"

    def of(self, variants: Collection[str]) -> Check:
        return structs.replace(self, variants=tuple(name for name in self.variants if name in variants))

    def run(self, evaluator: Evaluator) -> Iterator[Any]:
        return evaluator.check(self)

    def found(self, variant: str, finding: Finding) -> Checked:
        return Checked(operator=self.operator, variant=variant, finding=finding)

    def failed(self, variant: str, **fields: Any) -> Checked:
        return self.found(variant, Finding(**self.where.of_death | fields))


class Checked(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="line", omit_defaults=True):
    """One finding of a Check, of which a variant may have any number."""

    operator: str
    variant: str
    finding: Finding

    @property
    def variant_id(self) -> str:
        return f"{self.operator}/{self.variant}"


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
