"""step_epilogue in a decode loop by slot, and its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spec_decode_bench.baselines.step_epilogue.operator import (
    PARTS,
    Inputs,
    Outputs,
    drafter_part,
    operator,
    update_part,
)
from spec_decode_bench.decode_loop.bindings._parts import part_binding
from spec_decode_bench.decode_loop.bindings.step_prologue import step_axes
from spec_decode_bench.decode_loop.engine_state import Consumed, EngineShape, EngineState, LoopBinding
from spec_decode_bench.harness.contract import Point


def axes(shape: EngineShape) -> Mapping[str, Any]:
    return {
        **step_axes(shape),
        **shape.axes("history_len", "mamba_block_size", "max_num_batched_tokens"),
        "states": "yes" if shape.state_groups else "no",
    }


def inputs(point: Point, state: EngineState) -> Inputs:
    own, now, rows = state.slots, state.parity, state.shape.batch_size
    return Inputs(
        idx_mapping=own.idx_mapping,
        cu_num_logits=own.cu_num_logits,
        query_start_loc=own.query_start_loc,
        seq_lens=state.seq_lens[:rows],
        num_sampled=state.valid[:rows],
        sampled_tokens=own.sampled_tokens,
        num_computed_tokens=state.num_computed_tokens[now],
        total_len=own.total_len,
        output_bin_counts=None,
        next_prefill_tokens=own.next_prefill_tokens[0],
        state_columns_before=own.state_columns if state.shape.state_groups else None,
        prompt_lens_device=own.prompt_lens,
        prompt_lens_host=None,
        target_input_ids=own.input_ids,
        target_positions=state.positions,
        num_tokens=state.shape.num_tokens,
    )


def left_behind(state: EngineState) -> dict[str, Any]:
    """Outputs of post_update that the next step, or another operator of this one, reads."""
    own, following = state.slots, 1 - state.parity
    return {
        "num_sampled": own.num_sampled,
        "num_rejected": own.num_rejected,
        "num_computed_tokens": state.num_computed_tokens[following],
        "total_len": own.total_len,
        "last_sampled_tokens": own.last_sampled_tokens,
        "num_accepted_tokens": own.num_accepted_tokens,
        "all_token_ids_device": own.all_token_ids,
    }


def outputs(point: Point, state: EngineState, out: Outputs) -> Outputs:
    return replace(out, **{name: tensor for name, tensor in left_behind(state).items() if hasattr(out, name)})


def updated(state: EngineState) -> dict[str, Consumed]:
    """Counts of the step, and what the slots hold now; counts by slot show in the next step's lengths."""
    own, rows = state.slots, state.shape.num_requests
    tables = {name: Consumed(getattr(own, name)[:rows]) for name in ("num_sampled", "num_rejected")}
    return tables | {"last_sampled_tokens": Consumed(own.last_sampled_tokens), "history": Consumed(own.all_token_ids)}


def first_pass(state: EngineState, out: Any) -> dict[str, Consumed]:
    """Of the tokens of a row those that were kept: what stands behind them is left over from other steps."""
    shape, kept = state.shape, state.slots.num_sampled[: state.shape.num_requests]
    by_row = {
        name: getattr(out, name)[: shape.num_tokens].view(-1, shape.next_n) for name in ("input_ids", "positions")
    }
    tables = {f"draft_{name}": Consumed(rows, row_lengths=kept) for name, rows in by_row.items()}
    return tables | {
        f"draft_{name}": Consumed(getattr(out, name)) for name in ("seq_lens", "query_start_loc", "last_token_indices")
    }


UPDATED, FIRST_PASS = (
    ("num_sampled", "num_rejected", "last_sampled_tokens", "history"),
    ("draft_input_ids", "draft_positions", "draft_seq_lens", "draft_query_start_loc", "draft_last_token_indices"),
)


def builds(shape: EngineShape) -> tuple[str, ...]:
    return (*UPDATED, *FIRST_PASS, *(["frozen_moves"] if shape.state_groups else []))


def consumed(point: Point, state: EngineState, out: Outputs) -> Mapping[str, Consumed]:
    tables = updated(state) | first_pass(state, out)
    if state.shape.state_groups:
        tables["frozen_moves"] = Consumed(out.moves[: state.shape.batch_size])
    return tables


BINDING = LoopBinding(
    operator="step_epilogue",
    axes=axes,
    needs=("seq_lens", "positions", "input_ids"),
    builds=builds,
    turn="after_sampling",
    by_slot=True,
    inputs=inputs,
    outputs=outputs,
    consumed=consumed,
)


POST_UPDATE = part_binding(
    PARTS,
    BINDING,
    operator,
    update_part,
    needs=("seq_lens",),
    builds=lambda shape: UPDATED,
    outputs=outputs,
    consumed=lambda point, state, out: updated(state),
)
#: Its first pass: the passes behind it are part of the drafter's graph, or of draft_passes.
DRAFT_INPUTS = part_binding(
    PARTS,
    BINDING,
    operator,
    drafter_part,
    needs=("input_ids", "positions", "num_rejected"),
    builds=lambda shape: FIRST_PASS,
    consumed=lambda point, state, out: first_pass(state, out),
)
