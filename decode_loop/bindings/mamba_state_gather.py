"""mamba_state_gather in a decode loop: what each Mamba layer gathers again from the columns of mamba_spec_metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_decode_bench.baselines.mamba_state_gather.operator import Inputs
from spec_decode_bench.decode_loop.engine_state import Consumed, EngineShape, EngineState, LoopBinding
from spec_decode_bench.harness.contract import Point

COLUMNS = (
    "block_idx_last_scheduled_token",
    "block_idx_last_scheduled_token_prev_step",
    "block_idx_last_computed_token",
)


def axes(shape: EngineShape) -> Mapping[str, Any]:
    names = ("batch_size", "context_len", "max_model_len", "padding", "mamba_block_size", "max_num_seqs", "num_layers")
    return {**shape.axes(*names), "num_speculative_blocks": shape.num_drafts}


def inputs(point: Point, state: EngineState) -> Inputs:
    return Inputs(
        state_indices=state.state_table,
        block_idx_last_scheduled_token=state.tables["block_idx_last_scheduled_token"].values,
        block_idx_last_scheduled_token_prev_step=state.tables["block_idx_last_scheduled_token_prev_step"].values,
        block_idx_last_computed_token=state.tables["block_idx_last_computed_token"].values,
    )


BINDING = LoopBinding(
    operator="mamba_state_gather",
    axes=axes,
    by_slot=False,
    needs=COLUMNS,
    builds=lambda shape: ("input_slots", "output_slots"),
    inputs=inputs,
    consumed=lambda point, state, out: {name: Consumed(tensor) for name, tensor in out.views(point).items()},
)
