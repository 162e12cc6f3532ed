"""CUDA graphs of a launch: capture it, count its nodes, compare graphs node by node."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from cuda.bindings import driver

from spec_decode_bench.harness.checks import Mismatch

#: What a node does, as the driver reports it: its type; for a kernel also the function, the grid and the block.
Signature = tuple[Any, ...]


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """For a capture: a collection may unload a module or destroy a graph of an earlier point, which ends the capture
    with CUDA_ERROR_STREAM_CAPTURE_INVALIDATED.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Graph:
    """``copies`` launches, captured back to back on ``stream``.

    nodes: type -> count, e.g. {"kernel": 4, "memcpy": 1}.
    """

    def __init__(self, launch: Callable[[], Any], copies: int, pool: Any, stream: torch.cuda.Stream) -> None:
        self._graph = torch.cuda.CUDAGraph(keep_graph=True)
        stream.wait_stream(torch.cuda.current_stream())
        # torch.cuda.graph() also collects garbage and empties the cache, which takes longer than a whole measurement.
        with torch.cuda.stream(stream), no_garbage_collection():
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                for _ in range(copies):
                    launch()
            except Exception:
                # The capture is invalid by now. Ending it raises again, or warns of an empty graph; the first error is
                # the one to report.
                with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        self._nodes = _nodes(self._graph.raw_cuda_graph())
        self.nodes = dict(Counter(_kind(node) for node in self._nodes))
        self._graph.instantiate()
        self.replay = self._graph.replay

    def signatures(self) -> Counter[Signature]:
        """Signature -> number of nodes. Slower than ``nodes``: one driver query per kernel."""
        return Counter(_signature(node) for node in self._nodes)


def check_nodes(nodes: Mapping[int, Mapping[Any, int]]) -> None:
    """Raise Mismatch("same_work") unless a graph of k copies holds k times the nodes of one launch.

    Otherwise the slope of the replay time over k would not be the time of a launch.

    nodes: copies -> counts of nodes, by type (Graph.nodes) or by signature (Graph.signatures).
    """
    (fewest, first), *others = sorted(nodes.items())
    if not first:
        raise Mismatch("same_work", "the captured graph is empty: the launch does nothing on the capturing stream")
    for copies, counts in others:
        if any(counts.get(kind, 0) * fewest != first.get(kind, 0) * copies for kind in {*counts, *first}):
            raise Mismatch(
                "same_work",
                f"the graph of {copies} copies does not hold {copies // fewest} times the nodes of that of {fewest}: "
                f"{sum(counts.values())} against {sum(first.values())}, or other nodes",
            )


def _nodes(handle: int) -> list[driver.CUgraphNode]:
    graph = driver.CUgraph(handle)
    _, _, number = checked(driver.cuGraphGetNodes(graph))
    return checked(driver.cuGraphGetNodes(graph, number))[1][:number]


def _kind(node: driver.CUgraphNode) -> str:
    return checked(driver.cuGraphNodeGetType(node))[1].name.removeprefix("CU_GRAPH_NODE_TYPE_").lower()


def _signature(node: driver.CUgraphNode) -> Signature:
    kind = _kind(node)
    if kind != "kernel":
        return (kind,)
    p = checked(driver.cuGraphKernelNodeGetParams(node))[1]
    return kind, int(p.func), int(p.kern), p.gridDimX, p.gridDimY, p.gridDimZ, p.blockDimX, p.blockDimY, p.blockDimZ


def checked(result: tuple) -> tuple:
    """The result of a driver call. Raises RuntimeError with the driver's name for the error."""
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the CUDA driver answered {result[0].name}")
    return result


class GraphCapture:
    """Captures launches on its own stream, with one memory pool for all graphs.

    No two graphs run at once, so they can share a pool; a pool for each would hold gigabytes of unused temporaries.
    """

    def __init__(self) -> None:
        self._stream, self._scratch = torch.cuda.Stream(), torch.zeros(1, device="cuda")
        self._renew_pool()

    def _renew_pool(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        # Torch frees a pool with the last graph in it; this graph keeps it alive.
        self._pool_keeper = Graph(self._scratch.zero_, 1, self._pool, self._stream)

    def graph(self, launch: Callable[[], Any], copies: int) -> Graph:
        """A graph of ``copies`` launches. Raises whatever the capture raises."""
        try:
            return Graph(launch, copies, self._pool, self._stream)
        except Exception:  # a failed capture leaves its pool unusable
            torch.cuda.synchronize()
            self._renew_pool()
            raise

    def __call__(self, launch: Callable[[], Any]) -> Callable[[], None]:
        """The replay of a graph of one launch. Raises Mismatch where it is empty, and whatever the capture raises."""
        graph = self.graph(launch, 1)
        check_nodes({1: graph.nodes})
        return graph.replay
