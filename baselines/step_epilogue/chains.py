"""step_epilogue as the operator chains of its parts, one after another."""

from __future__ import annotations

from collections.abc import Callable

from spec_decode_bench.baselines.draft_inputs import chains as draft_inputs
from spec_decode_bench.baselines.mamba_align_step import chains as mamba_align_step
from spec_decode_bench.baselines.post_update import chains as post_update
from spec_decode_bench.baselines.step_epilogue.operator import PARTS, Inputs, Outputs
from spec_decode_bench.harness.contract import Point, variant

on_device = post_update.on_device
CHAINS = (post_update.op_chain, draft_inputs.op_chain, mamba_align_step.op_chain)


# There is no compiled_chain: the parts have theirs, and torch.compile sees no more in their sequence.
@variant("step_epilogue", skip=on_device, waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The operator chains of counts, drafter and states one after another."""
    return PARTS.sequence(*CHAINS)(point, x, out)
