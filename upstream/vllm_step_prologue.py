"""step_prologue of vLLM 0.33: the variants of its parts one after another."""

from __future__ import annotations

from collections.abc import Callable

from baselines.step_prologue.operator import PARTS, Inputs, Outputs, indexer_point, states_point, with_indexer
from harness.contract import Point, variant
from harness.engine_launch import EngineLaunch
from upstream import (
    vllm_compute_slot_mappings,
    vllm_decode_step,
    vllm_gather_block_tables,
    vllm_mamba_align_step,
    vllm_step_inputs,
)
from upstream._vllm import needs_of

#: In the order of PARTS.
VARIANTS = (
    vllm_step_inputs,
    vllm_gather_block_tables,
    vllm_compute_slot_mappings,
    vllm_mamba_align_step,
    vllm_decode_step,
)
NEEDS = needs_of(VARIANTS[:-1])
WITH_INDEXER = (*NEEDS, *vllm_decode_step.REQUIRES)
LIMITS = vllm_gather_block_tables.LIMITS


def _skip(point: Point) -> str | None:
    return "vllm_indexer has the builder of the sparse indexer" if with_indexer(point) else None


def _skip_call(point: Point) -> str | None:
    if point.state_groups and (reason := vllm_mamba_align_step.skip_call(states_point(point))):
        return reason
    return _skip(point)


def _skip_indexer(point: Point) -> str | None:
    if not with_indexer(point):
        return "vllm is the same without an indexer"
    return vllm_decode_step.skip(indexer_point(point))


def _sequence(point: Point, x: Inputs, out: Outputs, name: str) -> EngineLaunch:
    parts = zip(PARTS.parts, VARIANTS, strict=True)
    return EngineLaunch(*(getattr(made, name)(*part(point, x, out)) for part, made in parts if part.applies(point)))


@variant("step_prologue", requires=NEEDS, skip=_skip, waives="no_alloc", known_failures=LIMITS)
def vllm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's kernels, and PyTorch where it has none."""
    return _sequence(point, x, out, "vllm")


@variant("step_prologue", requires=NEEDS, skip=_skip_call, waives=("no_alloc", "graph_safe"), known_failures=LIMITS)
def vllm_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's functions around them."""
    return _sequence(point, x, out, "vllm_call")


@variant("step_prologue", requires=WITH_INDEXER, skip=_skip_indexer, waives="no_alloc", known_failures=LIMITS)
def vllm_indexer(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same with the launches of the sparse indexer's builder, DeepGEMM's schedule among them."""
    return _sequence(point, x, out, "vllm")


@variant("step_prologue", requires=WITH_INDEXER, skip=_skip_indexer, waives="no_alloc", known_failures=LIMITS)
def vllm_indexer_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's functions around them, and the builder's build()."""
    return _sequence(point, x, out, "vllm_call")
