"""decode_step in a decode loop: the tables of its parts, in one operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_decode_bench.baselines.decode_step.operator import Outputs
from spec_decode_bench.decode_loop.bindings import decode_flatten, mla_tile_schedule
from spec_decode_bench.decode_loop.engine_state import Consumed, EngineShape, EngineState, LoopBinding
from spec_decode_bench.harness.contract import Point


def axes(shape: EngineShape) -> Mapping[str, Any]:
    """The native path takes no token padding."""
    flat = decode_flatten.axes(shape) if shape.decode_path == "flatten" else {}
    return {**mla_tile_schedule.axes(shape), **flat, "decode_path": shape.decode_path, "block_size": shape.block_size}


def builds(shape: EngineShape) -> tuple[str, ...]:
    table = ("expanded_block_table",) if shape.decode_path == "flatten" else ()
    return ("lens", *table, "schedule", *mla_tile_schedule.BINDING.builds(shape))


def consumed(point: Point, state: EngineState, out: Outputs) -> Mapping[str, Consumed]:
    if point.decode_path == "flatten":
        lengths = decode_flatten.consumed(point, state, out)
    else:
        lengths = {"lens": Consumed(out.views(point)["lens"])}
    schedule = {"schedule": Consumed(out.views(point)["schedule"])}
    return {**lengths, **schedule, **mla_tile_schedule.consumed(point, state, out)}


BINDING = LoopBinding(
    operator="decode_step",
    axes=axes,
    needs=("seq_lens",),
    builds=builds,
    inputs=decode_flatten.inputs,
    consumed=consumed,
)
