"""step_epilogue of vLLM 0.33: the variants of its parts one after another."""

from __future__ import annotations

from collections.abc import Callable

from spec_decode_bench.baselines.step_epilogue.operator import PARTS, Inputs, Outputs
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.engine_launch import EngineLaunch
from spec_decode_bench.upstream import vllm_draft_inputs, vllm_mamba_align_step, vllm_post_update
from spec_decode_bench.upstream._vllm import needs_of

#: In the order of PARTS.
VARIANTS = (vllm_post_update, vllm_draft_inputs, vllm_mamba_align_step)
NEEDS = needs_of(VARIANTS)


def _sequence(point: Point, x: Inputs, out: Outputs, name: str) -> EngineLaunch:
    parts = zip(PARTS.parts, VARIANTS, strict=True)
    return EngineLaunch(*(getattr(made, name)(*part(point, x, out)) for part, made in parts if part.applies(point)))


@variant("step_epilogue", requires=NEEDS, known_failures=vllm_post_update.LIMITS)
def vllm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's kernels. Copies of hidden states, temperatures and seeds are left out."""
    return _sequence(point, x, out, "vllm")


@variant("step_epilogue", requires=NEEDS, waives="no_alloc", known_failures=vllm_post_update.LIMITS)
def vllm_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's functions around them."""
    return _sequence(point, x, out, "vllm_call")
