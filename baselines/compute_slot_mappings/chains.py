"""compute_slot_mappings from PyTorch operators, and compiled."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.compute_slot_mappings.operator import Inputs, Outputs, operator, rank_of
from spec_decode_bench.baselines.workloads.request_slots import group_block_sizes, group_tables
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled, row_of
from spec_decode_bench.harness.contract import COMPILER, Point, variant


def slot_of_tokens(x: Inputs, tokens: torch.Tensor) -> torch.Tensor:
    """[A] int64: request slot of every token, -1 where it has none."""
    rows = row_of(x.query_start_loc[: len(x.idx_mapping) + 1], tokens)
    last = len(x.idx_mapping) - 1
    return torch.where(rows <= last, x.idx_mapping[rows.clamp(max=last)], -1)


def fill_group(
    target: torch.Tensor,
    g: int,
    x: Inputs,
    table: torch.Tensor,
    owner: torch.Tensor,
    block_size: int,
    ranks: tuple[int, int, int],
) -> None:
    """One group: where a token has no slot, row and column 0 are gathered and discarded.

    ranks: (CP, rank, interleave). target: [max_num_batched_tokens].
    """
    tokens, (size, rank, interleave) = len(owner), ranks
    position, mine = x.positions[:tokens], (owner >= 0) & x.enabled[g]
    if size > 1:
        local = position // (interleave * size) * interleave + position % interleave
        mine = mine & (~x.sharded[g] | (position // interleave % size == rank))
        position = torch.where(x.sharded[g], local, position)
    column = position // block_size
    mine = mine & (column < table.shape[1])
    column = torch.where(mine, column, 0)
    slots = table[owner.clamp(min=0), column].long() * block_size + position % block_size
    target[:tokens].copy_(torch.where(mine, slots, -1))
    target[tokens:].fill_(-1)


def fill(
    out: torch.Tensor,
    x: Inputs,
    tables: list[torch.Tensor],
    tokens: torch.Tensor,
    sizes: list[int],
    ranks: tuple[int, int, int],
) -> None:
    owner = slot_of_tokens(x, tokens)
    for g, table in enumerate(tables):
        fill_group(out[g], g, x, table, owner, sizes[g], ranks)


def set_up(point: Point, x: Inputs, out: Outputs, fill: Callable[..., None] = fill) -> Callable[[], None]:
    tables, sizes = group_tables(point, x.tables), group_block_sizes(point)
    tokens = torch.arange(x.num_tokens, dtype=torch.int32, device=out.slot_mappings.device)
    ranks = (point.cp_size, rank_of(point), point.cp_interleave)
    return lambda: fill(out.slot_mappings, x, tables, tokens, sizes, ranks)


@variant("compute_slot_mappings", waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Owner of every token (a search, a gather), then per group: column, gather, multiply, add, masked copy, tail."""
    return set_up(point, x, out)


#: One group and several, with and without context parallelism, which Inductor compiles separately.
_STEP = {"batch_size": BUSY_BATCH, "max_model_len": 4000, "decode_len": "ragged", "max_num_batched_tokens": 2000}
_EXAMPLES = (
    _STEP,
    _STEP | {"cp_size": 2, "num_groups": 2},
    _STEP | {"num_groups": 4, "group_blocks": "mixed"},
    {"batch_size": 1},
)


@variant("compute_slot_mappings", requires=COMPILER, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the operator chain."""
    return set_up(point, x, out, compiled(fill, set_up, operator, _EXAMPLES, out.slot_mappings.device))
