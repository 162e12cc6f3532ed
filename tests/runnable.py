"""The variants that tests run themselves: of one operator or of all, those that this machine can."""

from __future__ import annotations

import torch

from harness.contract import Variant
from harness.discover import discover, unavailable

#: The GPU where there is one.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def healthy(operator: str | None = None, compiled: bool = False) -> list[Variant]:
    """Variants that must be right. compiled: those of torch.compile too, which take seconds for every new shape."""
    return [v for v in _found(operator) if v.defect is None and (compiled or not v.name.startswith("compiled"))]


def defective(operator: str | None = None) -> list[Variant]:
    """Historic defects, which must be rejected."""
    return [v for v in _found(operator) if v.defect is not None]


def _found(operator: str | None) -> list[Variant]:
    return [v for v in discover().variants if operator in (None, v.operator) and unavailable(v, DEVICE) is None]
