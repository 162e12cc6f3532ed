"""The loop: interleaves the stacks in blocks of decode steps and compares every step with the simulation.

A step, in stream order: entries of the host's scheduler, the operators of the stack that come before the forward pass,
the stand-in model step, acceptance, the copy of the counts to the host, the operators after sampling, the drafter's
reads. Under ``sync`` scheduling the host waits for these counts before it prepares the next step; under ``async`` it
prepares the next step on upper bounds first. No event and no NVTX range lies between the metadata and the model step of
a measured step.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch

from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.decode_loop.device import Device, make_device
from spec_decode_bench.decode_loop.diagnosis import first_difference
from spec_decode_bench.decode_loop.engine_state import Consumed
from spec_decode_bench.decode_loop.expected import ExpectedBlock
from spec_decode_bench.decode_loop.records import LoopBlock, LoopRequest, LoopSpan
from spec_decode_bench.decode_loop.scheduler import CountError, Scheduler
from spec_decode_bench.decode_loop.state import BoundStack, Engine, Part, bind, make_engine, restore
from spec_decode_bench.decode_loop.workload import Workload
from spec_decode_bench.harness.engine_launch import EngineLaunch, own, own_launches
from spec_decode_bench.harness.nvtx_ranges import nvtx_range

#: Intervals at the beginning of a block that are not recorded: the first step starts from an idle device, and the host
#: is slower until its caches hold the code of the current stack.
WARMUP_INTERVALS = 3
#: Samples of the operators alone per block, each after a wait.
WAITED_SAMPLES = 3
#: Steps of a trace, of which the last ones are typical.
TRACE_STEPS = 6
#: Decimals of a recorded time, microseconds.
DECIMALS = 1


#: When the host has prepared a step, written its entries, submitted the operators before the forward pass, the model
#: step, acceptance and the copy of the counts, and what follows them.
Moment = Literal["prepared", "written", "metadata_submitted", "model_submitted", "sampled", "submitted"]


class LoopMismatch(Exception):
    """A stack's step is not the simulated one; the message names step, request and table."""


@dataclass(frozen=True)
class Settings:
    """What a loop's timing depends on besides its workload."""

    device: str
    model_step_us: float
    host_step_us: float
    is_async: bool
    full_graph: bool


@dataclass
class _ReadyStack:
    """A stack after set-up.

    graphs: by parity, the operators captured with the model step; None without capture.
    after:  by parity, what is launched after sampling: the operators and the drafter's reads, or one graph of them.
    """

    bound: BoundStack
    model: Callable[[], Any]
    graphs: tuple[Callable[[], Any], Callable[[], Any]] | None
    after: tuple[Sequence[Callable[[], Any]], Sequence[Callable[[], Any]]]


@dataclass
class _BlockRun:
    """Host times of a block, seconds, by step; what the device reported."""

    known: np.ndarray
    busy: np.ndarray
    late: np.ndarray
    final: np.ndarray
    error: str | None = None


class DecodeLoop:
    """One loop on the device of this process.

    tables: names of what every stack builds, in the order of the checksums.
    """

    def __init__(
        self, workload: Workload, blocks: Sequence[ExpectedBlock], settings: Settings, tables: Sequence[str]
    ) -> None:
        self._workload, self._blocks, self._settings, self._tables = workload, blocks, settings, tuple(tables)
        self._engine: Engine = make_engine(workload, settings.device)
        self._device: Device = make_device(settings.device, self._engine, workload, len(tables), settings.model_step_us)
        self._parts: dict[str, Sequence[Part]] = {}
        self._ready: dict[str, _ReadyStack] = {}
        self._turns = 0
        #: Of the host, seconds in the suite's own launches around an engine's kernels since the step began.
        self._own_s = 0.0

    def set_up(self, stack: str, parts: Sequence[Part]) -> None:
        """Bind a stack and capture its graphs. Raises what its variants raise."""
        restore(self._engine, self._blocks[-1].device)
        bound, captured = bind(self._engine, parts, self._settings.device), self._device.captured
        for parity in (0, 1):  # compile before anything is captured or timed
            for launch in (*bound.launches[parity], *bound.after[parity]):
                launch()
        self._device.synchronize()
        read: dict[bool, dict[int, Consumed]] = {False: {}, True: {}}
        for number, name in enumerate(self._tables):
            read[name in bound.drafted][number] = bound.tables[name]
        launch_model, drafter = self._device.model(read[False]), self._device.drafter(read[True])
        graphs, after = None, bound.after
        if self._settings.full_graph:
            graphs = tuple(captured(in_sequence(*launches, launch_model)) for launches in bound.launches)
        if bound.drafted:
            if self._settings.full_graph:
                after = tuple([captured(in_sequence(*launches, drafter))] for launches in after)
            else:
                reads = captured(drafter)
                after = tuple([*launches, reads] for launches in after)
        model = launch_model if graphs else captured(launch_model)
        self._parts[stack], self._ready[stack] = parts, _ReadyStack(bound, model, graphs, after)

    def drop(self, stack: str) -> None:
        self._ready.pop(stack, None)

    def launch_alone(self, stack: str) -> Callable[[], None]:
        """The operators of one step, without scheduler and model. Counts by slot, which they change in place, are put
        back before each.
        """
        restore(self._engine, self._blocks[-1].device)
        bound, put_back = self._ready[stack].bound, []
        if self._engine.state.slots is not None:
            counts = self._engine.counts
            before = counts.clone()
            put_back.append(own(lambda: counts.copy_(before)))
        return EngineLaunch(*put_back, *bound.launches[0], *bound.after[0])

    def waited_us(self, stack: str) -> list[float]:
        """From submission to completion of the operators before the forward pass, on an idle device, each after the
        host waited for a model step: what they cost where a step waits for the step before. Those after sampling are
        submitted behind that model step, as in the loop. Host times drift within seconds: call it after each turn of
        the stack.
        """
        restore(self._engine, self._blocks[-1].device)
        ready, device, samples = self._ready[stack], self._device, []
        launch = in_sequence(*ready.bound.launches[0])
        host_s = self._settings.host_step_us * 1e-6
        for _ in range(WAITED_SAMPLES):
            device.start_block()
            ready.model()
            device.fetch(0)
            for launch_after in ready.bound.after[1]:
                launch_after()
            device.wait(0)
            began = perf_counter()
            while perf_counter() < began + host_s:
                pass
            began = perf_counter()
            launch()
            device.synchronize()
            samples.append(_us(perf_counter() - began))
        return samples

    def block(self, stack: str, number: int, key: str = "", axes: Mapping[str, Any] | None = None) -> LoopBlock:
        """Run one block of a stack, in an NVTX range. Raises LoopMismatch, and whatever its launches raise."""
        expected = self._blocks[number]
        with nvtx_range(key, "loop", axes):
            block_run = self._run_block(stack, expected)
        times = self._device.times(self._workload.steps_per_block)
        self._check(stack, expected, block_run)
        skip, self._turns = WARMUP_INTERVALS, self._turns + 1
        rounded = lambda values: [round(float(value), DECIMALS) for value in values]  # noqa: E731
        return LoopBlock(
            number=number,
            turn=self._turns - 1,
            itl_us=rounded(times.itl[skip:]),
            host_itl_us=rounded(1e6 * np.diff(block_run.known)[skip:]),
            gap_us=rounded(times.gap[skip:]),
            host_busy_us=rounded(1e6 * block_run.busy[1 + skip :]),
            late=int(block_run.late[1 + skip :].sum()),
            requests=_received(expected, 1 + skip),
        )

    # --- one block ---------------------------------------------------------------------------------------------------

    def _start(self, stack: str, expected: ExpectedBlock) -> Scheduler:
        """Restore the state before the block: the tensors on the device, and the scheduler on the host."""
        restore(self._engine, expected.device)
        self._ready[stack].bound.poison()
        self._device.start_block()
        self._own_s = 0.0
        host = tuple(staged.numpy() for staged, _ in self._engine.staging)
        to_device = tuple(tensor.numpy() for tensor in self._engine.state.to_device)
        layout = self._engine.layout
        return Scheduler(self._workload, layout, expected.host, expected.first_step, host, to_device)

    def _run_block(self, stack: str, expected: ExpectedBlock) -> _BlockRun:
        """Run all steps of a block, without checks in between."""
        scheduler, device, ready = self._start(stack, expected), self._device, self._ready[stack]
        steps, first = self._workload.steps_per_block, expected.first_step
        known, busy, late = np.zeros(steps), np.zeros(steps), np.zeros(steps, dtype=bool)
        behind, error = int(self._settings.is_async), None

        def reached(moment: Moment, i: int) -> None:
            if moment == "metadata_submitted":
                late[i] = i > 0 and device.is_done(i - 1)

        gc.collect(0)
        gc.disable()  # a collection would count as the host's time of whichever stack it hits
        try:
            for i in range(steps):
                began = perf_counter()
                self._step(ready, scheduler, i, reached)
                busy[i] = perf_counter() - began
                if i >= behind:
                    self._learn(scheduler, i - behind, first, known, busy)
            if behind:
                self._learn(scheduler, steps - 1, first, known, busy)
        except CountError as problem:
            error = str(problem)
        finally:
            gc.enable()
        device.synchronize()
        return _BlockRun(known, busy, late, scheduler.final_lengths(), error)

    def _step(self, ready: _ReadyStack, scheduler: Scheduler, i: int, reached: Callable[[Moment, int], None]) -> None:
        """Submit one step of a block. reached: called at each moment of it, on the host."""
        device, parity = self._device, i % 2
        # An engine has no copies of the suite's: they take the place of other work of the host.
        end_of_host_s, self._own_s = perf_counter() + self._settings.host_step_us * 1e-6 - self._own_s, 0.0
        entries = scheduler.prepare(parity)
        while perf_counter() < end_of_host_s:  # a scheduler's other work
            pass
        reached("prepared", i)
        device.write(parity, entries)
        reached("written", i)
        if ready.graphs is None:
            self._launch(ready.bound.launches[parity])
            reached("metadata_submitted", i)
            ready.model()
        else:
            reached("metadata_submitted", i)
            ready.graphs[parity]()
        device.end_of_model(i)
        reached("model_submitted", i)
        device.accept(parity)
        device.fetch(i)
        reached("sampled", i)
        self._launch(ready.after[parity])
        reached("submitted", i)

    def _launch(self, launches: Sequence[Callable[[], Any]]) -> None:
        for launch in launches:
            if own_launches(launch) is None:
                launch()
            else:
                began = perf_counter()
                engine_s = launch.engine_s()
                self._own_s += perf_counter() - began - engine_s

    def _learn(self, scheduler: Scheduler, step: int, first: int, known: np.ndarray, busy: np.ndarray) -> None:
        counts = self._device.wait(step)
        known[step] = perf_counter()
        scheduler.learn(counts, first + step)
        busy[step] += perf_counter() - known[step]

    # --- comparison with the simulation -------------------------------------------------------------------------------

    def _check(self, stack: str, expected: ExpectedBlock, block_run: _BlockRun) -> None:
        """Raises LoopMismatch for the first step that is not the simulated one."""
        sums, counts = self._device.checksums(), self._device.counts()
        wanted = np.stack([expected.checksums[name] for name in self._tables], axis=1)
        tokens = np.array([step.counts for step in expected.steps])
        wrong_tables, wrong_counts = sums != wanted, counts != tokens
        wrong = wrong_tables.any(axis=1) | wrong_counts.any(axis=1)
        if wrong.any():
            step = int(np.argmax(wrong))
            if wrong_tables[step].any():
                raise LoopMismatch(self._locate(stack, expected, step, wrong_tables[step]))
            row = int(np.argmax(wrong_counts[step]))
            raise LoopMismatch(
                f"step {expected.first_step + step}: request {expected.steps[step].requests[row]} got "
                f"{counts[step, row]} tokens, expected {tokens[step, row]}"
            )
        if block_run.error is not None:
            raise LoopMismatch(block_run.error)
        lengths = np.array([row if known else -1 for row, known in zip(expected.lengths, expected.lives, strict=True)])
        if (block_run.final[lengths >= 0] != lengths[lengths >= 0]).any():
            row = int(np.argmax((block_run.final != lengths) & (lengths >= 0)))
            raise LoopMismatch(
                f"after step {expected.first_step + len(expected.steps) - 1}: request in row {row} has "
                f"{block_run.final[row]} tokens, expected {lengths[row]}"
            )
        if (stray := self._ready[stack].bound.stray_write()) is not None:
            raise LoopMismatch(stray)

    def _locate(self, stack: str, expected: ExpectedBlock, step: int, wrong: np.ndarray) -> str:
        """Repeat the block up to the wrong step, waiting after each, and compare the tables with the references."""
        names = [name for name, is_wrong in zip(self._tables, wrong, strict=True) if is_wrong]
        scheduler, device = self._start(stack, expected), self._device
        ready = replace(self._ready[stack], graphs=None)
        behind = int(self._settings.is_async)
        try:
            for i in range(step + 1):
                self._step(ready, scheduler, i, lambda *_: device.synchronize())
                if behind <= i < step + behind:
                    scheduler.learn(device.wait(i - behind), expected.first_step + i - behind)
        except CountError as problem:
            return f"step {expected.first_step + step}: table {names[0]} differs; {problem}"
        difference = first_difference(self._workload, expected, step, self._parts[stack], ready.bound.tables, names)
        where = f"step {expected.first_step + step}: {difference or f'table {names[0]} differs'}"
        if difference is None:
            return (
                f"{where}, but not when the block is repeated step by step: its work is not ordered by the stream, or "
                "not deterministic"
            )
        return where

    # --- a trace ------------------------------------------------------------------------------------------------------

    def trace(self, stack: str) -> list[LoopSpan]:
        """A few steps on the lanes of host and device, with events that the measured steps do not have."""
        scheduler, device, ready = self._start(stack, self._blocks[0]), self._device, self._ready[stack]
        steps, behind = min(TRACE_STEPS, self._workload.steps_per_block), int(self._settings.is_async)
        marks = Marks(self._settings.device)
        on_host: list[tuple[str, int, float, float]] = []
        for i in range(steps):
            moments = {"began": perf_counter()}

            def reached(moment: Moment, i: int, moments: dict[str, float] = moments) -> None:
                moments[moment] = perf_counter()
                marks.mark(moment, i)

            self._step(ready, scheduler, i, reached)
            spans = [("schedule", "began", "prepared"), *_spans(ready, i, "prepared", "sampled")]
            on_host += [(name, i, moments[start], moments[end]) for name, start, end in spans]
            if i >= behind:
                start = perf_counter()
                counts = device.wait(i - behind)
                on_host.append(("wait", i - behind, start, perf_counter()))
                scheduler.learn(counts, self._blocks[0].first_step + i - behind)
        device.synchronize()
        lanes = [
            LoopSpan(lane="host", name=name, step=i, start_us=_us(a - marks.zero_s), end_us=_us(b - marks.zero_s))
            for name, i, a, b in on_host
        ]
        for i in range(steps):
            lanes += [
                LoopSpan(lane="device", name=name, step=i, start_us=marks.us(start, i), end_us=marks.us(end, i))
                for name, start, end in _spans(ready, i, "written", "model_submitted")
            ]
        return lanes


def _spans(ready: _ReadyStack, step: int, start: Moment, end: Moment) -> Iterator[tuple[str, Moment, Moment]]:
    """(name, first and last moment) of what a trace shows of a step. start, end: of metadata and model step."""
    if ready.graphs is None:
        yield "metadata", start, "metadata_submitted"
        yield "model", "metadata_submitted", end
    else:
        yield "model", start, end  # one graph of both
    if ready.after[step % 2]:
        yield "metadata", "sampled", "submitted"


class Marks:
    """When the device reaches the moments of a step, in microseconds since an event on the idle device."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self._marks: dict[tuple[Moment, int], Any] = {}
        if self._cuda:
            torch.cuda.synchronize()
            self._zero = torch.cuda.Event(enable_timing=True)
            self.zero_s = perf_counter()
            self._zero.record()
        else:
            self.zero_s = perf_counter()

    def mark(self, moment: Moment, step: int) -> None:
        if self._cuda:
            event = self._marks[moment, step] = torch.cuda.Event(enable_timing=True)
            event.record()
        else:
            self._marks[moment, step] = perf_counter()

    def us(self, moment: Moment, step: int) -> float:
        mark = self._marks[moment, step]
        return round(1000 * self._zero.elapsed_time(mark), DECIMALS) if self._cuda else _us(mark - self.zero_s)


def _us(seconds: float) -> float:
    return round(1e6 * seconds, DECIMALS)


def _received(expected: ExpectedBlock, skip: int) -> list[LoopRequest]:
    """What every request received in the steps from ``skip`` on; interval 0 of the samples ends with that step."""
    found: dict[int, list[int]] = {}
    for interval, step in enumerate(expected.steps[skip:]):
        for request, tokens in zip(step.requests, step.delivered, strict=True):
            if tokens:
                mine = found.setdefault(request, [interval, 0, 0])
                mine[1] += 1
                mine[2] += tokens
    return [LoopRequest(request, first, steps, tokens) for request, (first, steps, tokens) in sorted(found.items())]


def tables_of(parts: Sequence[Part], workload: Workload) -> Mapping[str, None]:
    """Names of the tables that a stack builds, in the order of a step."""
    return dict.fromkeys(name for part in parts for name in part.binding.builds(workload.shape))
