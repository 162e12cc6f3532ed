"""chain_step in CUDA C++: the launch of chain_step.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spec_decode_bench.baselines.chain_step.operator import Inputs, Outputs, longest, with_kv_indices
from spec_decode_bench.baselines.workloads.integers import strips_of_rows
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.chain_step.triton import TARGET_PROGRAMS, Sizes, sizes

#: A thread takes ITEMS entries at a time, THREADS apart.
THREADS, ITEMS = 256, 4

SOURCE = cuda_source(
    Path(__file__).with_name("chain_step.cu"), Sizes, Inputs, Outputs, constants={"THREADS": THREADS, "ITEMS": ITEMS}
)


@variant("chain_step", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, a block per row or strip of it."""
    rows = point.batch_size
    strips = strips_of_rows(longest(point), THREADS * ITEMS, rows, TARGET_PROGRAMS) if with_kv_indices(point) else 1
    arguments = sizes(point, x, out), bundle(x), bundle(out), point.next_n
    return launcher(SOURCE, "chain_step_kernel", (rows, strips), THREADS, *arguments)
