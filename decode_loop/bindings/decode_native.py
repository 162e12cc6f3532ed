"""decode_native in a decode loop: (B, next_n) lengths, in place of flattened ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_decode_bench.baselines.decode_native.operator import Inputs
from spec_decode_bench.decode_loop.engine_state import Consumed, EngineShape, LoopBinding


def axes(shape: EngineShape) -> Mapping[str, Any]:
    return shape.axes("batch_size", "next_n", "context_len", "max_model_len", "padding", "max_num_batched_tokens")


BINDING = LoopBinding(
    operator="decode_native",
    axes=axes,
    needs=("seq_lens",),
    builds=lambda shape: ("lens",),
    inputs=lambda point, state: Inputs(state.seq_lens[: point.batch_size], state.decode_lens),
    consumed=lambda point, state, out: {"lens": Consumed(out.views(point)["context_lens"])},
)
