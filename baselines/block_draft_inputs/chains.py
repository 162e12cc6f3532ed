"""block_draft_inputs from PyTorch operators, and compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from spec_decode_bench.baselines.block_draft_inputs.operator import Inputs, Outputs, operator, query_tokens
from spec_decode_bench.baselines.compute_slot_mappings.operator import rank_of
from spec_decode_bench.baselines.workloads.request_slots import group_block_sizes, group_tables
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled, row_of
from spec_decode_bench.harness.contract import COMPILER, Point, variant


def slots_of(
    table: torch.Tensor, row: torch.Tensor, position: torch.Tensor, block_size: int, ranks: tuple[int, int, int]
) -> torch.Tensor:
    """int64 slots of positions in these rows of a group's table; ranks: (CP, rank, interleave)."""
    size, rank, interleave = ranks
    column = position // (block_size * size)
    block = table[row, column.clamp(max=table.shape[1] - 1)].long()
    here, own = (block != 0) & (column < table.shape[1]), position % (block_size * size)
    if size > 1:
        here = here & (own // interleave % size == rank)
        own = own // (interleave * size) * interleave + own % interleave
    return torch.where(here, block * block_size + own, -1)


def fill(
    x: Inputs,
    out: Outputs,
    tables: Sequence[torch.Tensor],
    tokens: torch.Tensor,
    columns: torch.Tensor,
    numbers: torch.Tensor,
    boundaries: torch.Tensor,
    sizes: Sequence[int],
    ranks: tuple[int, int, int],
    most: int,
) -> None:
    """All int64: tokens: [A], 0 .. A - 1. columns: [Q], 0 .. Q - 1. numbers: [B, 1], 0 .. B - 1.
    boundaries: [R + 1], 0, Q .. B Q, B Q ..
    """
    rows, count, query, k = len(x.idx_mapping), len(tokens), len(columns), out.sample_pos.shape[1]
    drafted = rows * query
    starts = x.query_start_loc[: rows + 1].long()
    end = starts[1:] - x.num_rejected  # behind the last kept token
    row = row_of(starts, tokens).clamp(max=rows - 1)
    is_kept = tokens < end[row]
    context = torch.where(is_kept, x.target_positions[:count], 0)
    is_real = tokens < starts[-1]  # the host may count more
    out.context_positions[:count].copy_(torch.where(is_real, context, out.context_positions[:count]))
    last = x.target_positions[end - 1]
    ahead = last[:, None] + 1 + columns
    for g, table in enumerate(tables):
        of_context = torch.where(is_kept, slots_of(table, row, context, sizes[g], ranks), -1)
        target = out.context_slot_mappings[g, :count]
        target.copy_(torch.where(is_real, of_context, target))
        out.slot_mappings[g, :drafted].copy_(slots_of(table, numbers, ahead, sizes[g], ranks).flatten())
        out.slot_mappings[g, drafted:].fill_(-1)
    newest = torch.where(
        x.num_sampled > 0, x.last_sampled_tokens[x.idx_mapping], x.next_prefill_tokens[x.idx_mapping]
    ).int()
    out.input_ids[:drafted].copy_(torch.where(columns == 0, newest[:, None], x.mask_token_id).flatten())
    out.input_ids[drafted:].zero_()
    out.positions[:drafted].copy_(ahead.clamp(max=most - 1).flatten())
    out.positions[drafted:].zero_()
    out.is_padding[:drafted].zero_()
    out.is_padding[drafted:].fill_(True)
    out.query_start_loc.copy_(boundaries)
    out.seq_lens[:rows].copy_((last + (1 + query)).clamp(max=most))
    out.seq_lens[rows:].zero_()
    out.sample_indices[:rows].copy_(boundaries[:rows, None] + columns[query - k :])
    out.sample_indices[rows:].zero_()
    out.sample_pos[:rows].copy_(last[:, None] + 2 + columns[:k])
    out.sample_pos[rows:].zero_()
    out.sample_idx_mapping[:rows].copy_(x.idx_mapping[:, None].expand(-1, k))
    out.sample_idx_mapping[rows:].fill_(-1)
    out.temperature[x.idx_mapping] = x.temperature_device[x.idx_mapping]
    out.seeds[x.idx_mapping] = x.seeds_device[x.idx_mapping]


def set_up(point: Point, x: Inputs, out: Outputs, fill: Callable[..., None] = fill) -> Callable[[], None]:
    tables, sizes, device = group_tables(point, x.block_tables), group_block_sizes(point), out.input_ids.device
    tokens, columns = torch.arange(x.num_tokens, device=device), torch.arange(query_tokens(point), device=device)
    rows = torch.arange(point.max_num_seqs + 1, device=device).clamp(max=point.batch_size)
    numbers, boundaries = rows[: point.batch_size, None], rows * query_tokens(point)
    ranks, most = (point.cp_size, rank_of(point), point.cp_interleave), point.max_model_len
    return lambda: fill(x, out, tables, tokens, columns, numbers, boundaries, sizes, ranks, most)


def in_host_memory(point: Point) -> str | None:
    return "PyTorch cannot read pinned memory from the device" if point.memory == "uva" else None


@variant("block_draft_inputs", waives="no_alloc", skip=in_host_memory)
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Row of every token by search, positions ahead; per group two gathers with their arithmetic; a copy per buffer."""
    return set_up(point, x, out)


_STEP = {
    "batch_size": BUSY_BATCH,
    "max_num_seqs": 270,
    "next_n": 6,
    "decode_len": "ragged",
    "max_model_len": 4000,
    "max_num_batched_tokens": 2000,
}
_EXAMPLES = (
    *(_STEP | {"sample_from_anchor": sampled} for sampled in ("yes", "no")),
    _STEP | {"num_groups": 4, "group_blocks": "mixed"},
    _STEP | {"cp_size": 2, "num_groups": 2},
    {"batch_size": 1},
)


@variant("block_draft_inputs", requires=COMPILER, waives="no_alloc", skip=in_host_memory)
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the operator chain."""
    return set_up(point, x, out, compiled(fill, set_up, operator, _EXAMPLES, out.input_ids.device))
