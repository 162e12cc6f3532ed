"""Two forms of the tile schedule: the greedy loop in Python over a list, and a chain of torch operators on the device.

The chain is a prefix sum, the walk of the parts in log2(P) rounds, and the fields. With pre[i] = the cost of all
requests before i and w = ceil(pre[B] / P), part p starts at x = pre[i] + c: block c of request i. The next part starts
at x + w, or at the last pre[j] within [x + w, x + w + overhead] where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.contract import Point

#: KV tokens of a block of work, whatever the page size of the cache.
BLOCK_N = 64


def greedy_schedule(
    lengths: list[int], parts: int, overhead: int, new: bool
) -> tuple[list[tuple[int, ...]], list[int]]:
    """P rows of 8 fields and B + 1 split counts, request by request."""
    blocks = [((s if s or not new else 1) + BLOCK_N - 1) // BLOCK_N for s in lengths]
    share = (sum(blocks) + overhead * len(blocks) + parts - 1) // parts
    states, counts, (i, c, n) = [(0, 0, 0)], [0], (0, 0, 0)
    for _ in range(parts):
        budget = share + overhead
        while i < len(blocks) and budget >= blocks[i] - c + overhead:
            budget -= blocks[i] - c + overhead
            counts.append(counts[-1] + n + 1)
            i, c, n = i + 1, 0, 0
        if i < len(blocks) and budget > overhead:
            c, n = c + budget - overhead, n + 1
        states.append((i, c, n))
    return [_fields(begin, end, lengths, blocks, new) for begin, end in pairwise(states)], counts


def _fields(begin: tuple, end: tuple, lengths: list[int], blocks: list[int], new: bool) -> tuple[int, ...]:
    (i, c, n), (j, d, _) = begin, end
    finished = d == 0
    j -= finished
    if not new:
        return i, c * BLOCK_N, j, lengths[j] if finished else d * BLOCK_N, n, 0, 0, 0
    until = d if d or not lengths[j] else blocks[j]
    cut_first, cut_last = c != 0, not finished
    if i == j:
        cut_first = cut_last = cut_first or cut_last
    return i, j, c, until, n, int(cut_first), int(cut_last), 0


def _starts(ends: Tensor, prefix: Tensor, index: Tensor, drift: Tensor, overhead: int) -> Tensor:
    """Where each part starts, x = pre[i] + c, int64 [P]. The walk is serial; this is its exact form in log2(P) rounds.

    Part p starts at p * w + D, where the drift D adds up the snaps and is at most overhead per part. The step from part
    to part is tabulated for every drift, and the table composed with itself: rounds of 1, 2, 4, ... parts.
    """
    parts = len(index)
    stride = (ends[-1:] + (parts - 1)) // parts
    unsnapped = index[1:, None] * stride + drift
    boundary = prefix[torch.searchsorted(ends, unsnapped + overhead, right=True)]
    table = (torch.maximum(unsnapped, boundary) - index[1:, None] * stride).clamp(max=drift.numel() - 1)
    reach = 1
    while reach < parts - 1:
        table = torch.cat([table[:reach], table[reach:].gather(1, table[:-reach])])
        reach *= 2
    starts = index * stride + pad(table[:, 0], (1, 0))
    return torch.minimum(starts, ends[-1:])


def tile_schedule(
    seq_lens: Tensor, index: Tensor, drift: Tensor, overhead: int, new: bool, shortest: int
) -> tuple[Tensor, Tensor]:
    """Fresh int32 (P, 8) and (B + 1). index = 0 .. P - 1, drift = 0 .. overhead * (P - 1), both int64. ``shortest``:
    the length that shorter ones are counted as.
    """
    batch_size = len(seq_lens)
    blocks = -(seq_lens.clamp(min=shortest) // -BLOCK_N)  # rounded up, without a sum that overflows near 2^31
    ends = torch.cumsum(blocks + overhead, 0)
    prefix = pad(ends, (1, 0))
    starts = _starts(ends, prefix, index, drift, overhead)
    request = torch.searchsorted(ends, starts, right=True)
    block = starts - prefix[request]
    cut = (block > 0).long()
    counts = torch.ones_like(ends).scatter_add(0, request.clamp(max=batch_size - 1), cut)
    num_splits = pad(torch.cumsum(counts, 0), (1, 0))
    split = (torch.cumsum(cut, 0) + request - num_splits[request]) * cut
    next_block = pad(block[1:], (0, 1))
    last = pad(request[1:], (0, 1), value=batch_size) - (next_block == 0).long()
    length, last_blocks = seq_lens[last], blocks[last]
    zero = torch.zeros_like(request)
    if new:
        end_block = torch.where(next_block > 0, next_block, last_blocks * (length > 0))
        cut_last = (next_block > 0).long()
        either = (request == last) * (cut | cut_last)
        row = [request, last, block, end_block, split, cut | either, cut_last | either, zero]
    else:
        end_token = torch.where(next_block > 0, next_block * BLOCK_N, length)
        row = [request, block * BLOCK_N, last, end_token, split, zero, zero, zero]
    return torch.stack(row, 1).to(torch.int32), num_splits.to(torch.int32)


def fresh_tiles(point: Point, seq_lens: Tensor, shortest: int | None = None, new: bool | None = None):
    """A closure that returns tile_scheduler_metadata and num_splits as fresh tensors, by name.

    shortest, new: blocks of a zero length and order of the fields, where they are not to be those of the point's
    layout.
    """
    device, is_new = seq_lens.device, point.layout == "new"
    index = torch.arange(point.num_sm_parts, device=device)
    drift = torch.arange(point.overhead * (point.num_sm_parts - 1) + 1, device=device)
    shortest = int(is_new) if shortest is None else shortest
    new = is_new if new is None else new

    def compute():
        metadata, num_splits = tile_schedule(seq_lens, index, drift, point.overhead, new, shortest)
        return {"tile_scheduler_metadata": metadata, "num_splits": num_splits}

    return compute


def tile_views(point: Point, out: Any) -> dict[str, Tensor]:
    """What FlashMLA is handed of a step's buffers: a row for each part, split counts of B requests."""
    return {
        "tile_scheduler_metadata": out.tile_scheduler_metadata[: point.num_sm_parts],
        "num_splits": out.num_splits[: point.batch_size + 1],
    }


def copied(persistent: Mapping[str, Tensor], compute):
    """A closure that copies what ``compute`` returns into the persistent views."""

    def launch():
        for name, tensor in compute().items():
            persistent[name].copy_(tensor)

    return launch
