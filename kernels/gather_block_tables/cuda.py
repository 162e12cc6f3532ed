"""gather_block_tables in CUDA C++: the launch of gather_block_tables.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spec_decode_bench.baselines.gather_block_tables.operator import Inputs, Outputs, rows_to_write
from spec_decode_bench.baselines.workloads.request_slots import group_widths, table_starts
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.gather_block_tables.triton import Sizes, sizes, strips_of

THREADS = 128

SOURCE = cuda_source(
    Path(__file__).with_name("gather_block_tables.cu"), Sizes, Inputs, Outputs, constants={"THREADS": THREADS}
)


@variant("gather_block_tables", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, 16 bytes per thread where rows are aligned to them."""
    aligned = all(size % 4 == 0 for size in (*group_widths(point), *table_starts(point)))
    aligned = aligned and x.tables.data_ptr() % 16 == out.block_tables.data_ptr() % 16 == 0
    vector, suffix = 4 if aligned else 1, "_by_token" if point.entries == "token" else ""
    grid = (rows_to_write(point), strips_of(point, THREADS * vector), point.num_groups)
    arguments = sizes(point, x), bundle(x), bundle(out)
    return launcher(SOURCE, f"gather_block_tables_kernel_vec{vector}{suffix}", grid, THREADS, *arguments)
