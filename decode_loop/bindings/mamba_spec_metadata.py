"""mamba_spec_metadata in a decode loop, in cache mode all: the anchors stay on the device, in one array."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spec_decode_bench.baselines.mamba_spec_metadata.operator import PER_REQUEST, Inputs, Outputs
from spec_decode_bench.decode_loop.engine_state import Consumed, EngineShape, EngineState, LoopBinding
from spec_decode_bench.harness.contract import Point


def axes(shape: EngineShape) -> Mapping[str, Any]:
    names = ("batch_size", "context_len", "max_model_len", "padding", "mamba_block_size", "max_num_seqs")
    return {**shape.axes(*names), "num_speculative_blocks": shape.num_drafts}


def inputs(point: Point, state: EngineState) -> Inputs:
    rows = point.batch_size
    return Inputs(
        seq_lens=state.seq_lens[:rows],
        query_start_loc=state.query_start_loc,
        num_accepted_tokens=state.num_accepted[:rows],
        request_slots=state.request_slots,
        fresh=state.fresh,
        anchors=state.anchors,
        block_table=state.state_table,
        num_decodes=state.shape.num_requests,
    )


def consumed(point: Point, state: EngineState, out: Outputs) -> Mapping[str, Consumed]:
    """The layers read both slot tables, the convolution's slots, the columns and the accepted counts."""
    seen = out.views(point)
    return {name: Consumed(seen[name]) for name in BUILDS}


BUILDS = ("input_slots", "output_slots", "num_accepted_tokens", *PER_REQUEST)
BINDING = LoopBinding(
    operator="mamba_spec_metadata",
    axes=axes,
    by_slot=False,
    needs=("seq_lens",),
    builds=lambda shape: BUILDS,
    inputs=inputs,
    outputs=lambda point, state, out: replace(out, next_anchors=state.anchors),
    consumed=consumed,
)
