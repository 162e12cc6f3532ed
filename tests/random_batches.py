"""Random legal batches: every healthy variant that runs here against the scalar reference, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from hypothesis import HealthCheck, settings

from harness.contract import Operator, Point
from harness.discover import discover, unavailable
from harness.verify import Bench, verify_cell

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: Random batches for each operator; set RANDOM_BATCHES for a quicker or a longer look.
EXAMPLES = int(os.environ.get("RANDOM_BATCHES", "1000"))


def run_examples(count: int | None = None):
    """Hypothesis settings for tests that launch kernels: ``count`` examples (default: EXAMPLES), no deadline."""
    return settings(max_examples=count or EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def legal_point(operator: Operator, axes: Mapping[str, Any]) -> Point:
    """The full point; a strategy that draws an illegal one is a fault of the test."""
    point = operator.complete(axes)
    assert operator.broken_rule(point) is None
    return point


def check_random(operator: Operator, axes: Mapping[str, Any], seed: int) -> None:
    """Verify all healthy variants of an operator on one batch. Raises Mismatch."""
    point = legal_point(operator, axes)
    bench = Bench(operator, point, DEVICE, seed, cases=2)
    for variant in discover().of(operator.name):
        # Recompiling for every random shape says nothing about torch.compile and takes minutes.
        if variant.defect or variant.name.startswith("compiled") or unavailable(variant, DEVICE) or variant.skip(point):
            continue
        verify_cell(bench, variant, once=True)
