"""step_epilogue as the operator chains of its parts, one after another."""

from __future__ import annotations

from collections.abc import Callable

from baselines.draft_inputs import chains as draft_inputs
from baselines.mamba_align_step import chains as mamba_align_step
from baselines.post_update import chains as post_update
from baselines.step_epilogue.operator import Inputs, Outputs, drafter_part, states_part, update_part, with_states
from harness.contract import Point, variant

on_device = post_update.on_device


def in_sequence(*launches: Callable[[], None]) -> Callable[[], None]:
    def launch() -> None:
        for part in launches:
            part()

    return launch


# There is no compiled_chain: the parts have theirs, and torch.compile sees no more in their sequence.
@variant("step_epilogue", skip=on_device, waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The operator chains of counts, drafter and states one after another."""
    parts = [
        post_update.op_chain(*update_part(point, x, out)),
        draft_inputs.op_chain(*drafter_part(point, x, out)),
    ]
    if with_states(point):
        parts.append(mamba_align_step.op_chain(*states_part(point, x, out)))
    return in_sequence(*parts)
