"""Random legal batches, on which the scalar references keep their promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from spec_decode_bench.harness.contract import Operator, Point
from tests.tier import examples


def run_examples(count: int) -> Callable[[Callable], Callable]:
    """Hypothesis settings: ``count`` examples of the full tier, no deadline."""
    return settings(max_examples=examples(count), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def steps(longest: int, rows: int = 12, pads: bool = True, **axes: st.SearchStrategy) -> st.SearchStrategy:
    """Strategy for the axes of a step over request slots: what all of these operators have, and ``axes``.

    longest: tokens of a context at most. pads: whether the operator has rows of padding.
    """
    common = {
        "decode_len": st.sampled_from(["uniform", "ragged", "mixed"]),
        "context_len": st.one_of(st.integers(1, longest), st.just({"uniform": [1, longest]})),
        "prefills": st.integers(0, 1),
    }

    def of(batch_size: int) -> st.SearchStrategy:
        sizes = {"batch_size": st.just(batch_size)}
        if pads:
            sizes["padding"] = st.sampled_from([0.0, 0.3] if batch_size > 2 else [0.0])
        return st.fixed_dictionaries(sizes | common | axes)

    return st.integers(1, rows).flatmap(of)


def legal_point(operator: Operator, axes: Mapping[str, Any]) -> Point:
    """The point with all axes. Asserts that it is legal: a strategy must not draw illegal ones."""
    point = operator.complete(axes)
    assert operator.broken_rule(point) is None
    return point


def drawn(operator: Operator, axes: Mapping[str, Any], batch_seed: int) -> tuple[Point, Any]:
    """A legal point and a batch of it."""
    point = legal_point(operator, axes)
    return point, operator.make_inputs(point, batch_seed)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)
