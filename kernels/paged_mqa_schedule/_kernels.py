"""The kernels of paged_mqa_schedule with their launches, and the Triton function that also serves a flattened batch."""

from __future__ import annotations

from pathlib import Path

import triton
import triton.language as tl
from torch import Tensor

from baselines.workloads.integers import cdiv, reciprocal
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("paged_mqa_schedule.cu")
#: As in the CUDA source.
THREADS = 256
#: Lengths scanned at once; a batch of more than the larger tile goes tile by tile.
SMALL_TILE, LARGE_TILE = 256, 1024
#: Lengths times table rows per program: fewer make more programs that read all lengths, more keep each of them longer.
COMPARISONS = 2048


@triton.jit
def _segments(length):
    """ceil(length / 256), 0 for negative lengths."""
    return -(-tl.maximum(length, 0) >> 8)


@triton.jit
def _up_to(length):
    """Segments of the lengths 1 .. length together: 256 of each of 1 .. length / 256, the rest of one more. int64."""
    whole, rest = length >> 8, length & 255
    return (whole + 1).to(tl.int64) * (128 * whole.to(tl.int64) + rest)


@triton.jit
def _weight(lens, query_start_loc, row, batch_size, row_stride, TOKENS: tl.constexpr):
    """Segments of a request, 0 past the batch. TOKENS: of each token of the request, which is a query of its own."""
    inside = row < batch_size
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
    """Of a tile of requests, those that end at or before ``start``: their number in the upper half, their segments in
    the lower. before: segments of earlier tiles.
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
):
    """SLOTS rows of the table. A request is ``factor`` queries of one length, its atoms. TOKENS: of a flattened batch,
    a query per token, at most ``factor`` of a request, and no atoms. queries: where the last one ends.
    """
    atoms = 1 if TOKENS else factor
    rows = tl.arange(0, ROWS)
    first = _weight(lens, query_start_loc, rows, batch_size, row_stride, TOKENS)
    before = tl.sum(first, 0)
    total = before
    for begin in range(ROWS, batch_size, ROWS):
        total += tl.sum(_weight(lens, query_start_loc, begin + rows, batch_size, row_stride, TOKENS), 0)

    units = total * atoms
    share = ((units.to(tl.int64) * multiplier) >> shift).to(tl.int32)
    rest = units - share * num_sms
    slot = program * SLOTS + tl.arange(0, SLOTS)
    start = slot * share + tl.where(back != 0, tl.maximum(slot - num_sms + rest, 0), tl.minimum(slot, rest))

    passed = _passed(first, 0, start, atoms)
    for begin in range(ROWS, batch_size, ROWS):
        tile = _weight(lens, query_start_loc, begin + rows, batch_size, row_stride, TOKENS)
        passed += _passed(tile, before, start, atoms)
        before += tl.sum(tile, 0)

    # Where no unit is left the entries past the batch were counted too, and the segment comes out as 0.
    request = tl.minimum((passed >> 32).to(tl.int32), batch_size)
    segment = start - passed.to(tl.int32) * atoms
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
        query = tl.where(live, query, queries)
    else:
        query = request * atoms
        if atoms > 1:
            width = _weight(lens, query_start_loc, request, batch_size, row_stride, TOKENS)
            for _ in range(1, atoms):
                next_atom = (segment >= width) & live
                segment -= tl.where(next_atom, width, 0)
                query += next_atom.to(tl.int32)
    inside = slot <= num_sms
    tl.store(table + 2 * slot, query, mask=inside)
    tl.store(table + 2 * slot + 1, segment, mask=inside)


@triton.jit(do_not_specialize=["lens", "batch_size", "row_stride", "num_sms", "multiplier", "shift", "atoms", "back"])
def _schedule(
    lens,
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
):
    schedule_rows(
        tl.program_id(0),
        lens,
        lens,
        table,
        batch_size,
        row_stride,
        num_sms,
        multiplier,
        shift,
        atoms,
        batch_size * atoms,
        back,
        TOKENS=False,
        ROWS=ROWS,
        SLOTS=SLOTS,
    )


def grid_of(batch_size: int, num_sms: int) -> tuple[int, int, int]:
    """(programs, lengths scanned at once, table rows of a program). Two tile sizes are compiled."""
    tile = SMALL_TILE if batch_size <= SMALL_TILE else LARGE_TILE
    slots = COMPARISONS // tile
    return cdiv(num_sms + 1, slots), tile, slots


def triton_schedule(lens: Tensor, table: Tensor, num_sms: int, atoms: int, back: bool):
    """A closure that fills ``table``, int32 [num_sms + 1, 2], from one length per request, int32 [B] of any stride."""
    batch_size, row_stride = len(lens), lens.stride(0)
    multiplier, shift = reciprocal(num_sms)
    programs, tile, slots = grid_of(batch_size, num_sms)

    def launch():
        _schedule[(programs,)](
            lens,
            table,
            batch_size,
            row_stride,
            num_sms,
            multiplier,
            shift,
            atoms,
            int(back),
            ROWS=tile,
            SLOTS=slots,
            num_warps=4,
        )

    return launch


def cuda_schedule(lens: Tensor, table: Tensor, num_sms: int, atoms: int, back: bool):
    """The same in CUDA C++."""
    batch_size = len(lens)
    return launcher(
        SOURCE,
        "schedule_one" if batch_size <= THREADS else "schedule_many",
        cdiv(num_sms + 1, THREADS),
        THREADS,
        lens,
        table,
        batch_size,
        lens.stride(0),
        cdiv(batch_size, THREADS),
        num_sms,
        *reciprocal(num_sms),
        atoms,
        int(back),
    )
