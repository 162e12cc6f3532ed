"""Calibrates the timer: kernels of known duration, small kernels, the copy bandwidth, the cache state.

Measured with every run and recorded raw; nothing of it is subtracted from a metric.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Sequence
from functools import partial

import torch

from spec_decode_bench.harness.cuda import launcher
from spec_decode_bench.harness.nvtx_ranges import nvtx_range
from spec_decode_bench.harness.records.schema import Calibration, EstimatorSamples, KernelTimes
from spec_decode_bench.harness.timing.cache import CALIBRATION_KERNELS, measure_chase_cycles
from spec_decode_bench.harness.timing.clocks import Clocks
from spec_decode_bench.harness.timing.cuda_timer import CudaTimer
from spec_decode_bench.harness.timing.queued_events import QueuedEvents
from spec_decode_bench.harness.timing.rounds import SAMPLE_DECIMALS, CellTimings, PlacedLaunch

#: Two turns through OFFSETS. Twice as many changed neither constants nor which cells are marked.
ROUNDS = 10
#: Integers in the one-block copy: the size of the lengths of a large decode step.
BLOCK_COPY_INTS = 1024
#: Blocks and threads of the wide copy: the grid and the traffic of an expanded block table.
WIDE_BLOCKS, WIDE_THREADS = 4224, 128
#: 32-bit arguments of the kernel with many: a kilobyte, as of a fused step.
ARGUMENTS = (ctypes.c_int * 256)(*range(256))
#: Loads of the kernel that follows pointers.
HOPS = 16
#: Kernels that are like a fused step of 256 requests or of 32: name -> blocks, threads, integers of the longest row.
#: The more threads, the longer is CUPTI's time beside that in a graph.
STEPS = {
    "step_128": (1024, 128, 2048),
    "step_512": (1024, 512, 2048),
    "step_1024": (1024, 1024, 2048),
    "small_step": (128, 128, 512),
}
#: Requests of the update of state, eight to a block.
REQUESTS = 1024
#: Block tables of few requests with long contexts and of many with short ones: name -> rows, integers of the longest.
TABLES = {"tables": (64, 1024), "wide_tables": (256, 256)}
#: Integers in a row of the tables; a thread copies four of them.
TABLE_INTS, TABLE_THREADS = 1024, 128
#: Blocks of one warp that do little each.
GRIDS = (512, 2048)
#: Blocks and threads of a copy of megabytes, four vectors a thread, as by a gather of index keys.
BULK_BLOCKS, BULK_THREADS = 512, 128
#: Waits of the spin kernels, nanoseconds.
SPINS_NS = (1000, 2000, 5000, 10_000, 20_000)
EMPTY_PAIRS = 100
COPY_BYTES = 2**30
COPY_ROUNDS = 7
#: Bytes read and written by the copies of the copy bound's curve, and rounds of each. Close to each other where the
#: curve may bend upwards, at the end of an L2 of 32 to 128 MiB: a line between two sizes lies above it there.
CURVE_BYTES = (
    *(2**n for n in (6, 9, 12, 14, 16, 18, 20, 21, 22, 23)),
    *(n * 2**22 for n in (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 20, 24, 28, 32)),
    *(2**n for n in (28, 30)),
)
CURVE_ROUNDS = 5
PAGE_BYTES = 2**21
#: Offsets in a page at which the buffers of kernels and copies start; variants have several placements as well.
OFFSETS = random.Random(0).sample(range(0, PAGE_BYTES, 512), CURVE_ROUNDS)
#: Bytes of an access of the copies.
VECTOR_BYTES = 16


class Kernels:
    """The calibration kernels.

    own:   name -> launches in several places, of the kinds of nodes that variants consist of. null: an empty kernel.
           block_copy: one block. wide_copy: two waves of blocks on a large GPU. bulk_copy: fewer blocks, several
           vectors a thread. operator: one of PyTorch. gather: one that reads by index, as from a block table. chain:
           five PyTorch operators, one of them a memcpy. wide_chain: the same on the traffic of wide_copy. STEPS: many
           arguments, much code and ragged rows, as of a fused step. TABLES: rows of block tables, by slot. update: of
           state that is looked up by request. arguments: one warp reads a kilobyte of them. pointers: one thread
           follows pointers. code: one warp runs through kilobytes of code, wide_code: every block of a grid. grid_512,
           grid_2048: copies of an integer a thread.
    bytes_moved: of the kinds that move more than a few kilobytes.
    spins: nanoseconds -> launch of a kernel that waits so long and writes its duration to ``taken_ns``.
    """

    def __init__(self) -> None:
        # The same in the process that times and in the auditor's.
        generator = torch.Generator().manual_seed(0)

        def integers(low: int, high: int, count: int) -> torch.Tensor:
            return torch.randint(low, high, (count,), dtype=torch.int32, generator=generator).to("cuda")

        sources = integers(0, 2**31 - 1, PAGE_BYTES // 4 + BLOCK_COPY_INTS)
        targets = torch.empty_like(sources)
        order = torch.randperm(BLOCK_COPY_INTS, generator=generator).to("cuda")
        slots = torch.randperm(REQUESTS, generator=generator).to("cuda", torch.int32)
        state = integers(0, 2**20, 4 * REQUESTS)
        self.taken_ns = torch.zeros(1, dtype=torch.int64, device="cuda")
        wide = integers(0, 2**31 - 1, WIDE_BLOCKS * WIDE_THREADS * 4)
        wide_target = torch.empty_like(wide)
        self.own: dict[str, list[Callable[[], None]]] = {
            "null": [launcher(CALIBRATION_KERNELS, "null_kernel", 1, 32)],
            "wide_copy": [launcher(CALIBRATION_KERNELS, "block_copy", WIDE_BLOCKS, WIDE_THREADS, wide, wide_target)],
            "wide_chain": [partial(_chain, wide, wide_target)],
            "update": [launcher(CALIBRATION_KERNELS, "update", REQUESTS // 8, 32, slots, sources, state, REQUESTS)],
        }
        vectors = BULK_BLOCKS * BULK_THREADS * 4
        self.own["bulk_copy"] = [
            launcher(CALIBRATION_KERNELS, "copy_vectors", BULK_BLOCKS, BULK_THREADS, wide, wide_target, vectors)
        ]
        self.bytes_moved = dict.fromkeys(("wide_copy", "wide_chain"), 2 * wide.nbytes)
        self.bytes_moved["bulk_copy"] = 2 * vectors * VECTOR_BYTES
        for name, sizes in STEPS.items():
            self._add_step(name, wide, integers, *sizes)
        for name, (rows, longest) in TABLES.items():
            self._add_tables(name, slots[:rows], wide, integers(1, longest, REQUESTS))
        for blocks in GRIDS:
            self.own[f"grid_{blocks}"] = [launcher(CALIBRATION_KERNELS, "copy_integers", blocks, 32, wide, wide_target)]
        self.own["wide_code"] = [launcher(CALIBRATION_KERNELS, "run_through_code", GRIDS[0], 32, wide, wide_target)]
        for offset in OFFSETS:
            source, target = (of[offset // 4 :][:BLOCK_COPY_INTS] for of in (sources, targets))
            for name, launch in self._in_place(source, target, order).items():
                self.own.setdefault(name, []).append(launch)
        self.spins = {ns: launcher(CALIBRATION_KERNELS, "timed_spin", 1, 1, ns, self.taken_ns) for ns in SPINS_NS}

    def _add_step(
        self, name: str, source: torch.Tensor, integers: Callable, blocks: int, threads: int, row: int
    ) -> None:
        lengths = integers(row // 2, row, blocks // 4)
        rows = torch.empty(blocks * row, dtype=torch.int32, device="cuda")
        launch = launcher(CALIBRATION_KERNELS, "step", blocks, threads, ARGUMENTS, lengths, source, rows, row)
        self.own[name] = [launch]
        self.bytes_moved[name] = 5 * int(lengths.sum()) * lengths.element_size()  # four copies of each row

    def _add_tables(self, name: str, slots: torch.Tensor, source: torch.Tensor, lengths: torch.Tensor) -> None:
        tables = torch.empty(len(slots) * TABLE_INTS, dtype=torch.int32, device="cuda")
        vectors = TABLE_INTS // 4
        grid, arguments = (len(slots), vectors // TABLE_THREADS), (slots, lengths, source, tables, vectors)
        self.own[name] = [launcher(CALIBRATION_KERNELS, "rows_by_slot", grid, TABLE_THREADS, *arguments)]
        written = int(lengths[slots.long()].sum()) * lengths.element_size()
        self.bytes_moved[name] = tables.nbytes + written

    @staticmethod
    def _in_place(source: torch.Tensor, target: torch.Tensor, order: torch.Tensor) -> dict[str, Callable[[], None]]:
        """The kinds that read and write a few kilobytes: [BLOCK_COPY_INTS] int32 each, and an order of them."""
        return {
            "block_copy": launcher(CALIBRATION_KERNELS, "block_copy", 1, BLOCK_COPY_INTS // 4, source, target),
            "operator": lambda: target.bitwise_xor_(source),
            "gather": lambda: torch.index_select(source, 0, order, out=target),
            "chain": partial(_chain, source, target),
            "arguments": launcher(CALIBRATION_KERNELS, "read_arguments", 1, 32, ARGUMENTS, target),
            "pointers": launcher(CALIBRATION_KERNELS, "follow_pointers", 1, 1, source, HOPS, target),
            "code": launcher(CALIBRATION_KERNELS, "run_through_code", 1, 32, source, target),
        }


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
        own = {
            name: _timed(timer, launches, bytes_moved=kernels.bytes_moved.get(name, 0))
            for name, launches in kernels.own.items()
        }
        events = QueuedEvents(timer.spin)
        source = torch.randint(256, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        return Calibration(
            own={name: times for name, (times, _) in own.items()},
            spins={ns: _timed(timer, [launch], kernels.taken_ns)[0] for ns, launch in kernels.spins.items()},
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


def copy_shapes(vectors: int, sms: int) -> dict[str, tuple[str, int, int]]:
    """Name -> (kernel, blocks, threads) with which so many 16-byte vectors may be copied fastest.

    vectors: a power of two, or at least 256 and a multiple of it.
    """
    threads = min(vectors, 256)
    shapes = {"a vector a thread": ("block_copy", vectors // threads, threads)}
    if 4 * vectors <= 256:
        shapes["an integer a thread"] = ("copy_integers", 1, 4 * vectors)
    if vectors > 2 * sms * 512:
        shapes["two blocks an SM"] = ("copy_vectors", 2 * sms, 512)
    return shapes


def _copies(timer: CudaTimer, source: torch.Tensor, target: torch.Tensor, size: int) -> dict[str, KernelTimes]:
    """Copies that read and write ``size`` bytes together, in the run's cache state: its inputs are the source."""
    sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    vectors = size // 2 // VECTOR_BYTES
    contents = source[: size // 2].clone() if timer.cache.state.rewrite_inputs else source
    times = {}
    for name, (kernel, blocks, threads) in copy_shapes(vectors, sms).items():
        launches = []
        for offset in OFFSETS:
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
        for _ in range(CURVE_ROUNDS):
            timings.add_sample()
        times[name] = KernelTimes(
            **{field: timings.samples[field] for field in ("graph_us", "state_us") if field in timings.samples}
        )
    return times


def _timed(
    timer: CudaTimer,
    launches: Sequence[Callable[[], None]],
    taken_ns: torch.Tensor | None = None,
    bytes_moved: int = 0,
) -> tuple[KernelTimes, list[float]]:
    """The samples of every estimator for one kernel in several places, and the host times of its launch."""
    timings = CellTimings(timer.stopwatch(*map(PlacedLaunch, launches), stream_rounds=ROUNDS))
    true_us: list[float] = []
    for _ in range(ROUNDS):
        timings.add_sample()
        if taken_ns is not None:
            true_us.append(int(taken_ns) / 1e3)
    samples = {name: timings.samples[name] for name in EstimatorSamples.__struct_fields__ if name in timings.samples}
    facts = timings.stopwatch.facts()
    times = KernelTimes(
        **samples, true_us=true_us, launches=facts["launches"], blocks=facts["blocks"], bytes_moved=bytes_moved
    )
    return times, timings.samples["host_us"]
