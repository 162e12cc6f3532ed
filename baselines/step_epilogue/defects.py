"""Historic bugs of step_epilogue, kept as negative controls: parts in the wrong order or over the wrong counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from baselines.draft_inputs import chains as draft_inputs
from baselines.mamba_align_step import chains as mamba_align_step
from baselines.post_update import chains as post_update
from baselines.step_epilogue.chains import in_sequence, on_device, op_chain
from baselines.step_epilogue.operator import Inputs, Outputs, drafter_part, states_part, update_part, with_states
from harness.contract import Point, variant


def _with_states(point: Point) -> str | None:
    return on_device(point) or (None if with_states(point) else "no states")


def _states(point: Point, x: Inputs, out: Outputs) -> list[Callable[[], None]]:
    return [mamba_align_step.op_chain(*states_part(point, x, out))] if with_states(point) else []


@variant(
    "step_epilogue",
    defect="the drafter continues with the slot's last token of the step before (like vLLM #39833)",
    skip=on_device,
    waives="no_alloc",
)
def drafter_before_update(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Its inputs are made before the state of the slots is updated; only the counts are known."""
    last = torch.zeros_like(out.last)
    at, inputs, made = drafter_part(point, x, out)
    parts = [
        post_update.op_chain(*update_part(point, x, out)),
        draft_inputs.op_chain(at, replace(inputs, last=last), made),
    ]
    return in_sequence(*parts, *_states(point, x, out))


@variant(
    "step_epilogue",
    defect="the drafter reads what the sampler produced for rows whose prompt goes on (like vLLM #54137)",
    skip=on_device,
    waives="no_alloc",
)
def counts_of_the_sampler(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    at, inputs, made = drafter_part(point, x, out)
    inputs = replace(inputs, num_sampled=x.num_sampled[: len(inputs.idx)])
    parts = [post_update.op_chain(*update_part(point, x, out)), draft_inputs.op_chain(at, inputs, made)]
    return in_sequence(*parts, *_states(point, x, out))


@variant(
    "step_epilogue",
    defect="rejected tokens stay in the drafter's row (like vLLM #30029)",
    skip=on_device,
    waives="no_alloc",
)
def rejected_tokens_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    at, inputs, made = drafter_part(point, x, out)
    inputs = replace(inputs, num_rejected=torch.zeros_like(inputs.num_rejected))
    parts = [post_update.op_chain(*update_part(point, x, out)), draft_inputs.op_chain(at, inputs, made)]
    return in_sequence(*parts, *_states(point, x, out))


@variant(
    "step_epilogue",
    defect="states are frozen by the counts before the update (state past or before its tokens, vLLM #56531)",
    skip=_with_states,
    waives="no_alloc",
)
def states_before_update(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    at, inputs, made = states_part(point, x, out)
    early = mamba_align_step.op_chain(at, replace(inputs, num_computed=x.num_computed), made)
    parts = [post_update.op_chain(*update_part(point, x, out)), draft_inputs.op_chain(*drafter_part(point, x, out))]
    return in_sequence(*parts, early)


@variant(
    "step_epilogue",
    defect="last_index is not padded: a replayed graph gathers out of range (vLLM #39773)",
    skip=on_device,
    waives="no_alloc",
)
def last_index_not_padded(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    chain, tail = op_chain(point, x, out), out.last_index[len(drafter_part(point, x, out)[1].idx) :]

    def launch() -> None:
        before = tail.clone()
        chain()
        tail.copy_(before)

    return launch
