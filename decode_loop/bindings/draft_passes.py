"""draft_passes in a decode loop by slot: the tables of the drafter's passes 2 .. k, where there are any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_decode_bench.baselines.draft_passes.operator import Inputs, Outputs
from spec_decode_bench.decode_loop.bindings.step_prologue import indexer, step_axes
from spec_decode_bench.decode_loop.engine_state import Consumed, EngineShape, EngineState, LoopBinding
from spec_decode_bench.harness.contract import Point


def axes(shape: EngineShape) -> Mapping[str, Any]:
    """The drafter of a hybrid has attention alone."""
    return {
        **step_axes(shape),
        **shape.axes("block_size", "num_sms", "max_num_batched_tokens"),
        "indexer": "none" if indexer(shape) == "none" else "native",
    }


def inputs(point: Point, state: EngineState) -> Inputs:
    own, rows = state.slots, state.shape.batch_size
    return Inputs(
        idx_mapping=own.idx_mapping,
        seq_lens=state.seq_lens[:rows],
        num_rejected=own.num_rejected[:rows],
        tables=own.tables,
        table_starts=own.table_starts[:1],
        widths=own.widths[:1],
        block_sizes=own.block_sizes[:1],
        enabled=own.enabled[:1],
        sharded=own.sharded[:1],
    )


def builds(shape: EngineShape) -> tuple[str, ...]:
    schedule = ("pass_schedule",) if indexer(shape) != "none" else ()
    return (
        "pass_positions",
        "pass_seq_lens",
        "pass_sample_src_positions",
        "pass_slots",
        "pass_query_start_loc",
        *schedule,
    )


def consumed(point: Point, state: EngineState, out: Outputs) -> Mapping[str, Consumed]:
    """A row per pass; what lies behind the requests is not written in all of them."""
    rows = state.shape.num_requests
    tables = {f"pass_{name}": Consumed(getattr(out, name)[:, :rows]) for name in ("positions", "sample_src_positions")}
    tables |= {"pass_seq_lens": Consumed(out.seq_lens), "pass_query_start_loc": Consumed(out.query_start_loc)}
    tables["pass_slots"] = Consumed(out.slot_mappings.flatten(0, 1))
    if out.schedule is not None:
        tables["pass_schedule"] = Consumed(out.schedule.flatten(1))
    return tables


BINDING = LoopBinding(
    operator="draft_passes",
    axes=axes,
    needs=("seq_lens", "num_rejected"),
    builds=builds,
    turn="after_sampling",
    by_slot=True,
    applies=lambda shape: shape.next_n >= 3,
    inputs=inputs,
    consumed=consumed,
)
