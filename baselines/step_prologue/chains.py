"""step_prologue as the operator chains of its parts, one after another."""

from __future__ import annotations

from collections.abc import Callable

from baselines.compute_slot_mappings import chains as compute_slot_mappings
from baselines.decode_step import chains as decode_step
from baselines.gather_block_tables import chains as gather_block_tables
from baselines.mamba_align_step import chains as mamba_align_step
from baselines.step_inputs import chains as step_inputs
from baselines.step_prologue.operator import (
    Inputs,
    Outputs,
    indexer_part,
    inputs_part,
    slots_part,
    states_part,
    tables_part,
    with_indexer,
)
from harness.contract import Point, variant

on_device = step_inputs.on_device


def chains(point: Point, x: Inputs, out: Outputs) -> list[Callable[[], None]]:
    parts = [
        step_inputs.op_chain(*inputs_part(point, x, out)),
        gather_block_tables.op_chain(*tables_part(point, x, out)),
        compute_slot_mappings.op_chain(*slots_part(point, x, out)),
    ]
    if point.state_groups:
        parts.append(mamba_align_step.op_chain(*states_part(point, x, out)))
    if with_indexer(point):
        parts.append(decode_step.op_chain(*indexer_part(point, x, out)))
    return parts


# There is no compiled_chain: the parts have theirs, and what is most of the launches, the schedules, gains nothing.
@variant("step_prologue", skip=on_device, waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The operator chains of inputs, tables, slot mappings, states and indexer one after another."""
    return decode_step.in_sequence(*chains(point, x, out))
