"""k_quant_gather, fused: one launch, cut along requests so that every piece is a contiguous copy.

    triton_fused   a unit of 64 tokens for each program, or 16 units of 8 tokens where requests are short
    cuda_fused     a unit of 32 tokens for each warp: eight 16-byte loads per thread before the first store

A unit is some consecutive tokens of one request that never leave their cache block, found by one search over
cu_seq_lens, 32 candidates at a time; kernels/cuda/k_quant_gather.cu says how. Cut along the workspace instead, a tile
may begin in the middle of a block and end in another request's, and every token needs an address of its own. The price
is at most one idle unit per request, which ends after its search.

On an H200, us beside a plain copy of as many bytes; the aim was 1.15 times that copy:

    tokens   requests   Triton   CUDA C++   copy   aim
    128K     256        6.78     6.71       6.0    6.9
    128K     1024       7.35     8.11       6.0    6.9
    512K     1024       37.5     38.6       34.5   39.7

Many short requests stand in the way: missed at 128K tokens of 1024 requests, by 7 % and 18 %. Tried there in CUDA C++,
when it took 7.92: a first guess of the request by interpolation 7.45 with one warp, but 3 % slower at 128 requests;
stores that evict first 7.53; units of 8 KB 9.08. In Triton, when it took 7.07: 64 or 256 lanes, 2 or 8 warps 7.20 to
7.45.
"""

from __future__ import annotations

from pathlib import Path

import torch
import triton
import triton.language as tl

from baselines.workloads.integers import cdiv
from harness.contract import GPU, variant
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("k_quant_gather.cu")
WARP = 32
#: (tokens of a program, tokens of a unit). One unit needs no shared memory: what its search finds is the same in all
#: threads.
LONG_REQUESTS, SHORT_REQUESTS = (64, 64), (128, 8)
#: Bytes of values that a warp has in flight.
WARP_BYTES = 4096
#: Warps of a CUDA block where there are many units, as it takes long to start thousands of small blocks. Few units are
#: spread over at least this many blocks, two per SM of a large GPU, if they are that many.
MOST_WARPS, TARGET_BLOCKS = 4, 264


def _units(x, unit: int) -> int:
    """The units of request b begin at cu_seq_lens[b] // unit + b, so those of the last one end at N // unit + B or
    before.
    """
    return x.num_tokens // unit + len(x.cu_seq_lens) - 1


@triton.jit(do_not_specialize=["batch_size", "num_tokens"])
def _gather(
    kv_cache,
    block_table,
    cu_seq_lens,
    k,
    scale,
    batch_size,
    num_tokens,
    table_stride,
    block_stride,
    BLOCK_SIZE: tl.constexpr,
    VALUES: tl.constexpr,
    SCALES: tl.constexpr,
    UNIT: tl.constexpr,
    UNITS: tl.constexpr,
    LANES: tl.constexpr,
):
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    lanes = tl.arange(0, LANES)[None, :]
    # The last b with cu_seq_lens[b] // UNIT + b <= unit; it lies in [first, first + span). Beyond B the sum still grows
    # with b.
    first = tl.full((UNITS,), 0, tl.int32)
    span = batch_size + 1
    while span > 1:
        span = (span + LANES - 1) // LANES
        b = first[:, None] + lanes * span
        reached = tl.load(cu_seq_lens + tl.minimum(b, batch_size)) // UNIT + b <= unit[:, None]
        first += (tl.sum(reached.to(tl.int32), 1) - 1) * span
    request = tl.minimum(first, batch_size)
    start = tl.load(cu_seq_lens + request)
    end = tl.minimum(tl.load(cu_seq_lens + tl.minimum(request + 1, batch_size)), num_tokens)
    position = (unit - request - start // UNIT) * UNIT
    # 0 or less in idle units and past the last request, where start = end: their table entry may be anything.
    tokens = tl.minimum(end - start - position, UNIT)
    block = tl.load(
        block_table + request.to(tl.int64) * table_stride + position // BLOCK_SIZE, mask=tokens > 0, other=0
    )
    page = block.to(tl.int64) * block_stride
    offset = position % BLOCK_SIZE
    row = (start + position).to(tl.int64)
    e, h = tl.arange(0, UNIT * VALUES)[None, :], tl.arange(0, UNIT * SCALES)[None, :]
    some_values, some_scales = e < (tokens * VALUES)[:, None], h < (tokens * SCALES)[:, None]
    scales = tl.load(kv_cache + (page + BLOCK_SIZE * VALUES + offset * SCALES)[:, None] + h, mask=some_scales)
    values = tl.load(kv_cache + (page + offset * VALUES)[:, None] + e, mask=some_values)
    tl.store(k + (row * VALUES)[:, None] + e, values, mask=some_values)
    tl.store(scale + (row * SCALES)[:, None] + h, scales, mask=some_scales)


@variant("k_quant_gather")
def triton_fused(point, x, out):
    """One launch, in words of 4 bytes that Triton joins to 16 where pointers and strides allow it, or in single bytes.

    Nothing is compiled per chunk or batch size: there are two shapes of a program, and row strides count by whether 16
    divides them.
    """
    tensors = (x.kv_cache, out.k, out.scale)
    if x.kv_cache.stride(0) % 4 == 0 and all(tensor.data_ptr() % 4 == 0 for tensor in tensors):
        tensors = tuple(tensor.view(torch.int32) for tensor in tensors)
    cache, k, scale = tensors
    requests = len(x.cu_seq_lens) - 1
    tokens, unit = LONG_REQUESTS if x.num_tokens >= 64 * requests else SHORT_REQUESTS
    unit = min(unit, point.block_size)
    units = tokens // unit
    grid = (cdiv(_units(x, unit), units),)

    def launch():
        _gather[grid](
            cache,
            x.block_table,
            x.cu_seq_lens,
            k,
            scale,
            requests,
            x.num_tokens,
            x.block_table.stride(0),
            cache.stride(0),
            BLOCK_SIZE=point.block_size,
            VALUES=k.shape[1],
            SCALES=scale.shape[1],
            UNIT=unit,
            UNITS=units,
            LANES=WARP,
            num_warps=4,
        )

    return launch


@variant("k_quant_gather", requires=GPU, sources=SOURCE)
def cuda_fused(point, x, out):
    """One launch in CUDA C++; 16-byte copies where cache, its block stride and both workspaces are aligned for them."""
    unit = max(1, min(point.block_size, WARP_BYTES // point.head_dim))
    units, block_stride = _units(x, unit), x.kv_cache.stride(0)
    aligned = block_stride % 16 == 0 and all(tensor.data_ptr() % 16 == 0 for tensor in (x.kv_cache, out.k, out.scale))
    warps = next((w for w in (MOST_WARPS, MOST_WARPS // 2) if units >= w * TARGET_BLOCKS), 1)
    return launcher(
        SOURCE,
        "gather_vec16" if aligned else "gather_vec1",
        cdiv(units, warps),
        WARP * warps,
        x.kv_cache,
        x.block_table,
        x.cu_seq_lens,
        out.k,
        out.scale,
        len(x.cu_seq_lens) - 1,
        x.num_tokens,
        x.block_table.stride(0),
        block_stride,
        point.block_size.bit_length() - 1,
        unit.bit_length() - 1,
        point.head_dim,
        out.scale.shape[1],
    )
