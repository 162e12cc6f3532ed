"""paged_mqa_schedule in a decode loop: over the tokens of a flattened step, or the requests of a native one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_decode_bench.baselines.paged_mqa_schedule.operator import Inputs
from spec_decode_bench.decode_loop.engine_state import Consumed, EngineShape, LoopBinding


def axes(shape: EngineShape) -> Mapping[str, Any]:
    """A flattened batch is a batch of T requests with one token each."""
    flat = shape.decode_path == "flatten"
    return {
        "batch_size": shape.batch_size * (shape.next_n if flat else 1),
        "next_n": 1 if flat else shape.next_n,
        "context_len": shape.context_len,
        "max_model_len": shape.max_model_len,
        "padding": shape.padding,
        "lens_layout": "1d" if flat else "2d",
        "num_sms": shape.num_sms,
    }


BINDING = LoopBinding(
    operator="paged_mqa_schedule",
    axes=axes,
    needs=("lens",),
    builds=lambda shape: ("schedule",),
    inputs=lambda point, state: Inputs(state.tables["lens"].values),
    consumed=lambda point, state, out: {"schedule": Consumed(out.views(point)["schedule"])},
)
