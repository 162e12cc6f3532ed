"""paged_mqa_schedule in Triton: one launch, straight into the persistent table, not recompiled per batch size.

    triton_fused   a few rows of the table per program: every program scans all lengths and counts the requests that end
                   before each of its rows. Up to 128 requests, a program is one warp and has no barrier
    cuda_fused     one block for 256 rows (cuda.py): a scan, one barrier, a binary search per row

Triton cannot index shared memory, and a search by tl.gather costs a barrier per step, while counting costs one
reduction. The price is that every program reads the lengths, from L2. In CUDA C++ a step of the search is one
shared-memory load.

Shapes on an H200 at B = 128, slowest first: four warps and 8 rows per program; two warps and 4 rows; one warp with 8, 4
and 2 rows, where 4 and 2 are alike. cuda_fused is faster than all of them. Reductions of 32 bits instead of 64 help
programs of several warps a little, but not at B = 1024.
``schedule_rows`` also serves decode_step, over a batch of flattened tokens, without visiting them one by one. Runs of
tokens (``indices``) are scanned by token: each has the segments of its run, whose end it finds by comparing ids with at
most L - 1 neighbours, all loaded at once. So nobody counts the runs, which DeepGEMM does in a single thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.dcp_lengths.operator import ranks_of
from spec_decode_bench.baselines.paged_mqa_schedule.operator import (
    SEGMENT,
    Inputs,
    Outputs,
    request_lens,
    with_indices,
)
from spec_decode_bench.baselines.workloads.integers import cdiv, reciprocal
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

#: Lengths scanned at once. Batches larger than the larger tile take several turns.
SMALL_TILE, LARGE_TILE = 256, 1024
#: Lengths times table rows per program. Fewer: more programs that read all lengths. More: each of them takes longer.
COMPARISONS = 2048
#: Largest batch that a program of one warp scans at once, and the table rows of such a program.
WARP_TILE = tl.constexpr(128)
WARP_SLOTS = 2


class Sizes(NamedTuple):
    """factor: atoms of a request, tokens of the largest one of a flattened batch, or of the longest run. num_queries:
    of the batch. multiplier, shift: they divide by num_sms. is_back: whether the last SMs get the units left over.
    """

    batch_size: int
    num_sms: int
    multiplier: int
    shift: int
    factor: int
    is_back: int
    num_queries: int


class Tile(NamedTuple):
    """ROWS: lengths scanned at once; up to WARP_TILE, the batch is no larger. SLOTS: rows of the table. FIRST, LOG2:
    rank_segments.
    """

    ROWS: int
    SLOTS: int
    FIRST: int = 0
    LOG2: int = 8


def sizes(point: Point, batch_size: int, factor: int, num_queries: int) -> Sizes:
    is_back = int(point.remainder == "back")
    return Sizes(batch_size, point.num_sms, *reciprocal(point.num_sms), factor, is_back, num_queries)


def rank_segments(point: Point) -> tuple[int, int]:
    """(tokens of a context before this rank's first one, log2 of the tokens of a context per segment of the rank).

    Of CP ranks whose interleave divides 256, the k-th segment of one begins k * 256 CP tokens behind its first token.
    So a local length has as many segments of 256 tokens as the whole length, less the tokens before the first, has of
    256 CP: the segments of a request's tokens keep their closed form.
    """
    size, rank, interleave = ranks_of(point)
    return rank * interleave, (SEGMENT * size).bit_length() - 1


@triton.jit
def _segments(length, LOG2: tl.constexpr):
    """ceil(length / 2^LOG2), 0 for negative lengths."""
    return -(-tl.maximum(length, 0) >> LOG2)


@triton.jit
def _up_to(length, LOG2: tl.constexpr):
    """Segments of the lengths 1 .. length together, int64: S = 2^LOG2 lengths have k segments, for each k up to
    length / S; the rest have one more.
    """
    whole, rest = length >> LOG2, length & ((1 << LOG2) - 1)
    return (whole + 1).to(tl.int64) * ((1 << (LOG2 - 1)) * whole.to(tl.int64) + rest)


@triton.jit
def _in_run(ids, token, tokens, longest, DIRECTION: tl.constexpr):
    """Tokens of the same id behind (DIRECTION 1) or before (-1) a token."""
    own, count = tl.load(ids + token, mask=token < tokens, other=-1), tl.zeros_like(token)
    for distance in range(1, longest):
        other = token + DIRECTION * distance
        count += (tl.load(ids + other, mask=(other >= 0) & (other < tokens), other=-2) == own).to(tl.int32)
    return count


@triton.jit
def _weight(
    lens,
    query_start_loc,
    row,
    batch_size,
    row_stride,
    longest,
    TOKENS: tl.constexpr,
    RUNS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Segments of a request, 0 past the batch. TOKENS: of all its tokens, each a separate query. RUNS: rows are tokens,
    query_start_loc their ids.
    """
    inside = row < batch_size
    if RUNS:
        row += _in_run(query_start_loc, row, batch_size, longest, 1)
    length = tl.load(lens + row * row_stride, mask=inside, other=0) - TILE.FIRST
    if TOKENS:
        start = tl.load(query_start_loc + row, mask=inside, other=0)
        rows = tl.load(query_start_loc + row + 1, mask=inside, other=0) - start
        last = tl.maximum(length, 0)
        weight = (_up_to(last, TILE.LOG2) - _up_to(tl.maximum(last - rows, 0), TILE.LOG2)).to(tl.int32)
    else:
        weight = _segments(length, TILE.LOG2)
    return weight


@triton.jit
def _passed(segments, before, start, atoms):
    """The requests of a tile that end at or before ``start``: their number in the upper 32 bits, their segments in the
    lower. before: segments of earlier tiles.
    """
    ended = (before + tl.cumsum(segments, 0))[None, :] * atoms <= start[:, None]
    return tl.sum(tl.where(ended, segments.to(tl.int64)[None, :] + (1 << 32), 0), 1)


@triton.jit
def schedule_rows(
    program,
    lens,
    query_start_loc,
    row_stride,
    table,
    n,
    TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    RUNS: tl.constexpr = False,
):
    """TILE.SLOTS rows of the table.

    A request is ``n.factor`` queries of one length, its atoms. TOKENS: the batch is flattened; a request is one query
    per token, at most ``n.factor``, and has no atoms. RUNS: rows are tokens, query_start_loc their ids; a request is a
    run of at most ``n.factor`` of them.
    """
    ROWS: tl.constexpr = TILE.ROWS
    SLOTS: tl.constexpr = TILE.SLOTS
    batch_size, num_sms, factor = n.batch_size, n.num_sms, n.factor
    atoms = 1 if TOKENS or RUNS else factor
    rows = tl.arange(0, ROWS)
    first = _weight(lens, query_start_loc, rows, batch_size, row_stride, factor, TOKENS, RUNS, TILE)
    if ROWS <= WARP_TILE:  # the whole batch
        ends = tl.cumsum(first, 0)
        total = tl.max(ends, 0)
    else:
        before = tl.sum(first, 0)
        total = before
        for begin in range(ROWS, batch_size, ROWS):
            tile = _weight(lens, query_start_loc, begin + rows, batch_size, row_stride, factor, TOKENS, RUNS, TILE)
            total += tl.sum(tile, 0)

    units = total * atoms
    share = ((units.to(tl.int64) * n.multiplier) >> n.shift).to(tl.int32)
    rest = units - share * num_sms
    slot = program * SLOTS + tl.arange(0, SLOTS)
    start = slot * share + tl.where(n.is_back != 0, tl.maximum(slot - num_sms + rest, 0), tl.minimum(slot, rest))

    if ROWS <= WARP_TILE:
        ended = ends[None, :] * atoms <= start[:, None]
        count = tl.sum(ended.to(tl.int32), 1)
        segments = tl.max(tl.where(ended, ends[None, :], 0), 1)
    else:
        passed = _passed(first, 0, start, atoms)
        for begin in range(ROWS, batch_size, ROWS):
            tile = _weight(lens, query_start_loc, begin + rows, batch_size, row_stride, factor, TOKENS, RUNS, TILE)
            passed += _passed(tile, before, start, atoms)
            before += tl.sum(tile, 0)
        count = (passed >> 32).to(tl.int32)
        segments = passed.to(tl.int32)

    # Where no unit is left, entries past the batch were counted too; the segment comes out as 0.
    request = tl.minimum(count, batch_size)
    segment = start - segments * atoms
    live = request < batch_size
    if TOKENS:
        query = tl.load(query_start_loc + request, mask=live, other=0)
        end = tl.load(query_start_loc + request + 1, mask=live, other=0)
        length = tl.load(lens + request, mask=live, other=0) - TILE.FIRST - end + query + 1
        for _ in range(1, factor):
            width = _segments(length, TILE.LOG2)
            next_token = ((segment >= width) & live).to(tl.int32)
            segment -= width * next_token
            query += next_token
            length += next_token
    elif RUNS:
        before = _in_run(query_start_loc, request, batch_size, factor, -1)
        last = request + _in_run(query_start_loc, request, batch_size, factor, 1)
        query = request - before
        width = _segments(tl.load(lens + last * row_stride, mask=live, other=0), TILE.LOG2)
        segment = tl.where(live, (segment + before * width) // (last + 1 - query), 0)
    else:
        query = request * atoms
        if atoms > 1:
            width = _weight(lens, query_start_loc, request, batch_size, row_stride, factor, TOKENS, RUNS, TILE)
            for _ in range(1, atoms):
                next_atom = (segment >= width) & live
                segment -= tl.where(next_atom, width, 0)
                query += next_atom.to(tl.int32)
    if TOKENS or RUNS:
        query = tl.where(live, query, n.num_queries)
    inside = slot <= num_sms
    tl.store(table + 2 * slot, query, mask=inside)
    tl.store(table + 2 * slot + 1, segment, mask=inside)


@triton.jit(do_not_specialize=["lens", "ids", "row_stride"])
def paged_mqa_schedule_kernel(lens, ids, row_stride, table, n, TILE: tl.constexpr, RUNS: tl.constexpr):
    """lens, ids, row_stride: of views, whose alignment the kernel shall not be specialised on."""
    schedule_rows(tl.program_id(0), lens, ids, row_stride, table, n, False, TILE, RUNS)


def tiling(batch_size: int, num_sms: int) -> tuple[int, Tile]:
    """Programs of several warps, and their tile."""
    rows = SMALL_TILE if batch_size <= SMALL_TILE else LARGE_TILE
    slots = COMPARISONS // rows
    return cdiv(num_sms + 1, slots), Tile(rows, slots)


def warp_tiling(num_sms: int) -> tuple[int, Tile]:
    """The same for programs of one warp and at most WARP_TILE requests."""
    return cdiv(num_sms + 1, WARP_SLOTS), Tile(WARP_TILE.value, WARP_SLOTS)


def single_sizes(point: Point, x: Inputs) -> Sizes:
    """Of the operator alone: its rows are requests, or tokens in runs."""
    batch_size = len(request_lens(x))
    if with_indices(point):
        return sizes(point, batch_size, point.max_decode_len, batch_size)
    return sizes(point, batch_size, point.atoms, batch_size * point.atoms)


@variant("paged_mqa_schedule", sizes={"batch_size": (WARP_TILE.value, SMALL_TILE, LARGE_TILE)})  # full tiles
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch; every program scans the lengths and counts the requests before its rows. Three shapes are
    compiled.
    """
    lens, runs = request_lens(x), with_indices(point)
    batch_size = len(lens)
    warps = 1 if batch_size <= WARP_TILE.value else 4
    programs, shape = warp_tiling(point.num_sms) if warps == 1 else tiling(batch_size, point.num_sms)
    arguments = lens, x.indices if runs else lens, lens.stride(0), out.schedule, single_sizes(point, x)
    return fixed_launch(paged_mqa_schedule_kernel, (programs,), *arguments, TILE=shape, RUNS=runs, num_warps=warps)
