"""Times of a launch on a GPU.

host_us    CPU time to submit one launch: monotonic clock around a few calls, the device idle before and drained after.
gpu_us     slope of T(k), the time of a CUDA graph that holds k copies of the launch. Each replay stands behind a kernel
           that spins until everything is queued, so neither submission nor the host's noise is inside the events.
           The graphs are captured anew in every round: on an H200 one graph repeats its time to 0.1 %, but two graphs of
           the same launches differ by up to 7 %, so samples of one graph would tell a false story precisely.
eager_us   from submission to completion on an idle device, submission included.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver

from harness.cuda import launcher
from harness.wording import first_line

PROBES = Path(__file__).with_name("probes.cu")
WARMUP_CALLS = 3
#: Launches per host sample: the device is never more than these few behind.
HOST_CALLS = 5
#: The spin in front of a replay lasts as long as queueing the graph's first replay did, plus this.
SPIN_MARGIN_US = 20.0
#: A replay that began before all was queued is repeated behind a spin twice as long, this many times at most.
SPIN_TRIES = 6


class Graph:
    """``copies`` launches captured back to back."""

    def __init__(self, launch: Callable[[], Any], copies: int, pool: Any, stream: torch.cuda.Stream) -> None:
        self._graph = torch.cuda.CUDAGraph(keep_graph=True)
        stream.wait_stream(torch.cuda.current_stream())
        # Not torch.cuda.graph(): its garbage collection and cache flush cost more than everything measured here.
        with torch.cuda.stream(stream):
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                for _ in range(copies):
                    launch()
            except Exception:
                # The capture is void already; ending it raises once more, and the first error is the one to report.
                with contextlib.suppress(Exception):
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        self.nodes = _count_nodes(self._graph.raw_cuda_graph())
        self._graph.instantiate()
        self.replay = self._graph.replay


def _count_nodes(handle: int) -> dict[str, int]:
    """Node type -> count, e.g. {"kernel": 4, "memcpy": 1}."""
    graph = driver.CUgraph(handle)
    _, _, number = _checked(driver.cuGraphGetNodes(graph))
    _, nodes, _ = _checked(driver.cuGraphGetNodes(graph, number))
    counts: dict[str, int] = {}
    for node in nodes[:number]:
        kind = _checked(driver.cuGraphNodeGetType(node))[1].name.removeprefix("CU_GRAPH_NODE_TYPE_").lower()
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def _check_nodes(nodes: Mapping[int, Mapping[str, int]]) -> None:
    """k copies of a launch are k times the nodes of one, or the slope is not the time of a launch. Raises RuntimeError."""
    (fewest, first), *others = sorted(nodes.items())
    if not first:
        raise RuntimeError("the captured graph is empty: the launch does nothing on the capturing stream")
    for copies, counts in others:
        if any(counts.get(kind, 0) * fewest != first.get(kind, 0) * copies for kind in {*counts, *first}):
            raise RuntimeError(f"the graph of {copies} copies holds {dict(counts)} nodes, that of {fewest} holds {dict(first)}")


def _checked(result: tuple) -> tuple:
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the CUDA driver answered {result[0].name}")
    return result


class CudaRuler:
    """Makes stopwatches for one process; owns the capture stream, the graph pool and the spin kernel."""

    def __init__(self, graph_copies: Sequence[int]) -> None:
        self.graph_copies = tuple(graph_copies)
        self.stream = torch.cuda.Stream()
        self._sink = torch.zeros(1, device="cuda")
        self.renew_pool()
        self._spins: dict[int, Callable[[], None]] = {}
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        self._busy = launcher(PROBES, "busy", sms * 4, 256, self._sink, 100_000)

    def renew_pool(self) -> None:
        """One pool for all graphs, as no two ever run at once; a pool each would keep gigabytes of dead temporaries.

        A capture that failed leaves its pool unusable, so the next one needs another.
        """
        self.pool = torch.cuda.graph_pool_handle()
        # Torch gives a pool up with its last graph; this one keeps it.
        self._anchor = Graph(self._sink.zero_, 1, self.pool, self.stream)

    def ramp(self, seconds: float) -> None:
        """Keep all SMs busy until the clock has had this long to rise."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self._busy()
            torch.cuda.synchronize()

    def spin(self, microseconds: float) -> None:
        """Queue a kernel that waits; rounded up to 10 us so that few closures exist."""
        steps = int(-(-microseconds // 10))
        if steps not in self._spins:
            self._spins[steps] = launcher(PROBES, "spin", 1, 1, steps * 10_000)
        self._spins[steps]()

    def stopwatch(self, launch: Callable[[], Any]) -> CudaStopwatch:
        return CudaStopwatch(self, launch)


class CudaStopwatch:
    def __init__(self, ruler: CudaRuler, launch: Callable[[], Any]) -> None:
        self._ruler, self._launch = ruler, launch
        for _ in range(WARMUP_CALLS):
            launch()
        torch.cuda.synchronize()
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._graphs: dict[int, Graph] = {}
        self.no_graph: str | None = None
        try:
            self._capture()
        except Exception as error:  # not capturable is a finding, whatever the reason
            self.no_graph = first_line(error)
        self.leading = "gpu_us" if self._graphs else "eager_us"

    def _capture(self) -> None:
        """A new set of graphs, in random order while the old set still lives, so that they do not fall into its place."""
        order = random.sample(self._ruler.graph_copies, len(self._ruler.graph_copies))
        try:
            fresh = {copies: Graph(self._launch, copies, self._ruler.pool, self._ruler.stream) for copies in order}
        except Exception:
            torch.cuda.synchronize()
            self._ruler.renew_pool()
            raise
        _check_nodes({copies: graph.nodes for copies, graph in fresh.items()})
        self._graphs = {copies: fresh[copies] for copies in self._ruler.graph_copies}

    def _queue(self, graph: Graph) -> float:
        """Queue one replay between the events; the host time that took, in microseconds."""
        start = time.perf_counter()
        self._start.record()
        graph.replay()
        self._end.record()
        return (time.perf_counter() - start) * 1e6

    def _replay_us(self, graph: Graph) -> float:
        """The second replay, as the first one uploads the graph; that one also tells how long queueing takes at most."""
        spin_us = self._queue(graph) + SPIN_MARGIN_US
        for _ in range(SPIN_TRIES):
            self._ruler.spin(spin_us)
            self._queue(graph)
            in_time = not self._start.query()
            self._end.synchronize()
            if in_time:
                return self._start.elapsed_time(self._end) * 1e3
            spin_us *= 2
        raise RuntimeError(f"the host took longer than {spin_us / 2:.0f} us to queue one graph, {SPIN_TRIES} times in a row")

    @property
    def replay(self) -> Callable[[], None] | None:
        return self._graphs[max(self._graphs)].replay if self._graphs else None

    def _host_us(self) -> float:
        launch = self._launch
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(HOST_CALLS):
            launch()
        elapsed = time.perf_counter() - start
        torch.cuda.synchronize()
        return elapsed * 1e6 / HOST_CALLS

    def _eager_us(self) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        self._launch()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e6

    def sample(self) -> Mapping[str, Any]:
        figures: dict[str, Any] = {"host_us": self._host_us(), "eager_us": self._eager_us()}
        if self._graphs:
            self._capture()
            figures["graph_us"] = {copies: self._replay_us(graph) for copies, graph in self._graphs.items()}
        return figures

    def facts(self) -> Mapping[str, Any]:
        if not self._graphs:
            return {"no_graph": self.no_graph}
        copies, graph = next(iter(self._graphs.items()))
        nodes = {kind: count // copies for kind, count in graph.nodes.items()}
        return {"launches": sum(nodes.values()), "graph_nodes": nodes}
