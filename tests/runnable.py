"""The variants of one operator, or of all, that this machine can run."""

from __future__ import annotations

import torch

from harness.contract import Variant
from harness.discover import discover, unavailable

#: The GPU if there is one.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def healthy(operator: str | None = None, compiled: bool = False) -> list[Variant]:
    """Variants without a known defect. compiled: include those of torch.compile, which take seconds per new shape."""
    return [v for v in _runnable(operator) if v.defect is None and (compiled or not v.name.startswith("compiled"))]


def defective(operator: str | None = None) -> list[Variant]:
    """Variants with a historic defect, which must be rejected."""
    return [v for v in _runnable(operator) if v.defect is not None]


def _runnable(operator: str | None) -> list[Variant]:
    """Not those of peers/, which may have limits and are the engines' own business."""
    ours = [v for v in discover().variants if not v.is_peer]
    return [v for v in ours if operator in (None, v.operator) and unavailable(v, DEVICE) is None]
