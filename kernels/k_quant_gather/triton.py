"""k_quant_gather in one launch, cut along requests so that every piece of work is a contiguous copy.

    triton_fused   one unit of 64 tokens per program, or 16 units of 8 tokens where requests are short
    cuda_fused     one unit of 32 tokens per warp: eight 16-byte loads per thread before the first store

A unit is a run of consecutive tokens of one request inside one cache block. Request b owns the units from
first_unit(b) = cu_seq_lens[b] // unit + b on, so its owner is found by one search over cu_seq_lens, 32 candidates at a
time; k_quant_gather.cu explains the arithmetic. The price is at most one idle unit per request, which ends after its
search. Tiles cut along the workspace instead can start in the middle of a block and end in another request, and then
every token needs its own address.

Both come close to the copy bound where chunks are large, less so where many short requests share a chunk; nearly all
stalls are for loads from global memory then. Tried at 128K tokens of 1024 requests and not used, on an H200:

    CUDA C++   guess the request by interpolation    faster with one warp, slower at 128 requests
               stores that evict first               faster, as nothing reads the workspace in a benchmark
               units of 8 KB                         slower
    Triton     64 or 256 lanes, 2 or 8 warps         slower
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from spec_decode_bench.baselines.k_quant_gather.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

#: Candidates of one search step.
LANES = 32
#: (tokens of a program, tokens of a unit). With one unit per program the search result is uniform: no shared memory.
LONG_REQUESTS, SHORT_REQUESTS = (64, 64), (128, 8)
#: Requests count as long from this mean number of tokens on.
LONG = 64


def max_units(x: Inputs, unit: int) -> int:
    """Upper bound of the units of a chunk, from host integers alone: first_unit(B) is at most N // unit + B."""
    return x.num_tokens // unit + len(x.cu_seq_lens) - 1


class Sizes(NamedTuple):
    num_reqs: int
    num_tokens: int


@triton.jit
def k_quant_gather_kernel(
    n,
    x,
    out,
    table_stride,
    block_stride,
    BLOCK_SIZE: tl.constexpr,
    VALUES: tl.constexpr,
    SCALES: tl.constexpr,
    UNIT: tl.constexpr,
    UNITS: tl.constexpr,
    LANES: tl.constexpr,
):
    """table_stride, block_stride: outside the bundles, as Triton shall specialise on them."""
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    lanes = tl.arange(0, LANES)[None, :]
    # Request: the last b with first_unit(b) = x.cu_seq_lens[b] // UNIT + b <= unit. It lies in [first, first + span);
    # beyond B first_unit still grows with b.
    first = tl.full((UNITS,), 0, tl.int32)
    span = n.num_reqs + 1
    while span > 1:
        span = (span + LANES - 1) // LANES
        b = first[:, None] + lanes * span
        reached = tl.load(x.cu_seq_lens + tl.minimum(b, n.num_reqs)) // UNIT + b <= unit[:, None]
        first += (tl.sum(reached.to(tl.int32), 1) - 1) * span
    request = tl.minimum(first, n.num_reqs)
    start = tl.load(x.cu_seq_lens + request)
    end = tl.minimum(tl.load(x.cu_seq_lens + tl.minimum(request + 1, n.num_reqs)), n.num_tokens)
    position = (unit - request - start // UNIT) * UNIT
    # 0 or less in idle units and past the last request, where start = end. Their table entry may hold anything.
    tokens = tl.minimum(end - start - position, UNIT)
    entry = x.block_table + request.to(tl.int64) * table_stride + position // BLOCK_SIZE
    block = tl.load(entry, mask=tokens > 0, other=0)
    page = block.to(tl.int64) * block_stride
    offset = position % BLOCK_SIZE
    row = (start + position).to(tl.int64)
    e, h = tl.arange(0, UNIT * VALUES)[None, :], tl.arange(0, UNIT * SCALES)[None, :]
    some_values, some_scales = e < (tokens * VALUES)[:, None], h < (tokens * SCALES)[:, None]
    scales = tl.load(x.kv_cache + (page + BLOCK_SIZE * VALUES + offset * SCALES)[:, None] + h, mask=some_scales)
    values = tl.load(x.kv_cache + (page + offset * VALUES)[:, None] + e, mask=some_values)
    tl.store(out.k + (row * VALUES)[:, None] + e, values, mask=some_values)
    tl.store(out.scale + (row * SCALES)[:, None] + h, scales, mask=some_scales)


@variant("k_quant_gather")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch. Copies 4-byte words, which Triton joins to 16 bytes if pointers and strides allow, or single bytes.

    Not recompiled for another chunk or batch size: there are two program shapes, and of row strides only divisibility
    by 16 matters.
    """
    tensors = (x.kv_cache, out.k, out.scale)
    if x.kv_cache.stride(0) % 4 == 0 and all(tensor.data_ptr() % 4 == 0 for tensor in tensors):
        tensors = tuple(tensor.view(torch.int32) for tensor in tensors)
    cache, k, scale = tensors
    requests = len(x.cu_seq_lens) - 1
    tokens, unit = LONG_REQUESTS if x.num_tokens >= LONG * requests else SHORT_REQUESTS
    unit = min(unit, point.block_size)
    units = tokens // unit
    grid = (cdiv(max_units(x, unit), units),)
    inputs, outputs = bundle(x)._replace(kv_cache=cache), bundle(out)._replace(k=k, scale=scale)
    arguments = Sizes(requests, x.num_tokens), inputs, outputs, x.block_table.stride(0), cache.stride(0)
    shapes = {"BLOCK_SIZE": point.block_size, "VALUES": k.shape[1], "SCALES": scale.shape[1]}
    shapes |= {"UNIT": unit, "UNITS": units, "LANES": LANES, "num_warps": 4}
    return fixed_launch(k_quant_gather_kernel, grid, *arguments, **shapes)
