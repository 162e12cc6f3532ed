"""Decode loops as work items: which stacks take turns in which loop."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from spec_decode_bench.decode_loop.configuration import DecodeLoop, geometry_name
from spec_decode_bench.decode_loop.engine_state import EngineShape
from spec_decode_bench.decode_loop.records import Loop, loop_key
from spec_decode_bench.harness.records.schema import Finding, Place, Proof, Status

if TYPE_CHECKING:
    from spec_decode_bench.harness.session.evaluator import Evaluator
    from spec_decode_bench.harness.session.messages import Heartbeat


@dataclass(frozen=True)
class LoopPoint:
    """One loop of a run."""

    concurrency: int
    batch_size: int
    next_n: int
    model_step_us: float
    scheduling: str
    graph: str

    @property
    def label(self) -> str:
        return (
            f"concurrency={self.concurrency},next_n={self.next_n},model_step_us={self.model_step_us:g},"
            f"scheduling={self.scheduling},graph={self.graph}"
        )


@dataclass(frozen=True)
class PlannedStack:
    """parts: (operator, variant) in the order of a step. known_failures: what one of them does not support, and why."""

    name: str
    parts: tuple[tuple[str, str], ...]
    known_failures: tuple[tuple[str, str], ...] = ()


class LoopItem(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="line"):
    """One decode loop: verify its stacks, and let them take turns. Its ``variants`` are the names of the stacks.

    proven: "operator/variant" -> proof, and machine: as in Task.
    """

    config: DecodeLoop
    at: LoopPoint
    shape: EngineShape
    reference: str
    stacks: tuple[PlannedStack, ...]
    proven: dict[str, Proof] = {}
    machine: str = ""

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(stack.name for stack in self.stacks)

    @property
    def label(self) -> str:
        return self.at.label

    def id_of(self, stack: str) -> str:
        return stack

    def key(self, stack: str) -> str:
        return loop_key(stack, self.at.label)

    def run(self, evaluator: Evaluator) -> Iterator[Heartbeat | Loop]:
        from spec_decode_bench.decode_loop.evaluator import LoopEvaluator

        if LoopItem not in evaluator.kept:
            evaluator.kept[LoopItem] = LoopEvaluator(evaluator)
        return evaluator.kept[LoopItem].loop(self)

    def of(self, variants: Collection[str]) -> LoopItem:
        """The loop with some of its stacks."""
        return structs.replace(self, stacks=tuple(stack for stack in self.stacks if stack.name in variants))

    def line(self, stack: str, status: Status, **rest: Any) -> Loop:
        """The outcome of one stack."""
        planned = next(candidate for candidate in self.stacks if candidate.name == stack)
        return Loop(
            stack=stack,
            reference=self.reference,
            point=self.at.label,
            axes={**vars(self.at), "geometry": geometry_name(self.config)},
            operators=dict(planned.parts),
            known_failures=dict(planned.known_failures),
            status=status,
            **rest,
        )

    def with_proofs(self, proven: dict[str, Proof], machine: str) -> LoopItem:
        """proven: "operator/variant" -> proof."""
        names = {f"{operator}/{variant}" for stack in self.stacks for operator, variant in stack.parts}
        return structs.replace(
            self, proven={name: proof for name, proof in proven.items() if name in names}, machine=machine
        )

    def failed(self, variant: str, **fields: Any) -> Loop:
        finding = Finding(**{"status": Status.FAILED, "place": Place.POINT, "name": self.at.label} | fields)
        return self.line(variant, finding.status, finding=finding)
