"""decode_flatten in a decode loop: a row for each of the batch_size * next_n tokens of a captured step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_decode_bench.baselines.decode_flatten.operator import Inputs, Outputs, num_tokens
from spec_decode_bench.decode_loop.engine_state import Consumed, EngineShape, EngineState, LoopBinding
from spec_decode_bench.harness.contract import Point


def axes(shape: EngineShape) -> Mapping[str, Any]:
    """Padding requests bring no tokens, so the step is padded by theirs up to the captured size."""
    names = ("batch_size", "next_n", "context_len", "max_model_len", "padding", "block_size", "max_num_batched_tokens")
    return {**shape.axes(*names), "token_padding": shape.batch_size * shape.next_n - shape.num_tokens}


def inputs(point: Point, state: EngineState) -> Inputs:
    return Inputs(
        seq_lens=state.seq_lens[: point.batch_size],
        query_start_loc=state.query_start_loc,
        block_table=state.block_table,
        query_start_loc_cpu=state.query_start_loc_cpu,
        num_decode_tokens=num_tokens(point),
    )


def consumed(point: Point, state: EngineState, out: Outputs) -> Mapping[str, Consumed]:
    """Paged MQA logits read the lengths of all launched tokens, and of each table row the blocks of its length."""
    seen = out.views(point)
    return {
        "lens": Consumed(seen["lens"]),
        "expanded_block_table": Consumed(seen["block_table"], row_lengths=seen["lens"], unit=point.block_size),
    }


BINDING = LoopBinding(
    operator="decode_flatten",
    axes=axes,
    needs=("seq_lens",),
    builds=lambda shape: ("lens", "expanded_block_table"),
    inputs=inputs,
    consumed=consumed,
)
