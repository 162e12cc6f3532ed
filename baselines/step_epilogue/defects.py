"""Historic bugs of step_epilogue, kept as negative controls: parts in the wrong order or over the wrong counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from spec_decode_bench.baselines.mamba_align_step import chains as mamba_align_step
from spec_decode_bench.baselines.step_epilogue.chains import CHAINS, on_device, op_chain
from spec_decode_bench.baselines.step_epilogue.operator import PARTS, Inputs, Outputs, with_states
from spec_decode_bench.baselines.workloads.broken import keeping
from spec_decode_bench.baselines.workloads.composition import Setup, with_inputs
from spec_decode_bench.baselines.workloads.request_slots import num_real
from spec_decode_bench.harness.contract import Point, variant


def _with_states(point: Point) -> str | None:
    return on_device(point) or (None if with_states(point) else "no states")


def _with_drafter(change: Callable[[Any], Any]) -> Setup:
    """The chains of the parts, the drafter's on other inputs."""
    return PARTS.sequence(CHAINS[0], with_inputs(CHAINS[1], change), CHAINS[2])


@variant(
    "step_epilogue",
    defect="the drafter continues with the slot's last token of the step before (like vLLM #39833)",
    skip=on_device,
)
def drafter_before_update(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Its inputs are made before the state of the slots is updated; only the counts are known."""
    last = torch.zeros_like(out.last_sampled_tokens)
    return _with_drafter(lambda inputs: replace(inputs, last_sampled_tokens=last))(point, x, out)


@variant(
    "step_epilogue",
    defect="the drafter reads what the sampler produced for rows whose prompt goes on (like vLLM #54137)",
    skip=on_device,
)
def counts_of_the_sampler(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    sampled = x.num_sampled[: num_real(point)]
    return _with_drafter(lambda inputs: replace(inputs, num_sampled=sampled))(point, x, out)


@variant("step_epilogue", defect="rejected tokens stay in the drafter's row (like vLLM #30029)", skip=on_device)
def rejected_tokens_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    none = torch.zeros_like(x.num_sampled[: num_real(point)])
    return _with_drafter(lambda inputs: replace(inputs, num_rejected=none))(point, x, out)


@variant(
    "step_epilogue",
    defect="states are frozen by the counts before the update (state past or before its tokens, vLLM #56531)",
    skip=_with_states,
)
def states_before_update(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    early = with_inputs(
        mamba_align_step.op_chain, lambda inputs: replace(inputs, num_computed_tokens=x.num_computed_tokens)
    )
    return PARTS.sequence(*CHAINS[:2], early)(point, x, out)


@variant(
    "step_epilogue",
    defect="last_token_indices is not padded: a replayed graph gathers out of range (vLLM #39773)",
    skip=on_device,
)
def last_index_not_padded(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return keeping(op_chain(point, x, out), out.last_token_indices[num_real(point) :])
