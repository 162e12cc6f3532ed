"""window_tables from PyTorch operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from spec_decode_bench.baselines.window_tables.operator import Inputs, Outputs, list_width
from spec_decode_bench.baselines.workloads.torch_compile import row_of
from spec_decode_bench.harness.contract import Point, variant


class Numbers(NamedTuple):
    """0, 1, 2 ... int32 for the tokens, the columns of a window and those of a list."""

    tokens: torch.Tensor
    window: torch.Tensor
    states: torch.Tensor


def slots_of(
    table: torch.Tensor, request: torch.Tensor, entry: torch.Tensor, there: torch.Tensor, block: int
) -> torch.Tensor:
    """int64; -1 where no entry is there."""
    column = torch.where(there, entry // block, 0)
    return torch.where(there, table[request, column].long() * block + entry % block, -1)


def build(x: Inputs, out: Outputs, numbers: Numbers, window_block: int, states: int) -> None:
    """states: of C128A in a block."""
    count = len(numbers.tokens)
    row, position, slots = row_of(x.query_start_loc, numbers.tokens), x.positions[:count], x.slot_mappings[:, :count]
    request = torch.where(row < len(x.seq_lens), row, 0)
    has_slot = slots >= 0
    out.requests[:count].copy_(request)
    out.is_valid_token[:count].copy_(has_slot[0])

    first = (position - (len(numbers.window) - 1)).clamp(min=0)
    lens = torch.where(has_slot[0], position + 1 - first, 0)
    entry, there = first[:, None] + numbers.window, numbers.window < lens[:, None]
    out.swa_indices[:count].copy_(slots_of(x.window_table, request[:, None], entry, there, window_block))
    out.swa_lens[:count].copy_(lens)
    out.swa_lens[count:].zero_()

    for target, table, group, ratio, block in (
        (out.c4_slots, x.c4_table, 1, 4, 32 * states),
        (out.c128_slots, x.c128_table, 2, 128, states),
    ):
        ends = ((position + 1) % ratio == 0) & has_slot[group]
        target[:count].copy_(slots_of(table, request, position // ratio, ends, block))
        target[count:].fill_(-1)

    ended = (position + 1) // 128
    there = numbers.states < ended[:, None]
    lists = slots_of(x.c128_table, request[:, None], numbers.states.expand_as(there), there, states)
    out.c128_indices[:count, : len(numbers.states)].copy_(lists)
    out.c128_lens[:count].copy_(torch.where(has_slot[2], ended, 0))


@variant("window_tables", waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """A search for the request of every token, then for each table index arithmetic, a gather, a mask and a copy."""
    sizes = (x.num_tokens, point.window_size, list_width(point))
    numbers = Numbers(*(torch.arange(n, dtype=torch.int32, device=out.requests.device) for n in sizes))
    return lambda: build(x, out, numbers, point.window_block, point.c128_block)
