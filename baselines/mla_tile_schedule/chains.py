"""mla_tile_schedule in Python on the host, and in PyTorch operators on the device.

The device chain is a prefix sum of costs, the walk over the parts in log2(P) rounds, and the fields of the rows. It
uses the equivalent form at the end of operator.py's docstring: with pre[i] = the cost of all requests before i and
w = ceil(pre[B] / P), the part after one that starts at x starts at x + w, or at the last pre[j] in
[x + w, x + w + overhead] if there is one.

There is no compiled_chain: the rounds follow from P, so torch.compile makes a graph for every power of two of P and for
every layout, seconds of compilation each. And it would gain little, because searchsorted, gather, scatter and cumsum,
most of the chain, do not fuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch

from spec_decode_bench.baselines.mla_tile_schedule.operator import BLOCK_N, Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Point, variant

# --- on the host ------------------------------------------------------------------------------------------------------


def _greedy_schedule(
    lengths: list[int], parts: int, overhead: int, new: bool
) -> tuple[list[tuple[int, ...]], list[int]]:
    """P rows of 8 fields and B + 1 split counts. A state is (request, block, split) where a part begins."""
    shortest = 1 if new else 0
    blocks = [-(-(length or shortest) // BLOCK_N) for length in lengths]
    share = cdiv(sum(blocks) + overhead * len(blocks), parts)
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
    """The row of the part that begins at the state ``begin``; the next part begins at ``end``."""
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


@variant("mla_tile_schedule", waives=("no_sync", "graph_safe", "no_alloc"))
def host_loop(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Lengths to the CPU, the greedy loop in Python, two fresh tensors, two copies into the persistent buffers."""
    persistent = out.views(point)

    def launch():
        rows, counts = _greedy_schedule(x.seq_lens.tolist(), point.num_sm_parts, point.overhead, point.layout == "new")
        persistent["tile_scheduler_metadata"].copy_(torch.tensor(rows, dtype=torch.int32))
        persistent["num_splits"].copy_(torch.tensor(counts, dtype=torch.int32))

    return launch


# --- on the device ----------------------------------------------------------------------------------------------------


def _starts(
    ends: torch.Tensor, prefix: torch.Tensor, index: torch.Tensor, drift: torch.Tensor, overhead: int
) -> torch.Tensor:
    """Where each part starts, x = pre[i] + c, int64 [P]. The walk is serial; this is its exact form in log2(P) rounds.

    Part p starts at p * w + D, where the drift D is the sum of the snaps, at most overhead per part. The step from part
    to part is tabulated for every drift, and the table is composed with itself: rounds of 1, 2, 4, ... parts.
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
    starts = index * stride + torch.nn.functional.pad(table[:, 0], (1, 0))
    return torch.minimum(starts, ends[-1:])


def _tile_schedule(
    seq_lens: torch.Tensor, index: torch.Tensor, drift: torch.Tensor, overhead: int, new: bool, shortest: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fresh int32 (P, 8) and (B + 1).

    index: 0 .. P - 1, int64. drift: 0 .. overhead * (P - 1), int64. shortest: shorter lengths count as this one.
    """
    batch_size = len(seq_lens)
    blocks = -(seq_lens.clamp(min=shortest) // -BLOCK_N)  # rounded up, without a sum that overflows near 2^31
    ends = torch.cumsum(blocks + overhead, 0)
    prefix = torch.nn.functional.pad(ends, (1, 0))
    starts = _starts(ends, prefix, index, drift, overhead)
    request = torch.searchsorted(ends, starts, right=True)
    block = starts - prefix[request]
    cut = (block > 0).long()
    counts = torch.ones_like(ends).scatter_add(0, request.clamp(max=batch_size - 1), cut)
    num_splits = torch.nn.functional.pad(torch.cumsum(counts, 0), (1, 0))
    split = (torch.cumsum(cut, 0) + request - num_splits[request]) * cut
    next_block = torch.nn.functional.pad(block[1:], (0, 1))
    last = torch.nn.functional.pad(request[1:], (0, 1), value=batch_size) - (next_block == 0).long()
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


def fresh_tiles(
    point: Point, x: Inputs, shortest: int | None = None, new: bool | None = None
) -> Callable[[], dict[str, torch.Tensor]]:
    """A closure that returns tile_scheduler_metadata and num_splits as fresh tensors, by name.

    shortest: the length that shorter ones count as (default: 1 in the new layout, 0 in the old). new: the field order
    (default: that of the point's layout).
    """
    device, overhead, is_new = x.seq_lens.device, point.overhead, point.layout == "new"
    index = torch.arange(point.num_sm_parts, device=device)
    drift = torch.arange(overhead * (point.num_sm_parts - 1) + 1, device=device)
    shortest = int(is_new) if shortest is None else shortest
    new = is_new if new is None else new

    def compute():
        metadata, num_splits = _tile_schedule(x.seq_lens, index, drift, overhead, new, shortest)
        return {"tile_scheduler_metadata": metadata, "num_splits": num_splits}

    return compute


def copied(
    persistent: Mapping[str, torch.Tensor], compute: Callable[[], Mapping[str, torch.Tensor]]
) -> Callable[[], None]:
    """A closure that copies what ``compute`` returns into the persistent tensors of the same names."""

    def launch():
        for name, tensor in compute().items():
            persistent[name].copy_(tensor)

    return launch


@variant("mla_tile_schedule", waives="no_alloc")
def fresh_copy(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Computes fresh tensors on the device and copies both, as vLLM has done since #35175, with operators instead of
    its kernel.
    """
    return copied(out.views(point), fresh_tiles(point, x))
