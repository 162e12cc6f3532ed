"""Runs a decode loop in the worker: verifies every variant of every stack, then interleaves the stacks.

A stack that fails in verification, set-up or a block is dropped; the others continue.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from msgspec import structs

from spec_decode_bench.decode_loop.bindings import bindings_of
from spec_decode_bench.decode_loop.expected import ExpectedBlock, expect
from spec_decode_bench.decode_loop.items import LoopItem, PlannedStack
from spec_decode_bench.decode_loop.loop import DecodeLoop, LoopMismatch, Settings, tables_of
from spec_decode_bench.decode_loop.records import Loop, LoopBlock
from spec_decode_bench.decode_loop.state import Part
from spec_decode_bench.decode_loop.workload import Workload, make_workload
from spec_decode_bench.harness.config.sweep import task_of
from spec_decode_bench.harness.records.schema import Finding, Metrics, Proof, Status, rounded
from spec_decode_bench.harness.session.measure import check_context
from spec_decode_bench.harness.session.messages import Heartbeat
from spec_decode_bench.harness.timing.rounds import CellTimings, PlacedLaunch
from spec_decode_bench.harness.verify.edge_cases import wrong
from spec_decode_bench.harness.wording import printable

if TYPE_CHECKING:
    from spec_decode_bench.harness.session.evaluator import Evaluator

#: Samples of the operators of a step outside of the loop.
ALONE_ROUNDS = 8
#: Seconds of full load before a loop.
RAMP_S = 0.2


class LoopEvaluator:
    """Owned by the evaluator of its process, whose catalogue, checks and timer it uses."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._seed, self._device = evaluator.job.seed, evaluator.job.device
        self._bindings = bindings_of(evaluator.catalog)
        self._outcomes: dict[tuple[str, str, str], dict[str, Any] | None] = {}
        self._expected: dict[tuple, tuple[Workload, list[ExpectedBlock]]] = {}
        self._proofs: dict[str, Proof] = {}
        #: Stack of the current loop -> activity -> seconds.
        self._seconds: dict[str, Counter[str]] = {}
        self._alone: dict[tuple[int, int, PlannedStack], Metrics | None] = {}

    def loop(self, item: LoopItem) -> Iterator[Heartbeat | Loop]:
        """All stacks of a loop. Raises ContextLost; the session asks again for those without a line."""
        rejected, parts = {}, {}
        for stack in item.stacks:
            yield Heartbeat(stack.name, "verify")
            parts[stack.name] = self._parts(item, stack)
            began, compiled_s = time.perf_counter(), self._evaluator.compiled_s
            rejected[stack.name] = yield from self._verify(item, stack, parts[stack.name])
            self._seconds[stack.name] = Counter(self._evaluator.spent(began, compiled_s))
        yield Heartbeat(item.stacks[0].name, "verify")
        running = [stack for stack in item.stacks if rejected[stack.name] is None]
        for stack in item.stacks:
            if (problem := rejected[stack.name]) is not None:
                yield item.line(stack.name, **problem)
        if running:
            yield from self._run(item, running, parts)

    def _parts(self, item: LoopItem, stack: PlannedStack) -> list[Part]:
        parts = []
        for operator_name, variant in stack.parts:
            catalog = self._evaluator.catalog
            operator, binding = catalog.operators[operator_name], self._bindings[operator_name]
            point = operator.complete(binding.axes(item.shape))
            parts.append(Part(operator, catalog.find(operator_name, variant), binding, point))
        return parts

    def _verify(self, item: LoopItem, stack: PlannedStack, parts: Sequence[Part]) -> Iterator[Heartbeat]:
        """Returns why the stack cannot run, as fields of its line; None if every variant passed its edge cases and at
        the loop's shape.
        """
        for part in parts:
            at = task_of(part.operator, part.point, [part.variant]).with_proofs(item.proven, item.machine)
            key = (part.operator.name, part.variant.name, at.point)
            if key not in self._outcomes:
                self._outcomes[key] = None
                for event in self._evaluator.check_at(at, part.point, part.variant):
                    if isinstance(event, Finding):
                        self._outcomes[key] = _left_out(event, part.variant.id)
                    else:
                        yield Heartbeat(stack.name, "verify")
                if proof := self._evaluator.proof_of(at, part.variant.name):
                    self._proofs[part.variant.id] = proof
            if (problem := self._outcomes[key]) is not None:
                return problem
        return None

    def _run(
        self, item: LoopItem, running: Sequence[PlannedStack], parts: dict[str, list[Part]]
    ) -> Iterator[Heartbeat | Loop]:
        config, point = item.config, item.at
        key = (point.concurrency, point.next_n, point.scheduling)
        if key not in self._expected:
            workload, blocks = make_workload(item, self._seed), []
            for block in expect(workload, parts[running[0].name]):
                yield Heartbeat(running[0].name, "verify")  # the references are slow
                blocks.append(block)
            self._expected = {key: (workload, blocks)}
        workload, blocks = self._expected[key]
        settings = Settings(
            device=self._device,
            model_step_us=point.model_step_us,
            host_step_us=config.host_step_us,
            is_async=point.scheduling == "async",
            full_graph=point.graph == "full",
        )
        loop = DecodeLoop(workload, blocks, settings, tuple(tables_of(parts[running[0].name], workload)))
        waits = self._device == "cuda" and not settings.is_async and not settings.full_graph
        blocks_of: dict[str, list[LoopBlock]] = {}
        waited: dict[str, list[float]] = {stack.name: [] for stack in running}
        ended: dict[str, Loop] = {}
        for stack in running:
            yield Heartbeat(stack.name, "verify")
            try:
                loop.set_up(stack.name, parts[stack.name])
                blocks_of[stack.name] = []
            except Exception as error:  # a variant may raise anything
                ended[stack.name] = self._ended(item, loop, stack, error)
        self._evaluator.ramp(RAMP_S)
        # Turn -1 warms up: it is checked as the others are, and not recorded.
        for number in range(-1, config.blocks):
            for stack in running if number % 2 == 0 else running[::-1]:
                if stack.name in ended:
                    continue
                yield Heartbeat(stack.name, "block")
                began = time.perf_counter()
                try:
                    block = loop.block(stack.name, max(number, 0), item.key(stack.name), vars(point))
                    if number >= 0:
                        blocks_of[stack.name].append(block)
                        waited[stack.name] += loop.waited_us(stack.name) if waits else []
                except Exception as error:  # a variant may raise anything
                    ended[stack.name] = self._ended(item, loop, stack, error)
                self._seconds[stack.name]["time"] += time.perf_counter() - began
        for stack in running:
            yield Heartbeat(stack.name, "block")
            if stack.name not in ended:
                try:
                    ids = [part.variant.id for part in parts[stack.name]]
                    samples = {
                        "seconds": rounded(self._seconds[stack.name]),
                        "proofs": {name: self._proofs[name] for name in ids if name in self._proofs},
                        "alone": self._timed_alone(loop, item, stack),
                        "waited_us": waited[stack.name],
                        "trace": loop.trace(stack.name),
                    }
                    yield item.line(stack.name, Status.PASSED, blocks=blocks_of[stack.name], **samples)
                    continue
                except Exception as error:
                    ended[stack.name] = self._ended(item, loop, stack, error)
            yield ended[stack.name]

    def _ended(self, item: LoopItem, loop: DecodeLoop, stack: PlannedStack, error: Exception) -> Loop:
        """The line of a stack that failed. Raises ContextLost where the error took the context with it."""
        loop.drop(stack.name)
        check_context(self._device)
        if isinstance(error, LoopMismatch):
            return item.failed(stack.name, status=Status.MISMATCH, message=printable(str(error)))
        return item.failed(stack.name, **wrong(error))

    def _timed_alone(self, loop: DecodeLoop, item: LoopItem, stack: PlannedStack) -> Metrics | None:
        """The operators of a step timed outside of the loop, as cells of a sweep are, once for all loops of a shape;
        None on a CPU.
        """
        timer, key = self._evaluator.timer, (item.at.concurrency, item.at.next_n, stack)
        if timer is None:
            return None
        if key not in self._alone:
            alone = PlacedLaunch(loop.launch_alone(stack.name))
            timings = CellTimings(timer.stopwatch(alone, stream_rounds=ALONE_ROUNDS))
            for _ in range(ALONE_ROUNDS):
                timings.add_sample()
            torch.cuda.synchronize()
            self._alone[key] = timings.metrics(bytes_moved=0)
        return self._alone[key]


def _left_out(finding: Finding, variant: str) -> dict[str, Any]:
    """Why a variant that has a finding instead of a launch does not take part, as fields of its stack's line."""
    if finding.status.is_bad:
        return {"status": finding.status, "finding": structs.replace(finding, variant=variant)}
    status = Status.SKIPPED if finding.status is Status.PASSED else finding.status
    return {"status": status, "reason": structs.replace(finding.reason, variant=variant)}
