"""Decode loops as work items: which stacks take turns in which loop."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec import structs

from spec_decode_bench.decode_loop.configuration import DecodeLoop, geometry_name
from spec_decode_bench.decode_loop.engine_state import EngineShape
from spec_decode_bench.decode_loop.records import Loop, loop_key
from spec_decode_bench.harness.config.work_items import Answer, Death, Result, Task
from spec_decode_bench.harness.records.schema import Finding, Place, Reason, Status, Where, added

if TYPE_CHECKING:
    from spec_decode_bench.harness.session.evaluator import Evaluator
    from spec_decode_bench.harness.session.measure import Evaluators


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

    tasks: operators of the stacks at their points in the loop, with the variants that run there.
    """

    answer: ClassVar[Any] = Answer[Loop]

    config: DecodeLoop
    at: LoopPoint
    shape: EngineShape
    reference: str
    stacks: tuple[PlannedStack, ...]
    tasks: tuple[Task, ...]

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

    def outcomes(self, worker: Evaluators) -> Iterator[Loop]:
        """All stacks: of those whose variants all pass, what was measured."""
        checked = {stack.name: list(self._checked(worker, stack)) for stack in self.stacks}
        running = [name for name, parts in checked.items() if parts[-1].is_to_be_timed]
        measured = {line.stack: line for line in worker.settle(self.of(running))}
        for name, parts in checked.items():
            line = measured.get(name) or self._left_out(name, parts[-1])
            seconds = added(*(part.seconds for part in parts), line.seconds)
            yield structs.replace(line, seconds=seconds)

    def _checked(self, worker: Evaluators, stack: PlannedStack) -> Iterator[Result]:
        """Its variants at their edge cases and at the loop's shape, up to one that does not pass."""
        tasks = {task.operator: task for task in self.tasks}
        for operator, variant in stack.parts:
            checked = worker.verify_once(tasks[operator], variant)
            yield checked
            if not checked.is_to_be_timed:
                return

    def run(self, owner: Evaluator) -> list[Loop]:
        from spec_decode_bench.decode_loop.evaluator import LoopEvaluator

        if LoopItem not in owner.kept:
            owner.kept[LoopItem] = LoopEvaluator(owner)
        return owner.kept[LoopItem].loop(self)

    def of(self, variants: Collection[str]) -> LoopItem:
        """The loop with some of its stacks."""
        stacks = tuple(stack for stack in self.stacks if stack.name in variants)
        parts = {part for stack in stacks for part in stack.parts}
        cut = (task.of([name for name in task.variants if (task.operator, name) in parts]) for task in self.tasks)
        return structs.replace(self, stacks=stacks, tasks=tuple(task for task in cut if task.variants))

    def line(self, stack: str, status: Status, finding: Finding | None = None, reason: Reason | None = None) -> Loop:
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
            finding=finding,
            reason=reason,
        )

    def died(self, variant: str, death: Death) -> Loop:
        finding = death.finding(Status.FAILED, Where(Place.POINT, self.at.label))
        return self.line(variant, finding.status, finding)

    def _left_out(self, stack: str, checked: Result) -> Loop:
        """Why a stack does not run: by the variant in it that does not."""
        finding, variant = checked.finding, checked.variant_id
        if finding.status.is_bad:
            line = self.line(stack, finding.status, structs.replace(finding, variant=variant))
        else:
            status = Status.SKIPPED if finding.status is Status.PASSED else finding.status
            line = self.line(stack, status, reason=structs.replace(finding.reason, variant=variant))
        return structs.replace(line, process=checked.process)
