"""window_tables in CUDA C++: the launch of window_tables.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from spec_decode_bench.baselines.window_tables.operator import Inputs, Outputs
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.window_tables import triton


class Sizes(NamedTuple):
    """Those of Triton. window, window_block: tokens of the window and of its blocks. states: of C128A in a block."""

    batch_size: int
    longest: int
    capacity: int
    window_columns: int
    state_columns: int
    list_width: int
    list_stride: int
    window: int
    window_block: int
    states: int


SOURCE = cuda_source(
    Path(__file__).with_name("window_tables.cu"), Sizes, Inputs, Outputs, constants={"THREADS": triton.LANES}
)


@variant("window_tables", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, a block in place of a program."""
    n = Sizes(*triton.sizes(point, x), point.window_size, point.window_block, point.c128_block)
    grid = triton.blocks(point, x)
    return launcher(SOURCE, "window_tables_kernel", grid, triton.LANES, n, bundle(x), bundle(out))
