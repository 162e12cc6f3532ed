"""mla_tile_schedule, fused: one launch that writes both persistent buffers, where upstream has a serial kernel and two copies.

    triton_fused     one program, the search for the starts in two levels of a table
    cuda_fused       one block, a binary search per start

Greedy over requests is a serial chain of B + P steps, and a search per part is still one of P. Here the starts are taken as an
arithmetic progression in units of cost, which steps out of line only where a part is stretched by up to ``overhead`` to end on
a request: a part that must pay the overhead again would get nothing for it. All parts look for that at once, the first that is
stretched shifts the later ones, and so on: as many rounds as stretched parts. Those are about 6 in 100 where requests are 100
blocks long, but all P where every request is one block, or where all are alike and a part falls just short of whole requests.
"""

from __future__ import annotations

from pathlib import Path

import triton
import triton.language as tl

from harness.contract import GPU, variant
from harness.cuda import launcher

SOURCE = Path(__file__).parent / "cuda" / "mla_tile_schedule.cu"
THREADS = 256


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _blocks(length, OLD: tl.constexpr):
    return (tl.maximum(length, 0 if OLD else 1) + 63) // 64


@triton.jit
def _first_snap(p, start, slack, end, next_end):
    """128 * part + distance of the first part that snaps, -1 where a part has ends to pass, 2^31 - 1 where all are settled."""
    snap = tl.where(end > start, p * 128 + end - start, 0x7FFFFFFF)
    return tl.min(tl.where(next_end <= start + slack, -1, snap), 0)


@triton.jit(do_not_specialize=["batch_size", "num_parts", "overhead"])
def _tile_schedule(
    seq_lens, metadata, num_splits, batch_size, num_parts, overhead,
    OLD: tl.constexpr, REQUESTS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, TEAM: tl.constexpr,
):  # fmt: skip
    request = tl.arange(0, REQUESTS)
    real = request < batch_size
    length = tl.load(seq_lens + request, mask=real, other=0)
    ends = tl.cumsum(tl.where(real, _blocks(length, OLD) + overhead, 0), 0)
    stride = (tl.max(ends, 0) + num_parts - 1) // num_parts
    ends = tl.where(real, ends, 0x7FFFFFFF)

    # Starts without a snap, and how many ends lie within the reach of each. Part 0 never snaps.
    p = tl.arange(0, PARTS)
    start = tl.minimum(p, num_parts) * stride
    slack = tl.where(p > 0, overhead, 0)
    reach = start + slack
    rows: tl.constexpr = REQUESTS // COLUMNS
    row_end = tl.max(tl.reshape(ends, (rows, COLUMNS)), 1)
    row = tl.minimum(tl.sum((row_end[None, :] <= reach[:, None]).to(tl.int32), 1), rows - 1)
    entries = tl.reshape(row[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :], (PARTS * COLUMNS,))
    row_ends = tl.reshape(tl.gather(ends, entries, 0), (PARTS, COLUMNS))
    reached = row * COLUMNS + tl.sum((row_ends <= reach[:, None]).to(tl.int32), 1)
    end = tl.where(reached > 0, tl.gather(ends, tl.maximum(reached - 1, 0), 0), 0)
    next_end = tl.where(reached < REQUESTS, tl.gather(ends, tl.minimum(reached, REQUESTS - 1), 0), 0x7FFFFFFF)

    # All parts look for a snap at once; the first that snaps is right and moves itself and all later ones. -1: a part that was
    # moved has ends to pass first.
    found = _first_snap(p, start, slack, end, next_end)
    while found != 0x7FFFFFFF:
        if found < 0:
            behind = next_end <= start + slack
            end = tl.where(behind, next_end, end)
            reached += behind.to(tl.int32)
            next_end = tl.where(reached < REQUESTS, tl.gather(ends, tl.minimum(reached, REQUESTS - 1), 0), 0x7FFFFFFF)
        else:
            start += tl.where(p >= found // 128, found % 128, 0)
            slack = tl.where(p <= found // 128, 0, slack)  # settled: a request of no block may put another end within reach
        found = _first_snap(p, start, slack, end, next_end)

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
    row, written = metadata + p * 8, p < num_parts
    last_length = tl.load(seq_lens + last, mask=written, other=0)
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

    # Part p finishes the requests reached .. next_request - 1.
    member = tl.arange(0, TEAM)
    tl.store(num_splits, 0)
    for skipped in range(0, tl.max(next_request - reached, 0), TEAM):
        finished = reached[:, None] + skipped + member[None, :] + 1
        tl.store(num_splits + finished, finished + starts_inside[:, None], mask=finished <= next_request[:, None])


def _tile(size: int, tiles: tuple[int, ...]) -> int:
    return next(tile for tile in tiles if size <= tile)


@variant("mla_tile_schedule")
def triton_fused(point, x, out):
    """One program; compiled for batches up to 128, 1024 and 4096 requests, and up to 32, 256 and 512 parts."""
    requests, parts = _tile(point.batch_size, (128, 1024, 4096)), _tile(point.num_sm_parts, (32, 256, 512))

    def launch():
        _tile_schedule[(1,)](
            x.seq_lens, out.tile_scheduler_metadata, out.num_splits, point.batch_size, point.num_sm_parts, point.overhead,
            OLD=point.layout == "old", REQUESTS=requests, COLUMNS=64 if requests > 1024 else 32, PARTS=parts, TEAM=512 // parts,
            num_warps=8,
        )  # fmt: skip

    return launch


def _division(divisor: int) -> tuple[int, int]:
    """(multiplier, shift): n // divisor == n * multiplier >> shift for 0 <= n < 2^30; the multiplier is below 2^31."""
    shift = 30 + (divisor - 1).bit_length()
    return -(-(1 << shift) // divisor), shift


@variant("mla_tile_schedule", requires=GPU, sources=SOURCE)
def cuda_fused(point, x, out):
    """The same in CUDA C++, one block of 256 threads."""
    return launcher(
        SOURCE, "tile_schedule", 1, THREADS,
        x.seq_lens, out.tile_scheduler_metadata, out.num_splits,
        point.batch_size, point.num_sm_parts, point.overhead, *_division(point.num_sm_parts), int(point.layout == "old"),
    )  # fmt: skip
