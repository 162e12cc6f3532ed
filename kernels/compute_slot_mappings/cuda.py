"""compute_slot_mappings in CUDA C++: the launch of compute_slot_mappings.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spec_decode_bench.baselines.compute_slot_mappings.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import warps_per_row
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.compute_slot_mappings.triton import Sizes, sizes

THREADS = 128

SOURCE = cuda_source(
    Path(__file__).with_name("compute_slot_mappings.cu"), Sizes, Inputs, Outputs, constants={"THREADS": THREADS}
)


@variant("compute_slot_mappings", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, a warp per row and group."""
    blocks = max(cdiv(len(x.idx_mapping), THREADS // 32), cdiv(out.slot_mappings.shape[1], 4 * THREADS))
    kernel = "compute_slot_mappings_kernel" if point.cp_size == 1 else "compute_slot_mappings_ranks_kernel"
    grid = (blocks, point.num_groups, warps_per_row(point))
    return launcher(SOURCE, kernel, grid, THREADS, sizes(point, x), bundle(x), bundle(out))
