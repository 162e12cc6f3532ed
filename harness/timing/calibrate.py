"""Calibrates the timer: kernels of known duration, small kernels, the copy bandwidth, the cache state.

Measured with every run and recorded raw; nothing of it is subtracted from a metric.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from functools import partial

import torch

from harness.cuda import launcher
from harness.nvtx_ranges import nvtx_range
from harness.records.schema import Calibration, EstimatorSamples, KernelTimes
from harness.timing.cache import CALIBRATION_KERNELS, measure_chase_cycles
from harness.timing.clocks import Clocks
from harness.timing.cuda_timer import CudaTimer
from harness.timing.queued_events import QueuedEvents
from harness.timing.rounds import SAMPLE_DECIMALS, CellTimings, PlacedLaunch

ROUNDS = 20
#: In one of many processes that are compared (``run --brief``). On record, no more calibrations miss their tolerances
#: with the first ten rounds than with all.
BRIEF_ROUNDS = 10
#: Integers in the one-block copy: the size of the lengths of a large decode step.
BLOCK_COPY_INTS = 1024
#: Blocks and threads of the wide copy: the grid and the traffic of an expanded block table.
WIDE_BLOCKS, WIDE_THREADS = 528, 256
#: 32-bit arguments of the kernel with many: a kilobyte, as of a fused step.
ARGUMENTS = (ctypes.c_int * 256)(*range(256))
#: Loads of the kernel that follows pointers.
HOPS = 16
#: Waits of the spin kernels, nanoseconds.
SPINS_NS = (1000, 2000, 5000, 10_000, 20_000)
EMPTY_PAIRS = 100
COPY_BYTES = 2**30
COPY_ROUNDS = 7
#: Bytes read and written by the copies of the copy bound's curve, and rounds of each. Half steps where the curve may
#: bend upwards, at the end of an L2 of 32 to 128 MiB: a line between two sizes lies above it there.
CURVE_BYTES, CURVE_ROUNDS = tuple(sorted([2**n for n in range(9, 31)] + [3 * 2**n for n in range(22, 27)])), 5
#: Offsets in a page at which the buffers of the curve's copies start; variants have several placements as well.
CURVE_OFFSETS = random.Random(0).sample(range(0, 2**21, 512), CURVE_ROUNDS)
#: Bytes of an access of the copies.
VECTOR_BYTES = 16


class Kernels:
    """The calibration kernels.

    own:   name -> launch, of the kinds of nodes that variants consist of. null: an empty kernel. block_copy: one block.
           wide_copy: four blocks on every SM of a large GPU. operator: one of PyTorch. gather: one that reads by index,
           as from a block table. chain: five PyTorch operators, one of them a memcpy. arguments: one warp reads a
           kilobyte of arguments. pointers: one thread follows pointers.
    spins: nanoseconds -> launch of a kernel that waits so long and writes its duration to ``taken_ns``.
    """

    def __init__(self) -> None:
        self.source = torch.randint(2**31 - 1, (BLOCK_COPY_INTS,), dtype=torch.int32, device="cuda")
        self.target = torch.empty_like(self.source)
        self.order = torch.randperm(BLOCK_COPY_INTS, device="cuda")
        self.taken_ns = torch.zeros(1, dtype=torch.int64, device="cuda")
        wide = torch.randint(2**31 - 1, (WIDE_BLOCKS * WIDE_THREADS * 4,), dtype=torch.int32, device="cuda")
        self.own = {
            "null": launcher(CALIBRATION_KERNELS, "null_kernel", 1, 32),
            "block_copy": launcher(
                CALIBRATION_KERNELS, "block_copy", 1, BLOCK_COPY_INTS // 4, self.source, self.target
            ),
            "wide_copy": launcher(
                CALIBRATION_KERNELS, "block_copy", WIDE_BLOCKS, WIDE_THREADS, wide, torch.empty_like(wide)
            ),
            "operator": lambda: self.target.bitwise_xor_(self.source),
            "gather": lambda: torch.index_select(self.source, 0, self.order, out=self.target),
            "chain": self._chain,
            "arguments": launcher(CALIBRATION_KERNELS, "read_arguments", 1, 32, ARGUMENTS, self.target),
            "pointers": launcher(CALIBRATION_KERNELS, "follow_pointers", 1, 1, self.source, HOPS, self.target),
        }
        self.spins = {ns: launcher(CALIBRATION_KERNELS, "timed_spin", 1, 1, ns, self.taken_ns) for ns in SPINS_NS}

    def _chain(self) -> None:
        self.target.copy_(self.source)
        self.target.add_(self.source)
        self.target.clamp_(min=0)
        self.target.floor_divide_(7)
        self.target.fill_(1)


def calibrate(timer: CudaTimer, clocks: Clocks, rounds: int | None = None) -> Calibration:
    """Everything but the samples of CUPTI, which the second process adds. The clock must be ramped up.

    rounds: of samples of every kernel; by default ROUNDS.
    """
    kernels, rounds = Kernels(), rounds or ROUNDS
    with nvtx_range("calibrate", "calibrate"):
        own = {name: _timed(timer, launch, rounds) for name, launch in kernels.own.items()}
        kernels.own["block_copy"]()
        if not torch.equal(kernels.source, kernels.target):
            raise RuntimeError("the calibration copy gave a wrong result; do not trust this GPU or driver")
        events = QueuedEvents(timer.spin)
        source = torch.randint(256, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        return Calibration(
            own={name: times for name, (times, _) in own.items()},
            spins={ns: _timed(timer, launch, rounds, kernels.taken_ns)[0] for ns, launch in kernels.spins.items()},
            empty_pair_us=[
                round(events.microseconds("empty", lambda: None), SAMPLE_DECIMALS) for _ in range(EMPTY_PAIRS)
            ],
            launch_host_us=own["block_copy"][1],
            copy_bytes=COPY_BYTES,
            copy_us=[events.microseconds("copy", lambda: target.copy_(source)) for _ in range(COPY_ROUNDS)],
            chase_cycles=measure_chase_cycles(timer.cache),
            copies={size: _copies(timer, source, target, size) for size in CURVE_BYTES},
            sm_clock_mhz=clocks.run_clock_mhz,
        )


def copy_shapes(vectors: int, sms: int) -> dict[str, tuple[int, int]]:
    """Name -> (blocks, threads) with which so many 16-byte vectors may be copied fastest.

    vectors: a power of two, or at least 256 and a multiple of it.
    """
    threads = min(vectors, 256)
    shapes = {"a vector a thread": (vectors // threads, threads)}
    if 256 < vectors <= 4096:
        shapes["one block"] = (1, min(vectors, 1024))
    if vectors >= 4 * 256:
        shapes["four vectors a thread"] = (vectors // 1024, 256)
    if vectors > 2 * sms * 512:
        shapes["two blocks an SM"] = (2 * sms, 512)
        shapes["eight blocks an SM"] = (8 * sms, 256)
    return shapes


def _copies(timer: CudaTimer, source: torch.Tensor, target: torch.Tensor, size: int) -> dict[str, KernelTimes]:
    """Copies that read and write ``size`` bytes together, in the run's cache state: its inputs are the source."""
    sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    vectors = size // 2 // VECTOR_BYTES
    contents = source[: size // 2].clone() if timer.cache.state.rewrite_inputs else source
    times = {}
    for name, (blocks, threads) in copy_shapes(vectors, sms).items():
        launches = []
        for offset in CURVE_OFFSETS:
            read, written = (buffer[offset : offset + size // 2] for buffer in (source, target))
            if blocks * threads == vectors:
                copy = launcher(CALIBRATION_KERNELS, "block_copy", blocks, threads, read, written)
            else:
                copy = launcher(CALIBRATION_KERNELS, "copy_vectors", blocks, threads, read, written, vectors)
            launches.append(PlacedLaunch(copy, rewrite_inputs=partial(read.copy_, contents)))
            written.zero_()
            copy()
            if not torch.equal(read, written):
                raise RuntimeError("a calibration copy gave a wrong result; do not trust this GPU or driver")
        timings = CellTimings(timer.stopwatch(*launches, stream_rounds=0))
        for _ in range(CURVE_ROUNDS):
            timings.add_sample()
        times[name] = KernelTimes(
            **{field: timings.samples[field] for field in ("graph_us", "state_us") if field in timings.samples}
        )
    return times


def _timed(
    timer: CudaTimer, launch: Callable[[], None], rounds: int, taken_ns: torch.Tensor | None = None
) -> tuple[KernelTimes, list[float]]:
    """The samples of every estimator for one kernel, and the host times of its launch."""
    timings = CellTimings(timer.stopwatch(PlacedLaunch(launch), stream_rounds=rounds))
    true_us: list[float] = []
    for _ in range(rounds):
        timings.add_sample()
        if taken_ns is not None:
            true_us.append(int(taken_ns) / 1e3)
    samples = {name: timings.samples[name] for name in EstimatorSamples.__struct_fields__ if name in timings.samples}
    times = KernelTimes(**samples, true_us=true_us, launches=timings.stopwatch.facts()["launches"])
    return times, timings.samples["host_us"]
