"""seq_lens_update in a decode loop: the first operator of a step, which turns accepted drafts into lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_decode_bench.baselines.seq_lens_update.operator import Inputs, Outputs
from spec_decode_bench.decode_loop.engine_state import Consumed, EngineShape, EngineState, LoopBinding
from spec_decode_bench.harness.contract import Point


def axes(shape: EngineShape) -> Mapping[str, Any]:
    names = ("next_n", "context_len", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
    return {**shape.axes(*names), "batch_size": shape.num_requests}


def inputs(point: Point, state: EngineState) -> Inputs:
    return Inputs(
        prev_num_computed_tokens=state.num_computed_tokens[1 - state.parity],
        valid=state.valid,
        query_start_loc=state.query_start_loc[: point.batch_size + 1],
        to_device=state.to_device[state.parity],
        num_scheduled=state.num_scheduled,
        num_tokens=state.shape.num_tokens,
    )


def outputs(point: Point, state: EngineState, out: Outputs) -> Outputs:
    return Outputs(
        num_computed_tokens=state.num_computed_tokens[state.parity],
        num_accepted=state.num_accepted,
        seq_lens=state.seq_lens,
        positions=state.positions,
        seq_lens_cpu_upper_bound=state.seq_lens_cpu_upper_bound,
    )


def consumed(point: Point, state: EngineState, out: Outputs) -> Mapping[str, Consumed]:
    """Attention reads the lengths of the captured batch, rotary embeddings the positions of all tokens."""
    return {
        "seq_lens": Consumed(out.seq_lens[: state.shape.batch_size]),
        "positions": Consumed(out.positions[: state.shape.num_tokens]),
    }


BINDING = LoopBinding(
    operator="seq_lens_update",
    axes=axes,
    by_slot=False,
    builds=lambda shape: ("seq_lens", "positions"),
    inputs=inputs,
    outputs=outputs,
    consumed=consumed,
)
