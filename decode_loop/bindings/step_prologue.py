"""step_prologue in a decode loop by slot, and the parts of it that no other loop has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spec_decode_bench.baselines.step_prologue.operator import (
    PARTS,
    Inputs,
    Outputs,
    indexer_part,
    inputs_part,
    operator,
    slots_part,
    tables_part,
)
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.decode_loop.bindings import decode_step
from spec_decode_bench.decode_loop.bindings._parts import part_binding
from spec_decode_bench.decode_loop.engine_state import Consumed, EngineShape, EngineState, LoopBinding
from spec_decode_bench.harness.contract import Point

#: Outputs by token or logit row that the model or the sampler reads, and those that a state's layers read.
BY_TOKEN = (
    "positions",
    "input_ids",
    "logits_indices",
    "expanded_idx_mapping",
    "expanded_local_pos",
    "draft_sampled",
    "logit_positions",
)
OF_STATES = ("moves", "batch_accepted")


def indexer(shape: EngineShape) -> str:
    """A hybrid has no sparse indexer."""
    return "none" if shape.state_groups else shape.decode_path


def axes(shape: EngineShape) -> Mapping[str, Any]:
    flat = indexer(shape) == "flatten"
    return {
        **step_axes(shape),
        **shape.axes("block_size", "state_groups", "mamba_block_size", "history_len", "max_num_batched_tokens"),
        **shape.axes("num_heads_q", "num_sms"),
        "num_groups": 1 + shape.state_groups,
        "indexer": indexer(shape),
        "token_padding": shape.batch_size * shape.next_n - shape.num_tokens if flat else 0,
    }


def step_axes(shape: EngineShape) -> dict[str, Any]:
    """Every request decodes next_n tokens."""
    return shape.axes("batch_size", "next_n", "context_len", "max_model_len", "padding", "max_num_seqs")


def inputs(point: Point, state: EngineState) -> Inputs:
    own, now = state.slots, state.parity
    return Inputs(
        idx_mapping=own.idx_mapping,
        query_start_loc=own.query_start_loc,
        query_start_loc_cpu=state.query_start_loc_cpu,
        cu_num_logits=own.cu_num_logits,
        num_computed_tokens=state.num_computed_tokens[now],
        last_sampled_tokens=own.last_sampled_tokens,
        draft_tokens=own.draft_tokens,
        prompt_lens_device=own.prompt_lens,
        all_token_ids_device=own.all_token_ids,
        state_columns_before=own.state_columns if state.shape.state_groups else None,
        num_accepted_tokens_before=own.num_accepted_tokens if state.shape.state_groups else None,
        tables=own.tables,
        starts=own.table_starts,
        widths=own.widths,
        block_sizes=own.block_sizes,
        reach=own.reach,
        enabled=own.enabled,
        sharded=own.sharded,
        num_blocks_device=own.num_blocks,
        num_tokens=state.shape.num_tokens,
        num_logits=state.shape.num_tokens,
    )


def outputs(point: Point, state: EngineState, out: Outputs) -> Outputs:
    """What other operators of a step read lies in the state."""
    own = state.slots
    handed = {
        "seq_lens": state.seq_lens,
        "positions": state.positions,
        "input_ids": own.input_ids,
        "next_prefill_tokens": own.next_prefill_tokens,
        "block_tables": own.block_tables,
    }
    if state.shape.state_groups:
        handed |= {"num_accepted_tokens": own.num_accepted_tokens, "state_columns": own.state_columns}
    return replace(out, **{name: tensor for name, tensor in handed.items() if hasattr(out, name)})


def tables(shape: EngineShape) -> tuple[str, ...]:
    """Names of the gathered tables: of each group, and of their cleared rows."""
    groups = range(1 + shape.state_groups)
    cleared = [f"cleared_{g}" for g in groups] if shape.padding else []
    return (*(f"block_table_{g}" for g in groups), *cleared)


def mappings(shape: EngineShape) -> tuple[str, ...]:
    return tuple(f"slots_{g}" for g in range(1 + shape.state_groups))


def builds(shape: EngineShape) -> tuple[str, ...]:
    found = ["seq_lens", *BY_TOKEN, *tables(shape), *mappings(shape)]
    if shape.state_groups:
        found += [*OF_STATES, *(f"state_slots_{g}" for g in range(shape.state_groups))]
    if indexer(shape) != "none":
        found += decode_step.builds(shape)
    return tuple(found)


def by_token(state: EngineState, out: Any) -> dict[str, Consumed]:
    """Of step_inputs."""
    tokens = {name: Consumed(getattr(out, name)[: state.shape.num_tokens]) for name in BY_TOKEN}
    return {"seq_lens": Consumed(out.seq_lens[: state.shape.batch_size]), **tokens}


def gathered(point: Point, state: EngineState, flat: Any) -> dict[str, Consumed]:
    """Rows of requests as far as they own blocks, whole rows behind them."""
    shape, found = state.shape, {}
    lens, sizes = state.seq_lens[: shape.num_requests], slots.group_block_sizes(point)
    for g, table in enumerate(slots.group_tables(point, flat)):
        found[f"block_table_{g}"] = Consumed(table[: shape.num_requests], lens, unit=sizes[g])
        if shape.padding:
            found[f"cleared_{g}"] = Consumed(table[shape.num_requests : shape.batch_size])
    return found


def mapped(of_groups: Any) -> dict[str, Consumed]:
    return {f"slots_{g}": Consumed(slots_of) for g, slots_of in enumerate(of_groups)}


def consumed(point: Point, state: EngineState, out: Outputs) -> Mapping[str, Consumed]:
    rows = state.shape.batch_size
    found = by_token(state, out) | gathered(point, state, out.block_tables) | mapped(out.slot_mappings)
    if state.shape.state_groups:
        found |= {name: Consumed(getattr(out, name)[:rows]) for name in OF_STATES}
        found |= {f"state_slots_{g}": Consumed(one[:rows]) for g, one in enumerate(out.state_slots)}
    if indexer(state.shape) != "none":
        at, _, made = indexer_part(point, inputs(point, state), out)
        found |= decode_step.consumed(at, state, made)
    return found


BINDING = LoopBinding(
    operator="step_prologue",
    axes=axes,
    builds=builds,
    by_slot=True,
    inputs=inputs,
    outputs=outputs,
    consumed=consumed,
)


# --- its parts, which stand in a stack one by one where no group holds states -----------------------------------------

STEP_INPUTS = part_binding(
    PARTS,
    BINDING,
    operator,
    inputs_part,
    builds=lambda shape: ("seq_lens", *BY_TOKEN),
    outputs=outputs,
    consumed=lambda point, state, out: by_token(state, out),
)
GATHER_BLOCK_TABLES = part_binding(
    PARTS,
    BINDING,
    operator,
    tables_part,
    needs=("seq_lens",),
    builds=tables,
    outputs=lambda point, state, out: replace(out, block_tables=state.slots.block_tables),
    consumed=lambda point, state, out: gathered(point, state, out.block_tables),
)
COMPUTE_SLOT_MAPPINGS = part_binding(
    PARTS,
    BINDING,
    operator,
    slots_part,
    needs=("positions",),
    builds=mappings,
    consumed=lambda point, state, out: mapped(out.slot_mappings),
)
