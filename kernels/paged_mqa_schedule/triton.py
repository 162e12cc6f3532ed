"""paged_mqa_schedule in Triton: one launch, straight into the persistent table, not recompiled per batch size.

    triton_fused   a few rows of the table per program: every program scans all lengths and counts the requests that end
                   before each of its rows. Up to 128 requests, a program is one warp and has no barrier
    cuda_fused     one block for 256 rows (cuda.py): a scan, one barrier, a binary search per row

Triton cannot index shared memory, and a search by tl.gather costs a barrier per step, while counting costs one
reduction. The price is that every program reads the lengths, from L2. In CUDA C++ a step of the search is one
shared-memory load.

Shapes, us on an H200 at B = 128 (lengths 4096 to 8192); with fewer warps, reductions of 32 bits instead of 64:

    four warps, 8 rows     2.25; 2.21 with 32 bits, which at B = 1024 takes longer (2.31 against 2.25)
    two warps, 4 rows      1.90
    one warp               1.76 with 8 rows, 1.64 with 4, 1.62 with 2
    cuda_fused             1.49

``schedule_rows`` also serves decode_step, over a batch of flattened tokens, without visiting them one by one. Runs of
tokens (``indices``) are scanned by token: each has the segments of its run, whose end it finds by comparing ids with at
most L - 1 neighbours, all loaded at once. So nobody counts the runs, which DeepGEMM does in a single thread.
"""

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl

from baselines.paged_mqa_schedule.operator import Inputs, Outputs, request_lens, with_indices
from baselines.workloads.integers import cdiv, reciprocal
from harness.contract import Point, variant
from harness.launch import fixed_launch

#: Lengths scanned at once. Batches larger than the larger tile take several turns.
SMALL_TILE, LARGE_TILE = 256, 1024
#: Lengths times table rows per program. Fewer: more programs that read all lengths. More: each of them takes longer.
COMPARISONS = 2048
#: Largest batch that a program of one warp scans at once, and the table rows of such a program.
WARP_TILE = tl.constexpr(128)
WARP_SLOTS = 2


@triton.jit
def _segments(length):
    """ceil(length / 256), 0 for negative lengths."""
    return -(-tl.maximum(length, 0) >> 8)


@triton.jit
def _up_to(length):
    """Segments of the lengths 1 .. length together, int64: 256 lengths have k segments, for each k up to length / 256;
    the rest have one more.
    """
    whole, rest = length >> 8, length & 255
    return (whole + 1).to(tl.int64) * (128 * whole.to(tl.int64) + rest)


@triton.jit
def _in_run(ids, token, tokens, longest, DIRECTION: tl.constexpr):
    """Tokens of the same id behind (DIRECTION 1) or before (-1) a token."""
    own, count = tl.load(ids + token, mask=token < tokens, other=-1), tl.zeros_like(token)
    for distance in range(1, longest):
        other = token + DIRECTION * distance
        count += (tl.load(ids + other, mask=(other >= 0) & (other < tokens), other=-2) == own).to(tl.int32)
    return count


@triton.jit
def _weight(lens, query_start_loc, row, batch_size, row_stride, longest, TOKENS: tl.constexpr, RUNS: tl.constexpr):
    """Segments of a request, 0 past the batch. TOKENS: of all its tokens, each a separate query. RUNS: rows are tokens,
    query_start_loc their ids.
    """
    inside = row < batch_size
    if RUNS:
        row += _in_run(query_start_loc, row, batch_size, longest, 1)
    length = tl.load(lens + row * row_stride, mask=inside, other=0)
    if TOKENS:
        start = tl.load(query_start_loc + row, mask=inside, other=0)
        rows = tl.load(query_start_loc + row + 1, mask=inside, other=0) - start
        last = tl.maximum(length, 0)
        weight = (_up_to(last) - _up_to(tl.maximum(last - rows, 0))).to(tl.int32)
    else:
        weight = _segments(length)
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
    table,
    batch_size,
    row_stride,
    num_sms,
    multiplier,
    shift,
    factor,
    queries,
    back,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    RUNS: tl.constexpr = False,
):
    """SLOTS rows of the table. ROWS: lengths scanned at once; up to WARP_TILE, the batch is no larger.

    A request is ``factor`` queries of one length, its atoms. TOKENS: the batch is flattened; a request is one query per
    token, at most ``factor``, and has no atoms. RUNS: rows are tokens, query_start_loc their ids; a request is a run of
    at most ``factor`` of them. queries: number of all queries.
    """
    atoms = 1 if TOKENS or RUNS else factor
    rows = tl.arange(0, ROWS)
    first = _weight(lens, query_start_loc, rows, batch_size, row_stride, factor, TOKENS, RUNS)
    if ROWS <= WARP_TILE:  # the whole batch
        ends = tl.cumsum(first, 0)
        total = tl.max(ends, 0)
    else:
        before = tl.sum(first, 0)
        total = before
        for begin in range(ROWS, batch_size, ROWS):
            total += tl.sum(
                _weight(lens, query_start_loc, begin + rows, batch_size, row_stride, factor, TOKENS, RUNS), 0
            )

    units = total * atoms
    share = ((units.to(tl.int64) * multiplier) >> shift).to(tl.int32)
    rest = units - share * num_sms
    slot = program * SLOTS + tl.arange(0, SLOTS)
    start = slot * share + tl.where(back != 0, tl.maximum(slot - num_sms + rest, 0), tl.minimum(slot, rest))

    if ROWS <= WARP_TILE:
        ended = ends[None, :] * atoms <= start[:, None]
        count = tl.sum(ended.to(tl.int32), 1)
        segments = tl.max(tl.where(ended, ends[None, :], 0), 1)
    else:
        passed = _passed(first, 0, start, atoms)
        for begin in range(ROWS, batch_size, ROWS):
            tile = _weight(lens, query_start_loc, begin + rows, batch_size, row_stride, factor, TOKENS, RUNS)
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
        length = (
            tl.load(lens + request, mask=live, other=0)
            - tl.load(query_start_loc + request + 1, mask=live, other=0)
            + query
            + 1
        )
        for _ in range(1, factor):
            width = _segments(length)
            next_token = ((segment >= width) & live).to(tl.int32)
            segment -= width * next_token
            query += next_token
            length += next_token
    elif RUNS:
        before = _in_run(query_start_loc, request, batch_size, factor, -1)
        last = request + _in_run(query_start_loc, request, batch_size, factor, 1)
        query = request - before
        width = _segments(tl.load(lens + last * row_stride, mask=live, other=0))
        segment = tl.where(live, (segment + before * width) // (last + 1 - query), 0)
    else:
        query = request * atoms
        if atoms > 1:
            width = _weight(lens, query_start_loc, request, batch_size, row_stride, factor, TOKENS, RUNS)
            for _ in range(1, atoms):
                next_atom = (segment >= width) & live
                segment -= tl.where(next_atom, width, 0)
                query += next_atom.to(tl.int32)
    if TOKENS or RUNS:
        query = tl.where(live, query, queries)
    inside = slot <= num_sms
    tl.store(table + 2 * slot, query, mask=inside)
    tl.store(table + 2 * slot + 1, segment, mask=inside)


@triton.jit(
    do_not_specialize=["lens", "ids", "batch_size", "row_stride", "num_sms", "multiplier", "shift", "atoms", "back"]
)
def _schedule(
    lens,
    ids,
    table,
    batch_size,
    row_stride,
    num_sms,
    multiplier,
    shift,
    atoms,
    back,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    RUNS: tl.constexpr,
):
    schedule_rows(
        tl.program_id(0),
        lens,
        ids,
        table,
        batch_size,
        row_stride,
        num_sms,
        multiplier,
        shift,
        atoms,
        batch_size if RUNS else batch_size * atoms,
        back,
        TOKENS=False,
        ROWS=ROWS,
        SLOTS=SLOTS,
        RUNS=RUNS,
    )


def tiling(batch_size: int, num_sms: int) -> tuple[int, dict[str, int]]:
    """Programs of several warps, and the compile-time sizes of ``schedule_rows``."""
    rows = SMALL_TILE if batch_size <= SMALL_TILE else LARGE_TILE
    slots = COMPARISONS // rows
    return cdiv(num_sms + 1, slots), {"ROWS": rows, "SLOTS": slots}


def warp_tiling(num_sms: int) -> tuple[int, dict[str, int]]:
    """The same for programs of one warp and at most WARP_TILE requests."""
    return cdiv(num_sms + 1, WARP_SLOTS), {"ROWS": WARP_TILE.value, "SLOTS": WARP_SLOTS}


@variant("paged_mqa_schedule", sizes={"batch_size": (WARP_TILE.value, SMALL_TILE, LARGE_TILE)})  # full tiles
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch; every program scans the lengths and counts the requests before its rows. Three shapes are
    compiled.
    """
    lens, table = request_lens(x), out.schedule
    batch_size, row_stride = len(lens), lens.stride(0)
    num_sms, back, runs = point.num_sms, int(point.remainder == "back"), with_indices(point)
    multiplier, shift = reciprocal(num_sms)
    warps = 1 if batch_size <= WARP_TILE.value else 4
    programs, sizes = warp_tiling(num_sms) if warps == 1 else tiling(batch_size, num_sms)
    return fixed_launch(
        _schedule,
        (programs,),
        lens,
        x.indices if runs else lens,
        table,
        batch_size,
        row_stride,
        num_sms,
        multiplier,
        shift,
        point.max_decode_len if runs else point.atoms,
        back,
        **sizes,
        RUNS=runs,
        num_warps=warps,
    )
