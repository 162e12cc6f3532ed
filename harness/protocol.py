"""What parent and worker say to each other. Never imports torch.

Parent: one Job, then Task or Proof messages, then None. Worker: Ready or Refused, then for each message its events as
they happen (Begin, Cell, Finding), then Done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.config import Measure
from harness.records import Calibration, Environment


@dataclass(frozen=True)
class Job:
    """What a session is told once. timed: whether to measure what passed."""

    device: str
    variant_files: tuple[str, ...]
    seed: int
    measure: Measure
    timed: bool


@dataclass(frozen=True)
class Task:
    """One operator at one point, the names of its variants, and the seconds they may be timed for together."""

    operator: str
    axes: Mapping[str, Any]
    variants: tuple[str, ...]
    budget_s: float


@dataclass(frozen=True)
class Begin:
    """A variant gets control; if the process dies now, that was it. In the measure phase all variants take turns."""

    variant: str
    phase: Literal["verify", "measure"]


@dataclass(frozen=True)
class Ready:
    """First answer of a session. compiled: CUDA source -> architecture -> "ok" or NVRTC's error (without a GPU only)."""

    environment: Environment
    calibration: Calibration | None
    compiled: dict[str, dict[str, str]]


@dataclass(frozen=True)
class Refused:
    """The device could not be brought up; nothing was measured."""

    reason: str


@dataclass(frozen=True)
class Proof:
    """Prove one variant on hard points and sequences alone."""

    operator: str
    variant: str


@dataclass(frozen=True)
class Done:
    """The last message has been dealt with."""
