"""NVTX ranges: one domain for the suite, the record key as the range's name, the phase as its category."""

from __future__ import annotations

from contextlib import AbstractContextManager

import nvtx

DOMAIN = "spec-decode-metadata"


def nvtx_range(name: str, phase: str) -> AbstractContextManager:
    """A range around one phase (verify, warmup, measure, loop, ramp, calibrate) of a cell. Free without a profiler."""
    return nvtx.annotate(name, domain=DOMAIN, category=phase)
