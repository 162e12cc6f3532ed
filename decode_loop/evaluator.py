"""Runs a decode loop in the worker: interleaves its stacks, whose variants were verified.

A stack that fails in set-up or a block is dropped; the others continue.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import torch
from msgspec import structs

from spec_decode_bench.decode_loop.bindings import bindings_of
from spec_decode_bench.decode_loop.expected import ExpectedBlock, expect
from spec_decode_bench.decode_loop.items import LoopItem, PlannedStack
from spec_decode_bench.decode_loop.loop import DecodeLoop, LoopMismatch, Settings, tables_of
from spec_decode_bench.decode_loop.records import Loop, LoopBlock
from spec_decode_bench.decode_loop.state import Part
from spec_decode_bench.decode_loop.workload import Workload, make_workload
from spec_decode_bench.harness.records.schema import Metrics, Place, Status, Where, rounded
from spec_decode_bench.harness.session.messages import Heartbeat
from spec_decode_bench.harness.session.sampling import check_context
from spec_decode_bench.harness.timing.rounds import CellTimings, PlacedLaunch
from spec_decode_bench.harness.verify.edge_cases import wrong

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
        self._expected: dict[tuple, tuple[Workload, list[ExpectedBlock]]] = {}
        #: Stack of the current loop -> activity -> seconds.
        self._seconds: dict[str, Counter[str]] = {}
        self._alone: dict[tuple[int, int, PlannedStack], Metrics | None] = {}

    def loop(self, item: LoopItem) -> list[Loop]:
        """Stacks whose variants were verified, in turns. Raises ContextLost."""
        self._seconds = {stack.name: Counter() for stack in item.stacks}
        return self._run(item, {stack.name: self._parts(item, stack) for stack in item.stacks})

    def _parts(self, item: LoopItem, stack: PlannedStack) -> list[Part]:
        parts = []
        for operator_name, variant in stack.parts:
            catalog = self._evaluator.catalog
            operator, binding = catalog.operators[operator_name], self._bindings[operator_name]
            point = operator.complete(binding.axes(item.shape))
            parts.append(Part(operator, catalog.find(operator_name, variant), binding, point))
        return parts

    def _run(self, item: LoopItem, parts: dict[str, list[Part]]) -> list[Loop]:
        running = item.stacks
        config, point = item.config, item.at
        key = (point.concurrency, point.next_n, point.scheduling)
        if key not in self._expected:
            workload, blocks = make_workload(item, self._seed), []
            for block in expect(workload, parts[running[0].name]):
                self._heartbeat(running[0])  # the references are slow
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
            self._heartbeat(stack)
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
                self._heartbeat(stack)
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
            self._heartbeat(stack)
            if stack.name in ended:
                continue
            try:
                ended[stack.name] = structs.replace(
                    item.line(stack.name, Status.PASSED),
                    blocks=blocks_of[stack.name],
                    alone=self._timed_alone(loop, item, stack),
                    waited_us=waited[stack.name],
                    trace=loop.trace(stack.name),
                    seconds=rounded(self._seconds[stack.name]),
                )
            except Exception as error:
                ended[stack.name] = self._ended(item, loop, stack, error)
        return [ended[stack.name] for stack in running]

    def _heartbeat(self, stack: PlannedStack) -> None:
        """Before it gets control."""
        self._evaluator.tell(Heartbeat((stack.name,)))

    def _ended(self, item: LoopItem, loop: DecodeLoop, stack: PlannedStack, error: Exception) -> Loop:
        """The line of a stack that failed. Raises ContextLost where the error took the context with it."""
        loop.drop(stack.name)
        check_context(self._device)
        where = Where(Place.POINT, item.at.label)
        if isinstance(error, LoopMismatch):
            finding = where.finding(Status.MISMATCH, message=str(error))
        else:
            finding = wrong(where, error)
        return item.line(stack.name, finding.status, finding)

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
