"""Calibrates the timer: kernels of known duration, small kernels, the copy bandwidth, the cache state.

Measured with every run and recorded raw; nothing of it is subtracted from a metric.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

import torch

from spec_decode_bench.harness.analysis.estimators import CHAIN
from spec_decode_bench.harness.cuda import launcher
from spec_decode_bench.harness.nvtx_ranges import nvtx_range
from spec_decode_bench.harness.records.schema import Calibration, KernelTimes
from spec_decode_bench.harness.timing.cache import CALIBRATION_KERNELS, measure_chase_cycles
from spec_decode_bench.harness.timing.clocks import Clocks
from spec_decode_bench.harness.timing.cuda_timer import CudaTimer
from spec_decode_bench.harness.timing.queued_events import QueuedEvents
from spec_decode_bench.harness.timing.rounds import SAMPLE_DECIMALS, CellTimings, PlacedLaunch

#: Two turns through OFFSETS. By one turn, constants of the reference records are up to 16 ns a launch off, and the
#: largest residual of the graph slope is 87 % of what is allowed, not 37 %.
ROUNDS = 10
#: Integers in the one-block copy: the size of the lengths of a large decode step.
BLOCK_COPY_INTS = 1024
#: Waits of the spin kernels, nanoseconds.
SPINS_NS = (1000, 2000, 5000, 10_000, 20_000)
EMPTY_PAIRS = 100
COPY_BYTES = 2**30
COPY_ROUNDS = 7
#: Bytes read and written by the copies of the copy bound's curve. Close to each other where the curve may bend upwards,
#: at the end of an L2 of 32 to 128 MiB: a line between two sizes lies above it there.
CURVE_BYTES = (
    *(2**n for n in (6, 9, 12, 14, 16, 18, 20, 21, 22, 23)),
    *(n * 2**22 for n in (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 20, 24, 28, 32)),
    *(2**n for n in (28, 30)),
)
#: Rounds of each copy, on buffers at other offsets, and of those that exceed the L2, whose times hardly differ: of the
#: reference records, by two of their rounds the bound is 0.4 % off in one place of twenty.
CURVE_ROUNDS, LARGE_ROUNDS = 5, 2
PAGE_BYTES = 2**21
#: Offsets in a page at which the buffers of kernels and copies start; variants have several placements as well.
OFFSETS = random.Random(0).sample(range(0, PAGE_BYTES, 512), CURVE_ROUNDS)
#: Bytes of an access of the copies.
VECTOR_BYTES = 16


class Kernels:
    """The calibration kernels.

    own:   name -> launches in several places. null: an empty kernel. block_copy: a copy by one block. chain: five
           PyTorch operators, one of them a memcpy.
    spins: nanoseconds -> launch of a kernel that waits so long and writes its duration to ``taken_ns``.
    """

    def __init__(self) -> None:
        sources = torch.arange(PAGE_BYTES // 4 + BLOCK_COPY_INTS, dtype=torch.int32, device="cuda")
        targets = torch.empty_like(sources)
        self.taken_ns = torch.zeros(1, dtype=torch.int64, device="cuda")
        places = [[of[offset // 4 :][:BLOCK_COPY_INTS] for of in (sources, targets)] for offset in OFFSETS]
        threads = BLOCK_COPY_INTS * sources.element_size() // VECTOR_BYTES
        self.own: dict[str, list[Callable[[], None]]] = {
            "null": [launcher(CALIBRATION_KERNELS, "null_kernel", 1, 32)],
            "block_copy": [
                launcher(CALIBRATION_KERNELS, "block_copy", 1, threads, read, written) for read, written in places
            ],
            CHAIN: [partial(_chain, read, written) for read, written in places],
        }
        self.spins = {ns: launcher(CALIBRATION_KERNELS, "timed_spin", 1, 1, ns, self.taken_ns) for ns in SPINS_NS}


def _chain(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source)
    target.add_(source)
    target.clamp_(min=0)
    target.floor_divide_(7)
    target.fill_(1)


def calibrate(timer: CudaTimer, clocks: Clocks) -> Calibration:
    """Everything but the samples of CUPTI, which the second process adds. The clock must be ramped up."""
    kernels = Kernels()
    with nvtx_range("calibrate", "calibrate"):
        own = {name: _timed(timer, launches, host=name == "block_copy") for name, launches in kernels.own.items()}
        events = QueuedEvents(timer.spin)
        source = torch.randint(256, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        return Calibration(
            own={name: times for name, (times, _) in own.items()},
            spins={ns: _timed(timer, [launch], kernels.taken_ns)[0] for ns, launch in kernels.spins.items()},
            empty_pair_us=[
                round(events.microseconds("empty", lambda: None), SAMPLE_DECIMALS) for _ in range(EMPTY_PAIRS)
            ],
            launch_host_us=own["block_copy"][1]["host_us"],
            copy_bytes=COPY_BYTES,
            copy_us=[events.microseconds("copy", lambda: target.copy_(source)) for _ in range(COPY_ROUNDS)],
            chase_cycles=measure_chase_cycles(timer.cache),
            copies={size: _copies(timer, source, target, size) for size in CURVE_BYTES},
            sm_clock_mhz=clocks.run_clock_mhz,
        )


def copy_shapes(vectors: int, sms: int, l2_bytes: int) -> dict[str, tuple[str, int, int]]:
    """Name -> (kernel, blocks, threads) with which so many 16-byte vectors may be copied fastest. Few blocks are only
    where source and target together take half of the L2 to all of it, in all reference records.

    vectors: a power of two, or at least 256 and a multiple of it.
    """
    threads = min(vectors, 256)
    shapes = {"a vector a thread": ("block_copy", vectors // threads, threads)}
    if 4 * vectors <= 256:
        shapes["an integer a thread"] = ("copy_integers", 1, 4 * vectors)
    if l2_bytes / 2 <= 2 * vectors * VECTOR_BYTES <= l2_bytes and vectors > 2 * sms * 512:
        shapes["two blocks an SM"] = ("copy_vectors", 2 * sms, 512)
    return shapes


def _copies(timer: CudaTimer, source: torch.Tensor, target: torch.Tensor, size: int) -> dict[str, KernelTimes]:
    """Copies that read and write ``size`` bytes together, in the run's cache state: its inputs are the source."""
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    vectors, rounds = size // 2 // VECTOR_BYTES, CURVE_ROUNDS if size <= device.L2_cache_size else LARGE_ROUNDS
    contents = source[: size // 2].clone() if timer.cache.state.rewrite_inputs else source
    times = {}
    shapes = copy_shapes(vectors, device.multi_processor_count, device.L2_cache_size)
    for name, (kernel, blocks, threads) in shapes.items():
        launches = []
        for offset in OFFSETS[:rounds]:
            if size <= PAGE_BYTES // 4:  # fastest where both lie in one page, as an engine's small tensors do
                starts = offset // 2, (offset + PAGE_BYTES) // 2
                read, written = (target[start : start + size // 2] for start in starts)
                read.copy_(source[: size // 2])
            else:
                read, written = (buffer[offset : offset + size // 2] for buffer in (source, target))
            count = [vectors] if kernel == "copy_vectors" else []
            copy = launcher(CALIBRATION_KERNELS, kernel, blocks, threads, read, written, *count)
            launches.append(PlacedLaunch(copy, rewrite_inputs=partial(read.copy_, contents)))
            written.zero_()
            copy()
            if not torch.equal(read, written):
                raise RuntimeError("a calibration copy gave a wrong result; do not trust this GPU or driver")
        timings = CellTimings(timer.stopwatch(*launches, stream_rounds=0, host=False))
        for _ in range(rounds):
            timings.add_sample()
        times[name] = KernelTimes(graph_us=timings.samples["graph_us"], state_us=timings.samples.get("state_us", []))
    return times


def _timed(
    timer: CudaTimer,
    launches: Sequence[Callable[[], None]],
    taken_ns: torch.Tensor | None = None,
    host: bool = False,
) -> tuple[KernelTimes, dict[str, list[float]]]:
    """The samples of every estimator for one kernel in several places, and those of its launches on the host."""
    stopwatch = timer.stopwatch(*map(PlacedLaunch, launches), stream_rounds=ROUNDS, host=host)
    timings, true_us = CellTimings(stopwatch), []
    for _ in range(ROUNDS):
        timings.add_sample()
        if taken_ns is not None:
            true_us.append(int(taken_ns) / 1e3)
    samples = timings.samples
    times = KernelTimes(
        graph_us=samples["graph_us"],
        state_us=samples.get("state_us", []),
        stream_us=samples["stream_us"],
        true_us=true_us,
        launches=stopwatch.facts()["launches"],
    )
    return times, samples
