"""Times a launch on a GPU, without what it holds of the suite's own beside an engine's (harness/engine_launch.py). A
sample of a launch holds:

host_us    CPU time to submit one launch: monotonic clock around HOST_CALLS launches, the device idle before and drained
           after.
eager_us   from submission to completion of one launch on an idle device, submission included.
stream_us  launches queued one by one behind a spinning kernel, time between the events around them; in the first rounds
           only.
graph_us   T(k), the time of a CUDA graph that holds k copies of the launch; gpu_us is its slope. Each replay is queued
           behind a kernel that spins until everything is queued, so that submission and delays of the host are outside
           of the events. The graphs are captured anew in every round: replays of one graph repeat to a tenth of a per
           cent, but graphs of the same launches differ by several per cent, depending on where the driver puts them.
state_us   the one-copy graph once more, in the run's cache state, if that is not hot.

The rounds cycle through several sets of buffers, because the time of a small kernel depends on where its buffers lie.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from spec_decode_bench.harness.analysis.cache_states import HOT, CacheName
from spec_decode_bench.harness.analysis.estimators import GRAPH_SLOPE, QUEUED_EVENTS
from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.cuda import launcher
from spec_decode_bench.harness.cuda_graph import Graph, GraphCapture, check_nodes
from spec_decode_bench.harness.engine_launch import EngineLaunch, own_launches
from spec_decode_bench.harness.errors import first_line
from spec_decode_bench.harness.host_lock import Lock
from spec_decode_bench.harness.timing.cache import CALIBRATION_KERNELS, Cache
from spec_decode_bench.harness.timing.queued_events import QueuedEvents
from spec_decode_bench.harness.timing.rounds import STREAM_ROUNDS, PlacedLaunch

WARMUP_CALLS = 3
#: Launches per host sample: few, so that the queue of the device never fills up.
HOST_CALLS = 5
#: Calls between two events, few and many; the cost of the events is not in their difference. MANY_CALLS is reduced for
#: a long chain to at most STREAM_LAUNCHES launches: after about a thousand in a stream the host has to wait.
FEW_CALLS, MANY_CALLS, STREAM_LAUNCHES = 1, 8, 512
#: Of the graphs with more than SMALLEST numbers of copies only the largest is captured that has no more nodes and
#: microseconds: sizes between do not change a Theil-Sen slope, and what takes long has a precise slope without it.
SMALLEST, MAX_NODES, MAX_GRAPH_US = 2, 128, 1000.0
#: Share of rounds in which the nodes of the graphs are compared one by one, and not only counted.
SIGNATURE_SHARE = 0.1


class CudaTimer:
    """Makes the stopwatches of a process, which share its graph capture, spin kernels and cache state."""

    def __init__(self, graph_copies: Sequence[int], cache: CacheName = "hot", host_lock: Lock = nullcontext) -> None:
        """host_lock: makes the lock to hold while host time is measured."""
        self.graph_copies, self.host_lock = tuple(graph_copies), host_lock
        self.cache = Cache(cache)
        self.recorder = GraphCapture()
        self._spins: dict[int, Callable[[], None]] = {}
        sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        self._busy = launcher(CALIBRATION_KERNELS, "busy", sms * 4, 256, torch.zeros(1, device="cuda"), 100_000)

    def ramp(self, seconds: float) -> None:
        """Keep all SMs busy until the clock has had this long to rise."""
        end = perf_counter() + seconds
        while perf_counter() < end:
            self._busy()
            torch.cuda.synchronize()

    def spin(self, microseconds: float) -> None:
        """Queue a kernel that waits so long, rounded up to 10 us so that few closures are made."""
        steps = int(-(-microseconds // 10))
        if steps not in self._spins:
            self._spins[steps] = launcher(CALIBRATION_KERNELS, "spin", 1, 1, steps * 10_000)
        self._spins[steps]()

    def stopwatch(
        self, *launches: PlacedLaunch, stream_rounds: int = STREAM_ROUNDS, host: bool = True
    ) -> CudaStopwatch:
        """launches: one on each set of buffers. stream_rounds: number of samples with stream_us. host: whether samples
        have host_us and eager_us.
        """
        return CudaStopwatch(self, launches, stream_rounds, host)


@dataclass(frozen=True)
class _Timed:
    """A launch, or the suite's own part of it, and its graphs, by copies. name: remembers how long queueing takes."""

    name: str
    launch: Callable[[], Any]
    graphs: Mapping[int, Graph]


class CudaStopwatch:
    """Times one launch, on another set of buffers in every round. Raises Mismatch where timed calls do not do the work
    that they are timed for.

    buffer_set, launch: index of the set that was timed last, and the launch on it.
    """

    def __init__(self, timer: CudaTimer, launches: Sequence[PlacedLaunch], stream_rounds: int, host: bool) -> None:
        self._timer, self._launches, self._stream_rounds, self._host = timer, launches, stream_rounds, host
        self.buffer_set = 0
        for launch_there in launches:
            for _ in range(WARMUP_CALLS):
                launch_there.launch()
        torch.cuda.synchronize()
        self._events = QueuedEvents(timer.spin)
        self._graphs: dict[int, Graph] = {}
        self._own_graphs: dict[int, Graph] = {}  # of the suite's own launches beside an engine's
        copies = sorted(timer.graph_copies)
        self._copies = copies[:SMALLEST]
        self.no_graph: str | None = None
        try:
            self._capture()
            us = self._replay_us(_Timed("all", self.launch, self._graphs), copies[0]) / copies[0]
            nodes = self.facts()["launches"]
            fit = [k for k in copies[SMALLEST:] if k * nodes <= MAX_NODES and k * us <= MAX_GRAPH_US]
            self._copies += fit[-1:]
        except Mismatch:
            raise
        except Exception as error:  # whatever the reason, the launch cannot be captured, and the record says so
            self._graphs, self.no_graph = {}, first_line(error)
        self.leading = "gpu_us" if self._graphs else "eager_us"

    @property
    def launch(self) -> Callable[[], Any]:
        return self._launches[self.buffer_set].launch

    def _capture(self) -> None:
        """Capture a new set of graphs, in random order and before the old set is freed, so that they do not take its
        memory.
        """
        order = random.sample(self._copies, len(self._copies))
        fresh = {copies: self._timer.recorder.graph(self.launch, copies) for copies in order}
        check_nodes({copies: graph.nodes for copies, graph in fresh.items()})
        if not self._graphs or random.random() < SIGNATURE_SHARE:
            check_nodes({copies: graph.signatures() for copies, graph in fresh.items()})
        shared = next(copies for copies in order if copies in (self._graphs or fresh))
        if self._graphs and fresh[shared].nodes != self._graphs[shared].nodes:
            raise Mismatch(
                "same_work",
                f"captured again, the graph holds {fresh[shared].nodes}, before it held {self._graphs[shared].nodes}",
            )
        self._graphs = {copies: fresh[copies] for copies in self._copies}
        own = own_launches(self.launch)
        if own is not None:
            self._own_graphs = {copies: self._timer.recorder.graph(own, copies) for copies in order}

    def _stream_calls(self) -> tuple[int, ...]:
        """Numbers of calls between two events; none where even two calls are too many launches."""
        many = min(MANY_CALLS, STREAM_LAUNCHES // self.facts()["launches"])
        return (FEW_CALLS, many) if many > FEW_CALLS else ()

    def _engine_us(
        self, stage: str, take: Callable[[_Timed], dict[int, float]], replayed: bool = False
    ) -> dict[int, float]:
        """What ``take`` measures of the launch, less what it measures of the suite's own part, if there is one.

        That part goes first and is not watched: alone, it leaves state that was put back, or results of other calls.
        """
        own = own_launches(self.launch)
        own_us = take(_Timed("own", own, self._own_graphs)) if own is not None else {}
        us = self._watched(stage, lambda: take(_Timed("all", self.launch, self._graphs)), replayed)
        return {number: us[number] - own_us.get(number, 0.0) for number in sorted(us)}

    def _replay_us(self, timed: _Timed, copies: int) -> float:
        """Time of a second replay; the first one uploads the graph."""
        replay = timed.graphs[copies].replay
        self._events.queue(replay)
        return self._events.microseconds((timed.name, "replay"), replay)

    def _graphs_us(self, timed: _Timed) -> dict[int, float]:
        """Every graph of the set once, in random order, so that a variant cannot know which of them is checked."""
        return {copies: self._replay_us(timed, copies) for copies in random.sample(self._copies, len(self._copies))}

    def _state_us(self, timed: _Timed) -> dict[int, float]:
        """Of the smallest graph."""
        rewrite_inputs, copies = self._launches[self.buffer_set].rewrite_inputs, min(timed.graphs)
        prepare = lambda: self._timer.cache.prepare(rewrite_inputs)  # noqa: E731
        return {copies: self._events.microseconds((timed.name, "state"), timed.graphs[copies].replay, prepare)}

    def _stream_us(self, timed: _Timed) -> dict[int, float]:
        def queued(calls: int) -> float:
            def work() -> None:
                for _ in range(calls):
                    timed.launch()

            return self._events.microseconds((timed.name, calls), work)

        return {calls: queued(calls) for calls in self._stream_calls()}

    @property
    def replay(self) -> Callable[[], None] | None:
        return self._graphs[max(self._graphs)].replay if self._graphs else None

    def _host_us(self) -> float:
        launch = self.launch
        torch.cuda.synchronize()
        if isinstance(launch, EngineLaunch):
            elapsed = sum(launch.engine_s() for _ in range(HOST_CALLS))
            torch.cuda.synchronize()
            return elapsed * 1e6 / HOST_CALLS
        start = perf_counter()
        for _ in range(HOST_CALLS):
            launch()
        elapsed = perf_counter() - start
        torch.cuda.synchronize()
        return elapsed * 1e6 / HOST_CALLS

    def _eager_us(self) -> float:
        if isinstance(self.launch, EngineLaunch):
            return self.launch.engine_s(torch.cuda.synchronize) * 1e6
        torch.cuda.synchronize()
        start = perf_counter()
        self.launch()
        torch.cuda.synchronize()
        return (perf_counter() - start) * 1e6

    def _watched(self, stage: str, take: Callable[[], Any], replayed: bool = False) -> Any:
        """What ``take`` returns. Raises Mismatch where its calls did not write the outputs."""
        output_probe = self._launches[self.buffer_set].output_probe
        if output_probe is None:
            return take()
        output_probe.arm(replayed)
        times = take()
        output_probe.check(stage)
        return times

    def sample(self, round_number: int = 0) -> Mapping[str, Any]:
        self.buffer_set = round_number % len(self._launches)
        sample: dict[str, Any] = {}
        if self._host:
            with self._timer.host_lock():
                sample["host_us"] = self._watched("host", self._host_us)
                sample["eager_us"] = self._watched("eager", self._eager_us)
        if self._graphs:
            if self._stream_rounds:
                self._stream_rounds -= 1
                sample[QUEUED_EVENTS.field] = self._engine_us("queued", self._stream_us)
            self._capture()
            sample[GRAPH_SLOPE.field] = self._engine_us("graph", self._graphs_us, replayed=True)
            if self._timer.cache.state is not HOT:
                (sample["state_us"],) = self._engine_us("graph", self._state_us, replayed=True).values()
        return sample

    def facts(self) -> Mapping[str, Any]:
        if not self._graphs:
            return {"no_graph": self.no_graph}
        copies, graph = next(iter(self._graphs.items()))
        nodes = Counter(graph.nodes)
        if copies in self._own_graphs:
            nodes -= Counter(self._own_graphs[copies].nodes)
        nodes = {kind: count // copies for kind, count in nodes.items()}
        return {"launches": sum(nodes.values()), "graph_nodes": nodes}
