"""block_draft_inputs in CUDA C++: the launch of block_draft_inputs.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spec_decode_bench.baselines.block_draft_inputs.operator import Inputs, Outputs, query_tokens
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import MAX_GRID_Y, longest_row
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.block_draft_inputs.triton import Sizes, longest_tail, sizes

THREADS = 128

SOURCE = cuda_source(
    Path(__file__).with_name("block_draft_inputs.cu"), Sizes, Inputs, Outputs, constants={"THREADS": THREADS}
)


@variant("block_draft_inputs", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, a warp per row and group."""
    blocks = max(cdiv(point.batch_size, THREADS // 32), cdiv(longest_tail(point), 2 * THREADS))
    strips = min(cdiv(longest_row(point) + query_tokens(point), 32), MAX_GRID_Y)
    kernel = "block_draft_inputs_kernel" if point.cp_size == 1 else "block_draft_inputs_ranks_kernel"
    arguments = sizes(point), bundle(x), bundle(out)
    return launcher(SOURCE, kernel, (blocks, point.num_groups, strips), THREADS, *arguments)
