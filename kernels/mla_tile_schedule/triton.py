"""mla_tile_schedule in Triton: one launch into both persistent buffers. Upstream: a serial kernel and two copies.

    triton_fused     one program; a table of two levels finds where the parts start
    cuda_fused       one block (cuda.py); a binary search per part

Greedy over requests is a serial chain of B + P steps, and one search per part is still a chain of P. Here the starts
are an arithmetic progression in units of cost, which a part leaves only where it is stretched by up to ``overhead`` to
end on a request: a part that would have to pay the overhead again would get nothing for it. All parts look for that at
once, the first that is stretched shifts the later ones, and so on: as many rounds as stretched parts. About 6 in 100
parts are stretched where requests are 100 blocks long, but all P where every request is one block, or where all
requests are alike and a part falls just short of whole requests.

CUDA settles parts 32 at a time in one warp, while Triton reduces over all of them in each round. Tried in Triton on an
H200: pointer doubling over stretched parts, as slow as rounds for 16 parts and slower for 132; with four warps instead
of eight it is faster for 16 parts, and takes 255 registers and still longer for 132.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.mla_tile_schedule.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import reciprocal, tile
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch
from spec_decode_bench.kernels.dcp_lengths.triton import local_length


class Sizes(NamedTuple):
    """multiplier, shift: they divide by num_parts. is_old: layout of the rows. Triton has no need of these three."""

    batch_size: int
    num_parts: int
    overhead: int
    multiplier: int
    shift: int
    is_old: int


class Tile(NamedTuple):
    """OLD: layout of the rows. REQUESTS, PARTS: of a batch, at most. ENDS: of a row of the table of two levels. TEAM:
    lanes that share the requests of a part. RANKS, RANK, INTERLEAVE: of context parallelism, which leaves a rank a part
    of the lengths.
    """

    OLD: bool
    REQUESTS: int
    ENDS: int
    PARTS: int
    TEAM: int
    RANKS: int = 1
    RANK: int = 0
    INTERLEAVE: int = 1


def sizes(point: Point, x: Inputs) -> Sizes:
    parts = point.num_sm_parts
    return Sizes(len(x.seq_lens), parts, point.overhead, *reciprocal(parts), int(point.layout == "old"))


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _blocks(length, OLD: tl.constexpr):
    """ceil(length / 64) without a sum that overflows near 2^31."""
    return -(-tl.maximum(length, 0 if OLD else 1) >> 6)


@triton.jit
def _length(seq_lens, request, mask, TILE: tl.constexpr):
    length = tl.load(seq_lens + request, mask=mask, other=0)
    if TILE.RANKS > 1:
        length = local_length(length, TILE.RANKS, TILE.RANK, TILE.INTERLEAVE)
    return length


@triton.jit
def _first_snap(p, start, slack, end, next_end):
    """128 * part + distance of the first part that snaps; -1 if a part has ends to pass first; 2^31 - 1 if all are
    settled.
    """
    snap = tl.where(end > start, p * 128 + end - start, 0x7FFFFFFF)
    return tl.min(tl.where(next_end <= start + slack, -1, snap), 0)


@triton.jit
def tile_schedule(seq_lens, out, n, TILE: tl.constexpr):
    OLD: tl.constexpr = TILE.OLD
    REQUESTS: tl.constexpr = TILE.REQUESTS
    ENDS: tl.constexpr = TILE.ENDS
    PARTS: tl.constexpr = TILE.PARTS
    TEAM: tl.constexpr = TILE.TEAM
    batch_size, num_parts, overhead = n.batch_size, n.num_parts, n.overhead
    num_splits = out.num_splits
    request = tl.arange(0, REQUESTS)
    real = request < batch_size
    length = _length(seq_lens, request, real, TILE)
    ends = tl.cumsum(tl.where(real, _blocks(length, OLD) + overhead, 0), 0)
    stride = (tl.max(ends, 0) + num_parts - 1) // num_parts
    ends = tl.where(real, ends, 0x7FFFFFFF)

    # Starts if nothing snaps, and how many ends are within reach of each: find the row of ENDS ends, then the place in
    # the row. Part 0 never snaps.
    p = tl.arange(0, PARTS)
    start = tl.minimum(p, num_parts) * stride
    slack = tl.where(p > 0, overhead, 0)
    reach = start + slack
    rows: tl.constexpr = REQUESTS // ENDS
    row_end = tl.max(tl.reshape(ends, (rows, ENDS)), 1)
    row = tl.minimum(tl.sum((row_end[None, :] <= reach[:, None]).to(tl.int32), 1), rows - 1)
    entries = tl.reshape(row[:, None] * ENDS + tl.arange(0, ENDS)[None, :], (PARTS * ENDS,))
    row_ends = tl.reshape(tl.gather(ends, entries, 0), (PARTS, ENDS))
    reached = row * ENDS + tl.sum((row_ends <= reach[:, None]).to(tl.int32), 1)
    end = tl.where(reached > 0, tl.gather(ends, tl.maximum(reached - 1, 0), 0), 0)
    next_end = tl.where(reached < REQUESTS, tl.gather(ends, tl.minimum(reached, REQUESTS - 1), 0), 0x7FFFFFFF)

    # All parts look for a snap at once. The first that snaps is right, because nothing before it did; it moves itself
    # and all later ones. -1: a part that was moved has ends to pass first.
    nearest = _first_snap(p, start, slack, end, next_end)
    while nearest != 0x7FFFFFFF:
        if nearest < 0:
            behind = next_end <= start + slack
            end = tl.where(behind, next_end, end)
            reached += behind.to(tl.int32)
            next_end = tl.where(reached < REQUESTS, tl.gather(ends, tl.minimum(reached, REQUESTS - 1), 0), 0x7FFFFFFF)
        else:
            start += tl.where(p >= nearest // 128, nearest % 128, 0)
            # Settled: a request without blocks may put another end within reach.
            slack = tl.where(p <= nearest // 128, 0, slack)
        nearest = _first_snap(p, start, slack, end, next_end)

    block = tl.where(reached < batch_size, start - end, 0)
    inside = (block > 0).to(tl.int32)
    starts_inside = tl.cumsum(inside, 0)
    head = (p == 0) | (reached != tl.gather(reached, tl.maximum(p - 1, 0), 0))
    origin = tl.associative_scan(tl.where(head, p - inside, -1), 0, _larger)
    split = (p - origin) * inside

    following = tl.minimum(p + 1, PARTS - 1)
    working = p + 1 < num_parts
    next_request = tl.where(working, tl.gather(reached, following, 0), batch_size)
    next_block = tl.where(working, tl.gather(block, following, 0), 0)
    cut_last = (next_block > 0).to(tl.int32)
    last = next_request - 1 + cut_last
    row, written = out.tile_scheduler_metadata + p * 8, p < num_parts
    last_length = _length(seq_lens, last, written, TILE)
    tl.store(row, reached, mask=written)
    tl.store(row + 4, split, mask=written)
    if OLD:
        tl.store(row + 1, block * 64, mask=written)
        tl.store(row + 2, last, mask=written)
        tl.store(row + 3, tl.where(cut_last > 0, next_block * 64, last_length), mask=written)
    else:
        either = tl.where(reached == last, inside | cut_last, 0)
        whole = tl.where(last_length > 0, _blocks(last_length, OLD), 0)
        tl.store(row + 1, last, mask=written)
        tl.store(row + 2, block, mask=written)
        tl.store(row + 3, tl.where(cut_last > 0, next_block, whole), mask=written)
        tl.store(row + 5, inside | either, mask=written)
        tl.store(row + 6, cut_last | either, mask=written)

    # Part p finishes the requests reached .. next_request - 1; TEAM lanes share them.
    member = tl.arange(0, TEAM)
    tl.store(num_splits, 0)
    for skipped in range(0, tl.max(next_request - reached, 0), TEAM):
        finished = reached[:, None] + skipped + member[None, :] + 1
        tl.store(num_splits + finished, finished + starts_inside[:, None], mask=finished <= next_request[:, None])


@triton.jit
def mla_tile_schedule_kernel(n, x, out, TILE: tl.constexpr):
    tile_schedule(x.seq_lens, out, n, TILE)


def tiling(batch_size: int, num_parts: int, layout: str) -> Tile:
    """For up to 128, 1024 or 4096 requests and up to 32, 256 or 512 parts."""
    requests, parts = tile(batch_size, (128, 1024, 4096)), tile(num_parts, (32, 256, 512))
    ends = 64 if requests > 1024 else 32
    return Tile(OLD=layout == "old", REQUESTS=requests, ENDS=ends, PARTS=parts, TEAM=512 // parts)


@variant("mla_tile_schedule", sizes={"batch_size": (128, 1024)})  # full tiles
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One program; compiled for batches up to 128, 1024 and 4096 requests, and up to 32, 256 and 512 parts."""
    batch_size, arguments = len(x.seq_lens), (sizes(point, x), bundle(x), bundle(out))
    shape = tiling(batch_size, point.num_sm_parts, point.layout)
    return fixed_launch(mla_tile_schedule_kernel, (1,), *arguments, TILE=shape, num_warps=8)
