"""decode_flatten in Triton.

The idea of triton_fused is to work request-major. A program takes one request and one strip of its table row: it reads
the request's boundaries and length directly, so no token searches for its request, and loads the strip once for all
tokens of the request. The first strip is loaded before the lengths arrive, which saves one memory latency. Programs
past the last request clear the lengths from A to capacity.

Versions:

    triton_uniform   one program per token, full rows, a second launch for the tail: uniform batches only (the kernel of
                     vLLM #39458)
    triton_fused     one launch for every batch, used blocks only
    cuda_fused       the same in CUDA C++ (cuda.py): 16-byte copies, compact loops

A row is split over strips only while the requests alone do not fill the GPU (TARGET_BLOCKS).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.dcp_lengths.operator import ranks_of
from spec_decode_bench.baselines.decode_flatten.operator import Inputs, Outputs, copied_columns
from spec_decode_bench.baselines.workloads.integers import cdiv, strips_of_rows
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch
from spec_decode_bench.kernels.dcp_lengths.triton import local_length, rank_constants

COLUMNS_PER_PROGRAM = 512
#: Table rows are split over strips until the grid has this many blocks, four per SM of a large GPU. Half as many are
#: a little faster if all contexts are short, but one request of 134K tokens among 255 short ones then makes the launch
#: much slower, because one block copies its whole row strip after strip. Twice as many are slower at B = 256.
TARGET_BLOCKS = 528
#: Batches from which on a row has at most two strips, and only one, and are more than the blocks.
STRIP_SIZES = {"batch_size": (TARGET_BLOCKS // 3 + 1, TARGET_BLOCKS // 2 + 1, TARGET_BLOCKS + 1)}


# --- one program per token, uniform batches ---------------------------------------------------------------------------


@triton.jit
def decode_flatten_uniform_kernel(
    seq_lens, source, lens, decode_lens, table, decode_len, copied, source_stride, table_stride, CHUNK: tl.constexpr
):
    token = tl.program_id(0)
    request = token // decode_len
    tl.store(lens + token, tl.maximum(tl.load(seq_lens + request) - decode_len + token % decode_len + 1, 0))
    tl.store(decode_lens + token, 1)
    columns = tl.arange(0, CHUNK)
    for begin in range(0, copied, CHUNK):
        inside = begin + columns < copied
        entries = tl.load(source + request.to(tl.int64) * source_stride + begin + columns, mask=inside)
        tl.store(table + token.to(tl.int64) * table_stride + begin + columns, entries, mask=inside)


def _exact_uniform_batch(point: Point) -> str | None:
    if point.decode_len != "uniform" or point.padding or point.host_lens == "stale":
        return "uniform batches only"
    if point.token_padding:
        return "no token padding: it writes B * L rows"
    if ranks_of(point)[0] > 1:
        return "one context-parallel rank only"
    return None if point.indices == "no" else "it writes no indices"


def _launch_uniform(point: Point, x: Inputs, out: Outputs, tokens: int, columns: int) -> Callable[[], None]:
    """Expand ``tokens`` rows of ``columns`` entries, then zero the lengths behind them."""
    decode_len = point.max_decode_len
    expand = fixed_launch(
        decode_flatten_uniform_kernel,
        (tokens,),
        x.seq_lens,
        x.block_table,
        out.lens,
        out.decode_lens,
        out.block_table,
        decode_len,
        columns,
        x.block_table.stride(0),
        out.block_table.stride(0),
        CHUNK=1024,
    )

    def launch():
        expand()
        out.lens[tokens:].fill_(0)

    return launch


@variant("decode_flatten", skip=_exact_uniform_batch)
def triton_uniform(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Full rows, one program per token, tail zeroed by a second launch; copies the columns that both tables have."""
    return _launch_uniform(point, x, out, x.num_decode_tokens, copied_columns(x, out))


@variant(
    "decode_flatten",
    defect="the row copy is bounded by the destination's row stride and reads past narrower rows (vLLM #46074)",
    skip=_exact_uniform_batch,
)
def copy_bounded_by_destination(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    columns = out.block_table.shape[1]  # the stride of vLLM's contiguous table; far rows would make it gigabytes
    return _launch_uniform(point, x, out, x.num_decode_tokens, columns)


@variant(
    "decode_flatten",
    defect="T is recomputed as B * L: token padding is dropped (vllm-backport #49)",
    skip=lambda p: _exact_uniform_batch(Point({**p, "token_padding": 0})),
)
def tokens_recomputed(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return _launch_uniform(point, x, out, point.batch_size * point.max_decode_len, copied_columns(x, out))


# --- one launch for every batch ---------------------------------------------------------------------------------------


def request_grid(x: Inputs, out: Outputs, ints_per_block: int) -> tuple[int, int]:
    """(x, y) of a grid of blocks that handle ``ints_per_block`` table columns of a request, or entries of the tail.

    y is the number of strips a table row is split over: at most as many as the columns need, fewer where the requests
    fill the GPU anyway. x counts the requests, then the columns of blocks that clear the lengths behind the last token.
    """
    batch_size = len(x.seq_lens)
    strips = strips_of_rows(copied_columns(x, out), ints_per_block, batch_size, TARGET_BLOCKS)
    return batch_size + cdiv(cdiv(out.lens.numel(), ints_per_block), strips), strips


#: Fields that the fused kernels read, and those that they write: operators that are made of this one have more.
INPUTS = ("seq_lens", "query_start_loc", "block_table")
OUTPUTS = ("lens", "decode_lens", "block_table", "indices", "request_lens")


class Sizes(NamedTuple):
    """num_tokens: rows of the expanded table. columns: those that are copied of a row. far: 1 where the expanded table
    has 2^31 entries or more, strides included, else None: offsets of 64 bits make long rows a few per cent slower.
    """

    num_reqs: int
    num_tokens: int
    max_num_batched_tokens: int
    columns: int
    far: int | None


def sizes(x: Inputs, out: Outputs) -> Sizes:
    far = 1 if out.block_table.shape[0] * out.block_table.stride(0) >= 2**31 else None
    return Sizes(len(x.seq_lens), x.num_decode_tokens, out.lens.numel(), copied_columns(x, out), far)


@triton.jit
def flatten_rows(
    request,
    strip,
    strips,
    seq_lens,
    query_start_loc,
    block_table,
    out,
    n,
    source_stride,
    table_stride,
    BLOCK_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    idx_mapping=None,
    RANKS: tl.constexpr = 1,
    RANK: tl.constexpr = 0,
    INTERLEAVE: tl.constexpr = 1,
):
    """One strip of a request's table row for all its tokens; past the last request, a part of the tail to clear. RANKS:
    of context parallelism, of which this one takes INTERLEAVE tokens in turn.

    idx_mapping: None, or the slot of each request (-1: none), where ``block_table`` is by slot and ``seq_lens`` the
    lengths before the step, by slot.
    """
    lanes = tl.arange(0, COLUMNS)
    if request < n.num_reqs:
        owner = request.to(tl.int64)
        if idx_mapping is not None:
            owner = tl.maximum(tl.load(idx_mapping + request), 0)
        row = block_table + owner * source_stride
        # Load the first strip before the lengths are known: one memory latency instead of two. Later ones are rare.
        entries = tl.load(row + lanes, mask=lanes < n.columns - strip * n.columns, other=0)
        start = tl.load(query_start_loc + request)
        decode_len = tl.load(query_start_loc + request + 1) - start
        seq_len = tl.load(seq_lens + owner)
        if idx_mapping is not None:
            seq_len += decode_len
        held = seq_len  # by the last token, and so by all of a request
        if RANKS > 1:
            held = local_length(seq_len, RANKS, RANK, INTERLEAVE)
        rows = tl.minimum(decode_len, n.num_tokens - start)
        row_stride = table_stride
        if n.far is not None:
            row_stride = table_stride.to(tl.int64)  # for products with j
        first = out.block_table + start.to(tl.int64) * table_stride
        begin = strip * COLUMNS
        if strip == 0:
            for j in range(0, rows, COLUMNS):
                inside = j + lanes < rows
                lengths = tl.maximum(seq_len - decode_len + j + lanes + 1, 0)
                if RANKS > 1:
                    lengths = local_length(lengths, RANKS, RANK, INTERLEAVE)
                tl.store(out.lens + start + j + lanes, lengths, mask=inside)
                tl.store(out.decode_lens + start + j + lanes, tl.full((COLUMNS,), 1, tl.int32), mask=inside)
                if out.indices is not None:
                    tl.store(out.indices + start + j + lanes, tl.zeros((COLUMNS,), tl.int32) + request, mask=inside)
            if out.request_lens is not None:
                tl.store(out.request_lens + request, seq_len)
            inside = (lanes < n.columns) & (lanes * BLOCK_SIZE < held)
            for j in range(rows):
                tl.store(first + j * row_stride + lanes, entries, mask=inside)
            begin += strips * COLUMNS
        # ceil(seq_len / BLOCK_SIZE) without a sum that overflows near 2^31. It is 1 for an empty request, which is
        # harmless: a later strip never begins at column 0.
        used = tl.minimum(tl.maximum(held - 1, 0) // BLOCK_SIZE + 1, n.columns)
        if rows > 0:
            for column in range(begin, used, strips * COLUMNS):
                inside = column + lanes < used
                entries = tl.load(row + column + lanes, mask=inside, other=0)
                for j in range(rows):
                    tl.store(first + j * row_stride + column + lanes, entries, mask=inside)
    else:
        actual = tl.load(query_start_loc + n.num_reqs)
        token = ((request - n.num_reqs) * strips + strip) * COLUMNS + lanes
        padding = (token >= actual) & (token < n.num_tokens)
        zeros = tl.zeros((COLUMNS,), tl.int32)
        tl.store(out.lens + token, zeros, mask=(token >= actual) & (token < n.max_num_batched_tokens))
        tl.store(out.decode_lens + token, zeros + 1, mask=padding)
        if out.indices is not None:
            tl.store(out.indices + token, n.num_reqs + token - actual, mask=padding)
        tl.store(out.block_table + token.to(tl.int64) * table_stride, zeros, mask=padding)


@triton.jit
def decode_flatten_kernel(
    n,
    x,
    out,
    source_stride,
    table_stride,
    BLOCK_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    RANKS: tl.constexpr,
    RANK: tl.constexpr,
    INTERLEAVE: tl.constexpr,
):
    request, strip, strips = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    lens, starts, table = x.seq_lens, x.query_start_loc, x.block_table
    flatten_rows(
        request,
        strip,
        strips,
        lens,
        starts,
        table,
        out,
        n,
        source_stride,
        table_stride,
        BLOCK_SIZE,
        COLUMNS,
        None,
        RANKS,
        RANK,
        INTERLEAVE,
    )


@variant("decode_flatten", sizes=STRIP_SIZES)
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch for uniform, ragged, padded and token-padded batches; copies used blocks only. Not recompiled for
    another batch size or table width; of row strides only 1 and divisibility by 16 matter.
    """
    grid = request_grid(x, out, COLUMNS_PER_PROGRAM)
    arguments = sizes(x, out), bundle(x, *INPUTS), bundle(out, *OUTPUTS)
    # Outside the bundles, as Triton shall specialise on them: rows are then known to be aligned.
    strides = x.block_table.stride(0), out.block_table.stride(0)
    tile = {"BLOCK_SIZE": point.block_size, "COLUMNS": COLUMNS_PER_PROGRAM, "num_warps": 4} | rank_constants(point)
    return fixed_launch(decode_flatten_kernel, grid, *arguments, *strides, **tile)
