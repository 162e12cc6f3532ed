"""paged_mqa_schedule, fused: one launch, straight into the persistent table, nothing compiled per batch size.

    triton_fused   a few rows of the table per program: every program scans all lengths and counts those before its rows
    cuda_fused     one block: a scan, one barrier, a binary search per row

Triton cannot index shared memory, and a search by tl.gather costs a barrier per step; counting costs one reduction. For
that the lengths are read once per program, from L2. In CUDA C++ a step of the search is one shared-memory load.
"""

from __future__ import annotations

from pathlib import Path

import triton
import triton.language as tl
from torch import Tensor

from harness.contract import GPU, variant
from harness.cuda import launcher

SOURCE = Path(__file__).parent / "cuda" / "paged_mqa_schedule.cu"
#: As in the CUDA source.
THREADS = 256
#: Lengths scanned at once; a batch of more than the larger tile goes tile by tile.
SMALL_TILE, LARGE_TILE = 256, 1024
#: Lengths times table rows per program: fewer make more programs that read all lengths, more keep each of them longer.
COMPARISONS = 2048


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _reciprocal(divisor: int) -> tuple[int, int]:
    """(multiplier, shift) with n // divisor = n * multiplier >> shift for 0 <= n < 2^30; the multiplier is below 2^31."""
    shift = 30 + (divisor - 1).bit_length()
    return (1 << shift) // divisor + 1, shift


def _lens(x) -> tuple[Tensor, int]:
    """The lengths of the requests and the integers from one to the next: the last column of a matrix, without a copy."""
    lens = x.context_lens if x.context_lens.dim() == 1 else x.context_lens[:, -1]
    return lens, x.context_lens.stride(0)


@triton.jit
def _segments(lens, row, batch_size, row_stride):
    """ceil(length / 256), 0 for negative lengths and past the batch."""
    return -(-tl.maximum(tl.load(lens + row * row_stride, mask=row < batch_size, other=0), 0) >> 8)


@triton.jit
def _passed(segments, before, start, atoms):
    """Of a tile of requests, those that end at or before ``start``: their number in the upper half, their segments in the
    lower. before: segments of earlier tiles."""
    ended = (before + tl.cumsum(segments, 0))[None, :] * atoms <= start[:, None]
    return tl.sum(tl.where(ended, segments.to(tl.int64)[None, :] + (1 << 32), 0), 1)


@triton.jit(do_not_specialize=["lens", "batch_size", "row_stride", "num_sms", "multiplier", "shift", "atoms", "back"])
def _schedule(
    lens, table, batch_size, row_stride, num_sms, multiplier, shift, atoms, back, ROWS: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    rows = tl.arange(0, ROWS)
    first = _segments(lens, rows, batch_size, row_stride)
    before = tl.sum(first, 0)
    total = before
    for begin in range(ROWS, batch_size, ROWS):
        total += tl.sum(_segments(lens, begin + rows, batch_size, row_stride), 0)

    units = total * atoms
    share = ((units.to(tl.int64) * multiplier) >> shift).to(tl.int32)
    rest = units - share * num_sms
    slot = tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
    start = slot * share + tl.where(back != 0, tl.maximum(slot - num_sms + rest, 0), tl.minimum(slot, rest))

    passed = _passed(first, 0, start, atoms)
    for begin in range(ROWS, batch_size, ROWS):
        tile = _segments(lens, begin + rows, batch_size, row_stride)
        passed += _passed(tile, before, start, atoms)
        before += tl.sum(tile, 0)

    # Where no unit is left the entries past the batch were counted too, and the segment comes out as 0.
    request = tl.minimum((passed >> 32).to(tl.int32), batch_size)
    segment = start - passed.to(tl.int32) * atoms
    query = request * atoms
    if atoms > 1:
        width = _segments(lens, request, batch_size, row_stride)
        for _ in range(1, atoms):
            next_atom = (segment >= width) & (request < batch_size)
            segment -= tl.where(next_atom, width, 0)
            query += next_atom.to(tl.int32)
    inside = slot <= num_sms
    tl.store(table + 2 * slot, query, mask=inside)
    tl.store(table + 2 * slot + 1, segment, mask=inside)


@variant("paged_mqa_schedule")
def triton_fused(point, x, out):
    """One launch; every program scans the lengths and counts the requests before its rows. Two tile sizes are compiled."""
    lens, row_stride = _lens(x)
    multiplier, shift = _reciprocal(point.num_sms)
    tile = SMALL_TILE if point.batch_size <= SMALL_TILE else LARGE_TILE
    slots, back = COMPARISONS // tile, int(point.remainder == "back")
    grid = (_cdiv(point.num_sms + 1, slots),)

    def launch():
        _schedule[grid](
            lens, out.schedule, point.batch_size, row_stride, point.num_sms, multiplier, shift, point.atoms, back,
            ROWS=tile, SLOTS=slots, num_warps=4,
        )  # fmt: skip

    return launch


@variant("paged_mqa_schedule", requires=GPU, sources=SOURCE)
def cuda_fused(point, x, out):
    """One launch, one block on any GPU of today: a scan, one barrier and a binary search per row; any batch in 1 KB of shared
    memory."""
    lens, row_stride = _lens(x)
    kernel = "schedule_one" if point.batch_size <= THREADS else "schedule_many"
    return launcher(
        SOURCE, kernel, _cdiv(point.num_sms + 1, THREADS), THREADS,
        lens, out.schedule, point.batch_size, row_stride, _cdiv(point.batch_size, THREADS),
        point.num_sms, *_reciprocal(point.num_sms), point.atoms, int(point.remainder == "back"),
    )  # fmt: skip
