"""step_prologue as the operator chains of its parts, one after another."""

from __future__ import annotations

from collections.abc import Callable

from spec_decode_bench.baselines.compute_slot_mappings import chains as compute_slot_mappings
from spec_decode_bench.baselines.decode_step import chains as decode_step
from spec_decode_bench.baselines.gather_block_tables import chains as gather_block_tables
from spec_decode_bench.baselines.mamba_align_step import chains as mamba_align_step
from spec_decode_bench.baselines.step_inputs import chains as step_inputs
from spec_decode_bench.baselines.step_prologue.operator import PARTS, Inputs, Outputs
from spec_decode_bench.harness.contract import Point, variant

on_device = step_inputs.on_device


CHAINS = (
    step_inputs.op_chain,
    gather_block_tables.op_chain,
    compute_slot_mappings.op_chain,
    mamba_align_step.op_chain,
    decode_step.op_chain,
)


# There is no compiled_chain: the parts have theirs, and what is most of the launches, the schedules, gains nothing.
@variant("step_prologue", skip=on_device, waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The operator chains of inputs, tables, slot mappings, states and indexer one after another."""
    return PARTS.sequence(*CHAINS)(point, x, out)
