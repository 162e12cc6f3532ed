"""token_requests in CUDA C++: the launch of token_requests.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from spec_decode_bench.baselines.token_requests.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv, strips_of_rows
from spec_decode_bench.baselines.workloads.request_slots import longest_row
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher

THREADS = 128
#: Blocks that share long rows at most: four per SM of a large GPU. Padding tokens of a block, a thread's one by one.
BLOCKS, PADDING_TOKENS = 528, 4 * THREADS


class Sizes(NamedTuple):
    """row_blocks: those that write tokens of requests. log2_lanes: of the threads of a request. is_own: 1 where padding
    tokens get requests of their own.
    """

    batch_size: int
    row_blocks: int
    log2_lanes: int
    is_own: int


SOURCE = cuda_source(
    Path(__file__).with_name("token_requests.cu"), Sizes, Inputs, Outputs, constants={"THREADS": THREADS}
)


@variant("token_requests", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, with as many threads per request as it has tokens, up to a warp."""
    longest = longest_row(point)
    log2_lanes = min(longest - 1, 31).bit_length()
    rows = cdiv(point.batch_size << log2_lanes, THREADS)
    grid = rows + cdiv(x.num_tokens, PADDING_TOKENS), strips_of_rows(longest, 1 << log2_lanes, rows, BLOCKS)
    n = Sizes(point.batch_size, rows, log2_lanes, int(point.padding_request == "own"))
    return launcher(SOURCE, "token_requests_kernel", grid, THREADS, n, bundle(x), bundle(out))
