"""token_requests in Triton: one launch, request by request.

A token that looks for its request takes log2(B) loads one after another (vLLM, TensorRT-LLM). Here a request writes its
number to its tokens: two loads at once, then a store. Requests share a program, several lanes each. Where rows are
long, programs share them in strips, as far as they do not fill a GPU anyway. Programs past the last request write
padding tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.token_requests.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv, strips_of_rows, tile
from spec_decode_bench.baselines.workloads.request_slots import longest_row
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

#: Tokens that a program writes at a time, and programs that share long rows at most: four per SM of a large GPU.
TOKENS, PROGRAMS = 256, 528
#: Padding tokens of a program: it takes TOKENS at a time.
PADDING_TOKENS = 4 * TOKENS


class Sizes(NamedTuple):
    """row_programs: those that write tokens of requests. is_own: 1 where padding tokens get requests of their own."""

    batch_size: int
    row_programs: int
    is_own: int


@triton.jit
def token_requests_kernel(n, x, out, ROWS: tl.constexpr, LANES: tl.constexpr):
    program, strip, strips = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    if program < n.row_programs:
        b = program * ROWS + tl.arange(0, ROWS)
        start = tl.load(x.query_start_loc + b, mask=b < n.batch_size, other=0)
        end = tl.load(x.query_start_loc + b + 1, mask=b < n.batch_size, other=0)
        requests = tl.zeros((ROWS, LANES), tl.int32) + b[:, None]
        token = (start + strip * LANES)[:, None] + tl.arange(0, LANES)[None, :]
        tl.store(out.requests + token, requests, mask=token < end[:, None])
        # Rows that are longer than all strips.
        for _ in range((strip + strips) * LANES, tl.max(end - start, 0), strips * LANES):
            token += strips * LANES
            tl.store(out.requests + token, requests, mask=token < end[:, None])
    else:
        actual = tl.load(x.query_start_loc + n.batch_size)
        worker, workers = (program - n.row_programs) * strips + strip, (tl.num_programs(0) - n.row_programs) * strips
        for first in range(worker * ROWS * LANES, x.num_tokens - actual, workers * ROWS * LANES):
            k = first + tl.arange(0, ROWS * LANES)
            tl.store(out.requests + actual + k, n.is_own * (n.batch_size + k), mask=k < x.num_tokens - actual)


@variant("token_requests")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch: requests write their tokens, further programs the padding tokens."""
    lanes = tile(min(longest_row(point), 64), (4, 16, 64))
    rows = cdiv(point.batch_size, TOKENS // lanes)
    grid = rows + cdiv(x.num_tokens, PADDING_TOKENS), strips_of_rows(longest_row(point), lanes, rows, PROGRAMS)
    n = Sizes(point.batch_size, rows, int(point.padding_request == "own"))
    tiling = {"ROWS": TOKENS // lanes, "LANES": lanes}
    return fixed_launch(token_requests_kernel, grid, n, bundle(x), bundle(out), **tiling)
