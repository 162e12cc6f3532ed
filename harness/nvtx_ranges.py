"""NVTX ranges: one domain for the suite, the record key as the range's name, the phase as its category, and the axes of
the point as its payload.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import nvtx

DOMAIN = "spec-decode-metadata"


class _Range:
    """A range whose attributes are made once, so that entering it costs a push and leaving it a pop."""

    def __init__(self, name: str, phase: str, axes: Mapping[str, Any] | None) -> None:
        self._domain = nvtx.get_domain(DOMAIN)
        payload = None if axes is None else payload_of(axes)
        self._attributes = self._domain.get_event_attributes(name, category=phase, payload=payload)

    def __enter__(self) -> None:
        self._domain.push_range(self._attributes)

    def __exit__(self, *error: object) -> None:
        self._domain.pop_range()


def nvtx_range(name: str, phase: str, axes: Mapping[str, Any] | None = None) -> AbstractContextManager:
    """A range around one phase of a cell; it can be entered several times. Free without a profiler.

    phase: one of those that docs/profiling.md lists. axes: of the cell's point, which tools show as fields.
    """
    return _Range(name, phase, axes) if is_listened_to() else nullcontext()


def is_listened_to() -> bool:
    """Whether a tool takes the ranges of this process."""
    return nvtx.enabled() and type(nvtx.get_domain(DOMAIN)).__name__ != "DummyDomain"


def payload_of(axes: Mapping[str, Any]) -> np.ndarray:
    """A structure with a field for each axis: int64, float64, or text for values that are neither."""
    fields, values = [], []
    for name, value in axes.items():
        if isinstance(value, (bool, int)):
            fields.append((name, np.int64))
        elif isinstance(value, float):
            fields.append((name, np.float64))
        else:
            value = str(value).encode()
            fields.append((name, f"S{max(len(value), 1)}"))
        values.append(value)
    return np.array(tuple(values), dtype=fields)


def version() -> str:
    return importlib.metadata.version("nvtx")
