"""The tile schedule as a scalar loop, with what its buffers may hold besides."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from baselines.mla_tile_schedule._forms import BLOCK_N
from baselines.workloads.integers import cdiv
from harness.contract import Expected, Point


def scheduled(point: Point, seq_lens: Tensor) -> Mapping[str, Expected]:
    """Both buffers by the serial greedy loop, as the kernel's single thread runs it."""
    lengths, overhead, new = seq_lens.tolist(), point.overhead, point.layout == "new"
    blocks = [cdiv(max(s, 1) if new else s, BLOCK_N) for s in lengths]
    payload = cdiv(sum(blocks) + len(blocks) * overhead, point.num_sm_parts) + overhead
    rows = torch.zeros(point.num_sms, 8, dtype=torch.int32)
    unread = torch.zeros(point.num_sms, 8, dtype=torch.bool)
    unread[:, 7 if new else 5 :] = True
    splits, request, block, split = [0], 0, 0, 0
    for part in range(point.num_sm_parts):
        begin, begin_block, begin_split, left = request, block, split, payload
        while request < len(lengths):
            needed = blocks[request] - block + overhead
            if left < needed:
                if left > overhead:
                    block, split = block + left - overhead, split + 1
                break
            splits.append(splits[-1] + split + 1)
            request, block, split, left = request + 1, 0, 0, left - needed
        last = request if block else request - 1
        if new:
            end_block = block or (blocks[last] if lengths[last] else 0)
            first_split, last_split = begin_block > 0, lengths[last] > 0 and end_block != blocks[last]
            if begin == last:
                first_split = last_split = first_split or last_split
            row = [begin, last, begin_block, end_block, begin_split, first_split, last_split, 0]
        else:
            row = [begin, begin_block * BLOCK_N, last, block * BLOCK_N or lengths[last], begin_split, 0, 0, 0]
        rows[part] = torch.tensor(row, dtype=torch.int32)
        unread[part, 1:] |= begin == len(lengths)
    assert (request, block, split) == (len(lengths), 0, 0)
    capacity = point.max_num_seqs + 1
    return {
        "tile_scheduler_metadata": Expected(
            rows,
            slack=unread,
            untouched=(torch.arange(point.num_sms) >= point.num_sm_parts)[:, None].expand(rows.shape),
        ),
        "num_splits": Expected(
            torch.tensor(splits + [0] * (capacity - len(splits)), dtype=torch.int32),
            untouched=torch.arange(capacity) >= len(splits),
        ),
    }
