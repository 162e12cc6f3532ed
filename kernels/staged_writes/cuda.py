"""staged_writes in CUDA C++: the launch of staged_writes.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from spec_decode_bench.baselines.staged_writes.operator import Inputs, Outputs, longest_write
from spec_decode_bench.baselines.workloads.integers import cdiv, strips_of_rows
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher

THREADS = 128
#: Blocks that share long rows at most: four per SM of a large GPU.
BLOCKS = 528


class Sizes(NamedTuple):
    """log2_lanes: of the threads of a write."""

    num_writes: int
    log2_lanes: int


SOURCE = cuda_source(
    Path(__file__).with_name("staged_writes.cu"), Sizes, Inputs, Outputs, constants={"THREADS": THREADS}
)


@variant("staged_writes", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, with as many threads per write as it has ids, up to a warp."""
    longest, writes = longest_write(point), len(x.cu_lens)
    log2_lanes = min(longest - 1, 31).bit_length()
    rows = cdiv(writes << log2_lanes, THREADS)
    grid, n = (rows, strips_of_rows(longest, 1 << log2_lanes, rows, BLOCKS)), Sizes(writes, log2_lanes)
    return launcher(SOURCE, "staged_writes_kernel", grid, THREADS, n, bundle(x), bundle(out))
