"""paged_mqa_schedule in CUDA C++: the launch. paged_mqa_schedule.cuh explains the kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spec_decode_bench.baselines.paged_mqa_schedule.operator import Inputs, Outputs, request_lens, with_indices
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.paged_mqa_schedule.triton import Sizes, single_sizes

#: Threads of a block, each with a row of the table.
THREADS = 256

SOURCE = cuda_source(Path(__file__).with_name("paged_mqa_schedule.cu"), Sizes, constants={"THREADS": THREADS})


@variant("paged_mqa_schedule", requires=GPU, sources=SOURCE, sizes={"num_sms": (THREADS - 1,)})
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch, one block on any current GPU: a scan, one barrier and a binary search per row; any batch in 4 KB of
    shared memory.
    """
    lens, runs = request_lens(x), with_indices(point)
    batch_size = len(lens)
    rows = "requests" if not runs else "runs"
    shape = "one" if batch_size <= THREADS else "four" if batch_size <= 4 * THREADS else "many"
    arguments = lens, x.indices if runs else lens, lens.stride(0), out.schedule, single_sizes(point, x)
    blocks = cdiv(point.num_sms + 1, THREADS)
    return launcher(SOURCE, f"paged_mqa_schedule_{rows}_{shape}_kernel", blocks, THREADS, *arguments)
