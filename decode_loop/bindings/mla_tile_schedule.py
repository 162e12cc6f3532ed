"""mla_tile_schedule in a decode loop: the split-KV schedule over the requests of the captured batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_decode_bench.baselines.mla_tile_schedule.operator import FIELDS, Inputs, Outputs
from spec_decode_bench.decode_loop.engine_state import Consumed, EngineShape, EngineState, LoopBinding
from spec_decode_bench.harness.contract import Point


def axes(shape: EngineShape) -> Mapping[str, Any]:
    step = shape.axes("batch_size", "next_n", "context_len", "max_model_len", "padding", "max_num_seqs")
    return {**step, **shape.axes("num_heads_q", "num_sms")}


def consumed(point: Point, state: EngineState, out: Outputs) -> Mapping[str, Consumed]:
    """A part without work, which starts behind the last request, reads only int 0 of its row."""
    seen = out.views(point)
    rows = seen["tile_scheduler_metadata"][:, : FIELDS[point.layout]]
    return {
        "tile_scheduler_metadata": Consumed(rows, idle=point.batch_size),
        "num_splits": Consumed(seen["num_splits"]),
    }


BINDING = LoopBinding(
    operator="mla_tile_schedule",
    axes=axes,
    needs=("seq_lens",),
    builds=lambda shape: ("tile_scheduler_metadata", "num_splits"),
    inputs=lambda point, state: Inputs(state.seq_lens[: point.batch_size]),
    consumed=consumed,
)
