"""A GPU simulated in Python, so that code which needs a GPU can be tested without one, and on a known clock.

The device has streams, events, graphs, an L2 cache, a profiler and NVML. Host and device share one clock, in
nanoseconds, which advances by what each call costs the host and by the host's waits. An operation starts when its
stream is free and its launch has arrived, and its work is done only then: an early read returns the old contents, and a
wait in a capture breaks the capture. ``tests/simulated_gpu/memory.py`` turns everything that PyTorch does to a tensor
on the device into an operation.

Simplifications: operations do not slow each other down, a graph runs its nodes one after another, the cache holds whole
allocations, and memory that a graph reads without owning it is never reused.
"""

from __future__ import annotations

import ctypes
import heapq
import itertools
import time
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch
from cuda.bindings import driver
from torch.autograd import DeviceType

from spec_decode_bench.harness import cuda, interpreter
from spec_decode_bench.harness.timing import cuda_timer, cupti, queued_events
from spec_decode_bench.harness.verify import edge_cases, process_state
from tests.harness.timing.test_clocks import CALLS
from tests.simulated_gpu.memory import Memory, OnDevice, Operations

#: Host time of calls, nanoseconds.
CLOCK_NS, EVENT_NS, LAUNCH_NS, GRAPH_LAUNCH_NS, WAIT_NS = 20, 300, 2000, 4000, 1000
#: Nanoseconds from submission to start on an idle device; before the first node of a graph; for each node, in a graph's
#: first replay.
LATENCY_NS, GRAPH_START_NS, UPLOAD_NS = 3000, 2500, 500
#: Duration of a kernel for which no other is set.
KERNEL_NS = 400
#: Cycles per hop of the pointer chase; clock; bandwidth of misses.
L2_CYCLES, MEMORY_CYCLES, CYCLES_PER_NS, MISSED_BYTES_PER_NS = 270, 660, 1.98, 64
CAPTURING = "CUDA error: operation not permitted when stream is capturing"


@dataclass(eq=False)
class Operation:
    """A kernel, memcpy or memset. ns: duration without misses. touched: address -> bytes. work: its effect."""

    name: str
    ns: float
    kind: str = "kernel"
    work: Callable[[], Any] = lambda: None
    touched: dict[int, int] = field(default_factory=dict)


class Stream:
    def __init__(self, gpu: SimulatedGpu, number: int) -> None:
        self.gpu, self.cuda_stream = gpu, number
        self.free_ns = 0.0
        self.capture: Graph | None = None

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event(self.gpu)
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        self.gpu.spend(EVENT_NS)
        assert event.capture is None, "captures that fork are not simulated"
        self.free_ns = max(self.free_ns, event.at_ns)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        self.gpu.wait(self.free_ns, "cudaStreamSynchronize")


class Event:
    def __init__(self, gpu: SimulatedGpu, enable_timing: bool = False, **_: Any) -> None:
        self.gpu, self.timing = gpu, enable_timing
        self.at_ns = 0.0
        self.stream: Stream | None = None
        self.capture: Graph | None = None

    def record(self, stream: Stream | None = None) -> None:
        self.gpu.spend(EVENT_NS)
        self.stream = stream or self.gpu.stream
        self.capture = self.stream.capture
        self.at_ns = self.stream.free_ns = max(self.stream.free_ns, self.gpu.now_ns + LATENCY_NS)

    def query(self) -> bool:
        self.gpu.spend(EVENT_NS)
        self.gpu.run_until(self.gpu.now_ns)
        return self.at_ns <= self.gpu.now_ns

    def synchronize(self) -> None:
        self.gpu.wait(self.at_ns, "cudaEventSynchronize")

    def elapsed_time(self, end: Event) -> float:
        if max(self.at_ns, end.at_ns) > self.gpu.now_ns:
            raise RuntimeError("CUDA error: device not ready")
        return (end.at_ns - self.at_ns) / 1e6


class Graph:
    """torch.cuda.CUDAGraph."""

    def __init__(self, gpu: SimulatedGpu, keep_graph: bool = False) -> None:
        self.gpu, self.keep_graph = gpu, keep_graph
        self.handle = next(gpu.handles)
        gpu.graphs[self.handle] = self
        self.nodes: list[Operation] = []
        self.broken = self.ready = self.uploaded = False

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if self.gpu.stream.cuda_stream == 0:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream")
        if pool in self.gpu.broken_pools:
            raise RuntimeError("the pool is in use by a capture that failed")
        self.pool, self.stream = pool, self.gpu.stream
        self.stream.capture = self

    def capture_end(self) -> None:
        self.stream.capture = None
        if self.broken:
            self.gpu.broken_pools.add(self.pool)
            raise RuntimeError("CUDA error: operation failed due to a previous error in a capture")
        self.ready = not self.keep_graph

    def raw_cuda_graph(self) -> int:
        if not self.keep_graph:
            raise RuntimeError("keep_graph=True keeps the graph that is asked for")
        return self.handle

    def instantiate(self) -> None:
        self.ready = True

    def replay(self) -> None:
        if not self.ready:
            raise RuntimeError("the graph was not instantiated")
        self.gpu.launch_graph(self)


class SimulatedGpu:
    """The device and its clock. A test may set, before it measures:

    queued_ns, in_graph_ns, cupti_ns: duration of a kernel -> its time in a stream, in a graph, and by CUPTI.
    timer_rate:        the global timer's seconds per second.
    throttled:         time in ns -> whether the GPU is throttled, and half as fast.
    reported_l2_bytes: size of the L2 cache according to the driver.
    durations:         name of an operation -> ns.
    """

    def __init__(self) -> None:
        self.now_ns = 0.0
        self.durations: dict[str, float] = {}
        self.queued_ns: Callable[[float], float] = lambda ns: ns + 1750
        self.in_graph_ns: Callable[[float], float] = lambda ns: ns + 900
        self.cupti_ns: Callable[[float], float] = lambda ns: ns + 850
        self.timer_rate = 1.0
        self.throttled: Callable[[float], bool] = lambda ns: False
        self.l2_bytes = self.reported_l2_bytes = 2**20
        self.cupti_blocked = False
        self.memory = Memory()
        self.handles = itertools.count(1)
        self.default_stream = self.stream = Stream(self, 0)
        self.streams = [self.default_stream]
        self.graphs: weakref.WeakValueDictionary[int, Graph] = weakref.WeakValueDictionary()
        self.broken_pools: set[Any] = set()
        self.lost: str | None = None
        self.warns_of_waits = False
        #: Submitted work that has not been done: (start, sequence number, work).
        self._pending: list[tuple[float, int, Callable[[], Any]]] = []
        self._l2: OrderedDict[int, int] = OrderedDict()
        self._l2_held = 0
        #: (name, start in ns, ns, where) since the profiler began; None while there is none.
        self.seen: list[tuple[str, float, float, DeviceType]] | None = None
        self.milliwatts = 300_000

    # --- the clock ---

    def perf_counter(self) -> float:
        self.spend(CLOCK_NS)
        return self.now_ns / 1e9

    def spend(self, ns: float) -> None:
        """Host time passes."""
        self.now_ns += ns

    def wait(self, until_ns: float, call: str, implicit: bool = False) -> None:
        """The host waits. implicit: as a side effect of a call, of which sync_debug_mode warns."""
        self.refuse_in_capture()
        if implicit and self.warns_of_waits:
            warnings.warn("called a synchronizing CUDA operation", stacklevel=3)
        if self.seen is not None:
            self.seen.append((call, self.now_ns, 0.0, DeviceType.CPU))
        self.now_ns = max(self.now_ns, until_ns)
        self.spend(WAIT_NS)
        self.run_until(self.now_ns)
        if self.lost:
            raise RuntimeError(f"CUDA error: {self.lost}")

    def refuse_in_capture(self) -> None:
        for stream in self.streams:
            if stream.capture is not None:
                stream.capture.broken = True
                raise RuntimeError(CAPTURING)

    def synchronize(self, device: Any = None) -> None:
        self.wait(max(stream.free_ns for stream in self.streams), "cudaDeviceSynchronize")

    # --- work ---

    def submit(self, operation: Operation) -> None:
        """Launch on the current stream, or add a node to the graph that it is captured into."""
        self.spend(LAUNCH_NS)
        stream = self.stream
        if stream.capture is not None:
            stream.capture.nodes.append(operation)
        else:
            start = max(stream.free_ns, self.now_ns + LATENCY_NS)
            stream.free_ns = start + self.queued_ns(self._begin(operation, start))

    def launch_graph(self, graph: Graph) -> None:
        self.spend(GRAPH_LAUNCH_NS)
        stream = self.stream
        assert stream.capture is None, "graphs within graphs are not simulated"
        at = max(stream.free_ns, self.now_ns + LATENCY_NS) + GRAPH_START_NS
        at += 0 if graph.uploaded else UPLOAD_NS * len(graph.nodes)
        graph.uploaded = True
        for node in graph.nodes:
            at += self.in_graph_ns(self._begin(node, at))
        stream.free_ns = at

    def _begin(self, operation: Operation, start_ns: float) -> float:
        """Schedule its work; returns its duration, with misses and throttling."""
        missed = self._touch(operation.touched)
        if operation.name == "chase":
            hops, out = operation.ns, operation.work
            cycles = hops * (MEMORY_CYCLES if missed else L2_CYCLES)
            ns, work = cycles / CYCLES_PER_NS, lambda: out(int(cycles))
        else:
            ns, work = operation.ns + missed / MISSED_BYTES_PER_NS, operation.work
        if self.throttled(start_ns):
            ns *= 2
        if self.seen is not None:
            self.seen.append((operation.name, start_ns, self.cupti_ns(ns), DeviceType.CUDA))
        heapq.heappush(self._pending, (start_ns, next(self.handles), work))
        return ns

    def run_until(self, ns: float) -> None:
        """Do the work that has started by then, in the order of its starts."""
        while self._pending and self._pending[0][0] <= ns and not self.lost:
            work = heapq.heappop(self._pending)[2]
            with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():  # nothing of it is queued again
                try:
                    work()
                except Exception as error:  # such as an index out of range: the context is lost
                    self.lost = f"device-side assert triggered ({error})"

    def _touch(self, touched: dict[int, int]) -> int:
        """Bring allocations into the L2 and evict the least recently used ones; returns the bytes that missed."""
        missed = 0
        for address, size in touched.items():
            before, now = self._l2.pop(address, 0), min(size, self.l2_bytes)
            missed += max(size - before, 0)
            self._l2[address] = now
            self._l2_held += now - before
        while self._l2_held > self.l2_bytes:
            self._l2_held -= self._l2.popitem(last=False)[1]
        return missed

    # --- the timer's kernels, which the driver launches ---

    def packed(self, name: str, grid: tuple, block: int, values: list, keep_alive: Any) -> Callable[[], None]:
        plain = [getattr(value, "value", value) for value in values]
        return lambda _keep_alive=keep_alive: self.launch_kernel(name, grid[0], block, *plain)

    def launch_kernel(self, name: str, blocks: int, threads: int, *values: Any) -> None:
        operation = Operation(name, self.durations.get(name, KERNEL_NS))
        if name == "null_kernel":
            operation.ns = self.durations.get(name, 0)
        elif name in ("block_copy", "copy_integers"):
            (source, target), size = values, blocks * threads * (16 if name == "block_copy" else 4)
            operation.ns, operation.touched = 150 + 2 * blocks, {source: size, target: size}
            operation.work = lambda: ctypes.memmove(target, source, size)
        elif name == "copy_vectors":
            source, target, count = values
            # One block is as fast as many up to 1,024 vectors.
            operation.ns = 150 + count * 16 / MISSED_BYTES_PER_NS / (1 if blocks == 1 and count > 1024 else 4)
            operation.touched = {source: 16 * count, target: 16 * count}
            operation.work = lambda: ctypes.memmove(target, source, 16 * count)
        elif name == "spin":
            operation.ns = values[0]
        elif name == "timed_spin":
            operation.ns = values[0] / self.timer_rate
            operation.work = lambda: ctypes.memmove(values[1], ctypes.byref(ctypes.c_int64(values[0])), 8)
        elif name == "busy":
            operation.ns = 1_000_000
        elif name == "chase":
            ring, operation.ns, out = values
            operation.touched = {ring: operation.ns * 128}
            operation.work = lambda cycles: ctypes.memmove(out, ctypes.byref(ctypes.c_int32(cycles)), 4)
        elif name == "nowhere":
            operation.work = self._fault
        self.submit(operation)

    @staticmethod
    def _fault() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    # --- the driver's view of a graph ---

    def nodes_of(self, graph: Any, room: int = 0) -> tuple:
        nodes = self.graphs[int(graph)].nodes
        handles = [driver.CUgraphNode((int(graph) << 20) + i) for i in range(len(nodes))]
        return driver.CUresult.CUDA_SUCCESS, handles[:room], len(nodes)

    def _node(self, node: Any) -> Operation:
        return self.graphs[int(node) >> 20].nodes[int(node) & (1 << 20) - 1]

    def type_of(self, node: Any) -> tuple:
        return driver.CUresult.CUDA_SUCCESS, getattr(
            driver.CUgraphNodeType, f"CU_GRAPH_NODE_TYPE_{self._node(node).kind.upper()}"
        )

    def params_of(self, node: Any) -> tuple:
        sizes = {f"{what}Dim{axis}": 1 for what in ("grid", "block") for axis in "XYZ"}
        name = hash(self._node(node).name)
        return driver.CUresult.CUDA_SUCCESS, SimpleNamespace(func=name, kern=0, **sizes)

    # --- answers of torch.cuda, CUPTI and NVML ---

    def properties(self, device: Any = None) -> SimpleNamespace:
        return SimpleNamespace(
            name="simulated",
            major=9,
            minor=0,
            multi_processor_count=132,
            L2_cache_size=self.reported_l2_bytes,
            total_memory=2**37,
            uuid="0",
        )

    @property
    def bits(self) -> int:
        return 0x4 if self.throttled(self.now_ns) else 0

    clock = property(lambda self: 990 if self.throttled(self.now_ns) else 1980)

    @contextmanager
    def on_stream(self, stream: Stream | None) -> Iterator[None]:
        previous, self.stream = self.stream, stream or self.stream
        try:
            yield
        finally:
            self.stream = previous

    def make_stream(self, *_: Any, **__: Any) -> Stream:
        self.streams.append(Stream(self, 1000 + len(self.streams)))
        return self.streams[-1]

    @contextmanager
    def captured(self, graph: Graph, pool: Any = None, stream: Stream | None = None) -> Iterator[None]:
        """torch.cuda.graph."""
        with self.on_stream(stream or self.make_stream()):
            graph.capture_begin(pool)
            yield
            graph.capture_end()

    @contextmanager
    def profile(self, **_: Any) -> Iterator[Any]:
        self.seen = []
        results = SimpleNamespace()
        yield SimpleNamespace(kineto_results=results)
        events = [
            SimpleNamespace(**{key: (lambda value=value: value) for key, value in zip(_EVENT_FIELDS, one, strict=True)})
            for one in self.seen
        ]
        self.seen = None
        results.events = lambda: [] if self.cupti_blocked else events


_EVENT_FIELDS = ("name", "start_ns", "duration_ns", "device_type")


@contextmanager
def simulated_gpu() -> Iterator[SimulatedGpu]:
    """Replace the GPU by a simulated one, and restore everything at the end."""
    gpu = SimulatedGpu()
    with pytest.MonkeyPatch.context() as patch, ExitStack() as modes:
        for module in (time, queued_events, cuda_timer):
            patch.setattr(module, "perf_counter", gpu.perf_counter)
        for name, value in {
            "Stream": gpu.make_stream,
            "Event": lambda **options: Event(gpu, **options),
            "CUDAGraph": lambda **options: Graph(gpu, **options),
            "synchronize": gpu.synchronize,
            "current_stream": lambda device=None: gpu.stream,
            "default_stream": lambda device=None: gpu.default_stream,
            "set_stream": lambda stream: setattr(gpu, "stream", stream),
            "stream": gpu.on_stream,
            "graph": gpu.captured,
            "graph_pool_handle": lambda: (0, next(gpu.handles)),
            "is_current_stream_capturing": lambda: gpu.stream.capture is not None,
            "_sleep": lambda cycles: gpu.submit(Operation("spin_kernel", cycles / CYCLES_PER_NS)),
            "get_device_properties": gpu.properties,
            "mem_get_info": lambda: (2**36, 2**36),
            "current_device": lambda: 0,
            "set_device": lambda device: None,
            "memory_stats": gpu.memory.stats,
            "set_sync_debug_mode": lambda mode: setattr(gpu, "warns_of_waits", mode == "warn"),
        }.items():
            patch.setattr(torch.cuda, name, value)
        for name in ("start", "stop"):
            patch.setattr(torch.cuda.profiler, name, lambda: None)
        from_dlpack = torch.from_dlpack
        patch.setattr(torch, "from_dlpack", lambda tensor: gpu.memory.place(from_dlpack(tensor)))
        patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: gpu.stream, raising=False)
        patch.setattr(cuda, "compile_source", lambda path, arch: SimpleNamespace(get_kernel=lambda name: name))
        patch.setattr(cuda, "function_of", lambda name: name)
        patch.setattr(cuda, "packed", gpu.packed)
        patch.setattr(cuda, "current_arch", lambda: "sm_90")
        patch.setattr(driver, "cuGraphGetNodes", gpu.nodes_of)
        patch.setattr(driver, "cuGraphNodeGetType", gpu.type_of)
        patch.setattr(driver, "cuGraphKernelNodeGetParams", gpu.params_of)
        patch.setattr(driver, "cuCtxResetPersistingL2Cache", lambda: (driver.CUresult.CUDA_SUCCESS,))
        patch.setattr(cupti, "profile", gpu.profile)
        for name, answer in CALLS.items():
            patch.setattr(pynvml, name, lambda *_, answer=answer: answer(gpu))
        patch.setattr(pynvml, "nvmlInit", lambda: None)
        patch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
        patch.setattr(interpreter, "SWITCH", "no switch")  # else launches would be counted for the rest of the process
        edge_cases.cuda_checks.cache_clear()
        modes.callback(edge_cases.cuda_checks.cache_clear)
        modes.enter_context(Operations(gpu))
        modes.enter_context(OnDevice(gpu))
        process_state._functions.cache_clear()  # those of the simulation, from here on
        yield gpu
    process_state._functions.cache_clear()
