"""block_draft_inputs in a decode loop by slot: the inputs of a DSpark drafter, which has attention alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_decode_bench.baselines.block_draft_inputs.operator import MASK_TOKEN_ID, Inputs, Outputs, query_tokens
from spec_decode_bench.decode_loop.engine_state import Consumed, EngineShape, EngineState, LoopBinding
from spec_decode_bench.harness.contract import Point

TABLES = (
    "query_input_ids",
    "query_positions",
    "query_slots",
    "query_seq_lens",
    "query_start_loc",
    "context_positions",
    "context_slots",
    "sample_indices",
    "sample_pos",
    "sample_idx_mapping",
)


def axes(shape: EngineShape) -> Mapping[str, Any]:
    """Rows of requests alone: the operator clears what lies behind them."""
    sizes = ("next_n", "context_len", "max_model_len", "max_num_seqs", "block_size", "max_num_batched_tokens")
    return {"batch_size": shape.num_requests, **shape.axes(*sizes)}


def inputs(point: Point, state: EngineState) -> Inputs:
    """Every request has the same temperature and seed."""
    own, rows, capacity = state.slots, state.shape.num_requests, state.shape.max_num_seqs
    return Inputs(
        target_positions=state.positions,
        query_start_loc=own.query_start_loc,
        idx_mapping=own.idx_mapping[:rows],
        num_sampled=own.num_sampled[:rows],
        num_rejected=own.num_rejected[:rows],
        last_sampled_tokens=own.last_sampled_tokens,
        next_prefill_tokens=own.next_prefill_tokens[0],
        block_tables=own.block_tables[: capacity * state.shape.block_columns],
        table_starts=own.table_starts[:1],
        widths=own.widths[:1],
        block_sizes=own.block_sizes[:1],
        temperature_device=own.last_sampled_tokens.new_ones(capacity).float(),
        seeds_device=own.last_sampled_tokens.new_zeros(capacity),
        temperature_host=None,
        seeds_host=None,
        num_tokens=state.shape.num_tokens,
        mask_token_id=MASK_TOKEN_ID,
    )


def consumed(point: Point, state: EngineState, out: Outputs) -> Mapping[str, Consumed]:
    """A graph reads rows up to the captured size, and of the context the tokens of the target's step."""
    rows, tokens = state.shape.batch_size, state.shape.num_tokens
    drafted = rows * query_tokens(point)
    found = {
        "query_input_ids": out.input_ids[:drafted],
        "query_positions": out.positions[:drafted],
        "query_slots": out.slot_mappings[0, :drafted],
        "query_seq_lens": out.seq_lens,
        "query_start_loc": out.query_start_loc,
        "context_positions": out.context_positions[:tokens],
        "context_slots": out.context_slot_mappings[0, :tokens],
    }
    found |= {name: getattr(out, name)[:rows] for name in ("sample_indices", "sample_pos", "sample_idx_mapping")}
    return {name: Consumed(values) for name, values in found.items()}


BINDING = LoopBinding(
    operator="block_draft_inputs",
    axes=axes,
    needs=("positions", "block_table_0", "num_sampled", "num_rejected", "last_sampled_tokens"),
    builds=lambda shape: TABLES,
    turn="after_sampling",
    by_slot=True,
    applies=lambda shape: shape.next_n >= 2,
    inputs=inputs,
    consumed=consumed,
)
