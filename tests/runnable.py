"""The variants of one operator, or of all, that this machine can run, and their inputs and outputs on its device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch

from spec_decode_bench.harness.contract import Variant
from spec_decode_bench.harness.discover import discover, unavailable

#: The GPU if there is one.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def healthy(operator: str | None = None, compiled: bool = False) -> list[Variant]:
    """Variants without a known defect. compiled: include those of torch.compile, which take seconds per new shape."""
    return [v for v in _runnable(operator) if v.defect is None and (compiled or not v.name.startswith("compiled"))]


def defective(operator: str | None = None) -> list[Variant]:
    """Variants with a historic defect, which must be rejected."""
    return [v for v in _runnable(operator) if v.defect is not None]


def variant_of(setup: Callable, operator: str = "decode_native", **more: Any) -> Variant:
    """A variant of the tests, named as its set-up function."""
    return Variant(operator, setup.__name__, setup, doc="", origin="test", **more)


def on_device(tensors: Any, **replaced: torch.Tensor) -> Any:
    """Inputs or outputs with copies of their tensors on DEVICE; what an engine's host holds stays there, pinned.

    replaced: tensors to take instead of copies.
    """
    copies = {}
    for field in fields(tensors):
        value = getattr(tensors, field.name)
        if field.name not in replaced and isinstance(value, torch.Tensor):
            host = value.pin_memory if DEVICE == "cuda" else value.clone
            copies[field.name] = host() if field.metadata.get("host") else value.to(DEVICE, copy=True)
    return replace(tensors, **copies, **replaced)


def engines(operator: str) -> list[Variant]:
    """vLLM's ways to call an operator; none where its files are missing."""
    ways = [v for v in discover().of(operator) if v.name in ("vllm", "vllm_call")]
    return [v for v in ways if unavailable(v, DEVICE) is None]


def _runnable(operator: str | None) -> list[Variant]:
    """Not those of upstream/, which may have known_failures and are the engines' own business."""
    ours = [v for v in discover().variants if not v.is_upstream]
    return [v for v in ours if operator in (None, v.operator) and unavailable(v, DEVICE) is None]
