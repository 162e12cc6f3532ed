"""gdn_split in CUDA C++: the launch of gdn_split.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from spec_decode_bench.baselines.gdn_split.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv, strips_of_rows
from spec_decode_bench.baselines.workloads.request_slots import longest_row
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher

#: Threads of a block, and blocks that share long rows at most: four per SM of a large GPU.
THREADS, BLOCKS = 128, 528


class Sizes(NamedTuple):
    """stride: from one row of the table to the next. log2_lanes: of the threads of a request."""

    batch_size: int
    next_n: int
    stride: int
    log2_lanes: int


SOURCE = cuda_source(Path(__file__).with_name("gdn_split.cu"), Sizes, Inputs, Outputs, constants={"THREADS": THREADS})


@variant("gdn_split", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, with as many threads per request as it has tokens, up to a warp."""
    longest = longest_row(point)
    log2_lanes = min(longest - 1, 31).bit_length()
    blocks = cdiv(point.batch_size << log2_lanes, THREADS)
    grid = blocks, strips_of_rows(longest, 1 << log2_lanes, blocks, BLOCKS)
    n = Sizes(point.batch_size, point.next_n, x.block_table.stride(0), log2_lanes)
    return launcher(SOURCE, "gdn_split_kernel", grid, THREADS, n, bundle(x), bundle(out))
