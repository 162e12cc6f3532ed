"""The kernels of mla_tile_schedule with their launches."""

from __future__ import annotations

from pathlib import Path

import triton
import triton.language as tl
from torch import Tensor

from baselines.workloads.integers import reciprocal, tile
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("mla_tile_schedule.cu")
THREADS = 256


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _blocks(length, OLD: tl.constexpr):
    """ceil(length / 64) without a sum that overflows near 2^31."""
    return -(-tl.maximum(length, 0 if OLD else 1) >> 6)


@triton.jit
def _first_snap(p, start, slack, end, next_end):
    """128 * part + distance of the first part that snaps, -1 where a part has ends to pass, 2^31 - 1 where all are
    settled.
    """
    snap = tl.where(end > start, p * 128 + end - start, 0x7FFFFFFF)
    return tl.min(tl.where(next_end <= start + slack, -1, snap), 0)


@triton.jit(do_not_specialize=["batch_size", "num_parts", "overhead"])
def tile_schedule(
    seq_lens,
    metadata,
    num_splits,
    batch_size,
    num_parts,
    overhead,
    OLD: tl.constexpr,
    REQUESTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    TEAM: tl.constexpr,
):
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

    # All parts look for a snap at once; the first that snaps is right and moves itself and all later ones. -1: a part
    # that was moved has ends to pass first.
    found = _first_snap(p, start, slack, end, next_end)
    while found != 0x7FFFFFFF:
        if found < 0:
            behind = next_end <= start + slack
            end = tl.where(behind, next_end, end)
            reached += behind.to(tl.int32)
            next_end = tl.where(reached < REQUESTS, tl.gather(ends, tl.minimum(reached, REQUESTS - 1), 0), 0x7FFFFFFF)
        else:
            start += tl.where(p >= found // 128, found % 128, 0)
            slack = tl.where(
                p <= found // 128, 0, slack
            )  # settled: a request of no block may put another end within reach
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


def tiles_of(batch_size: int, num_parts: int, old: bool) -> dict:
    """Compile-time sizes: batches up to 128, 1024 and 4096 requests, up to 32, 256 and 512 parts."""
    requests, parts = tile(batch_size, (128, 1024, 4096)), tile(num_parts, (32, 256, 512))
    return {
        "OLD": old,
        "REQUESTS": requests,
        "COLUMNS": 64 if requests > 1024 else 32,
        "PARTS": parts,
        "TEAM": 512 // parts,
    }


def triton_tiles(seq_lens: Tensor, metadata: Tensor, num_splits: Tensor, num_parts: int, overhead: int, old: bool):
    """A closure that fills the first P rows of ``metadata``, int32 [>= P, 8], and B + 1 entries of ``num_splits``."""
    batch_size = len(seq_lens)
    tiles = tiles_of(batch_size, num_parts, old)

    def launch():
        tile_schedule[(1,)](seq_lens, metadata, num_splits, batch_size, num_parts, overhead, **tiles, num_warps=8)

    return launch


def cuda_tiles(seq_lens: Tensor, metadata: Tensor, num_splits: Tensor, num_parts: int, overhead: int, old: bool):
    """The same in CUDA C++."""
    return launcher(
        SOURCE,
        "tile_schedule",
        1,
        THREADS,
        seq_lens,
        metadata,
        num_splits,
        len(seq_lens),
        num_parts,
        overhead,
        *reciprocal(num_parts),
        int(old),
    )
