"""step_prologue of vLLM 0.33: the variants of its parts one after another."""

from __future__ import annotations

from collections.abc import Callable

from spec_decode_bench.baselines.step_prologue.operator import (
    PARTS,
    Inputs,
    Outputs,
    indexer_point,
    states_point,
    with_indexer,
)
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.engine_launch import EngineLaunch
from spec_decode_bench.upstream import (
    vllm_compute_slot_mappings,
    vllm_decode_step,
    vllm_gather_block_tables,
    vllm_mamba_align_step,
    vllm_step_inputs,
)
from spec_decode_bench.upstream._vllm import needs_of

#: In the order of PARTS.
VARIANTS = (
    vllm_step_inputs,
    vllm_gather_block_tables,
    vllm_compute_slot_mappings,
    vllm_mamba_align_step,
    vllm_decode_step,
)
NEEDS = needs_of(VARIANTS)
LIMITS = vllm_gather_block_tables.LIMITS


def _skip(point: Point) -> str | None:
    if point.indexer == "flatten":
        return "vLLM copies whole rows of the gathered table, whose unread columns hold anything"
    return vllm_decode_step.skip(indexer_point(point)) if with_indexer(point) else None


def _skip_call(point: Point) -> str | None:
    if point.state_groups and (reason := vllm_mamba_align_step.skip_call(states_point(point))):
        return reason
    return _skip(point)


def _sequence(point: Point, x: Inputs, out: Outputs, name: str) -> EngineLaunch:
    parts = zip(PARTS.parts, VARIANTS, strict=True)
    return EngineLaunch(*(getattr(made, name)(*part(point, x, out)) for part, made in parts if part.applies(point)))


@variant("step_prologue", requires=NEEDS, skip=_skip, waives="no_alloc", known_failures=LIMITS)
def vllm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's kernels, and PyTorch where it has none."""
    return _sequence(point, x, out, "vllm")


@variant(
    "step_prologue",
    requires=(*NEEDS, *vllm_mamba_align_step.NEEDS_OF_CALL),
    skip=_skip_call,
    waives=("no_alloc", "graph_safe"),
    known_failures=LIMITS,
)
def vllm_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's functions around them."""
    return _sequence(point, x, out, "vllm_call")
