"""What parent and workers say to each other. Never imports torch.

Parent: one Job, then Task or Proof messages, then None. Worker: Ready, AuditReady or Refused, then for each message its
events as they happen (Begin, Cell, Finding, Audited), then Done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.config.load import Measure
from harness.records.schema import Calibration, Environment


@dataclass(frozen=True)
class Job:
    """What a worker is told once.

    timed: whether to measure what passed. audit: this is the second process, for CUPTI. compiled: whether to compile every
    CUDA source where there is no GPU; a worker that replaces another one need not do it again.
    """

    device: str
    variant_files: tuple[str, ...]
    seed: int
    measure: Measure
    timed: bool
    audit: bool = False
    compiled: bool = True


@dataclass(frozen=True)
class Task:
    """One operator at one point, the names of its variants, and the seconds they may be timed for together."""

    operator: str
    axes: Mapping[str, Any]
    variants: tuple[str, ...]
    budget_s: float


@dataclass(frozen=True)
class Begin:
    """A variant gets control; if the process dies or falls silent now, that was it. In the measure phase variants
    take turns.
    """

    variant: str
    phase: Literal["verify", "measure", "audit"]


@dataclass(frozen=True)
class Ready:
    """First answer of a session. compiled: CUDA source -> architecture -> "ok" or NVRTC's error (without a GPU
    only).
    """

    environment: Environment
    calibration: Calibration | None
    compiled: dict[str, dict[str, str]]


@dataclass(frozen=True)
class AuditReady:
    """First answer of an auditor. own, spins: name, or nanoseconds asked for -> microseconds of one call of that kernel
    of the ruler's, by CUPTI; blocked: why there are none.
    """

    own: dict[str, list[float]]
    spins: dict[int, list[float]]
    blocked: str | None


@dataclass(frozen=True)
class Audited:
    """Counts and CUPTI times of one variant at the task's point, as fields of Metrics; rejection: (status, reason)."""

    variant: str
    counts: dict[str, Any] = field(default_factory=dict)
    rejection: tuple[str, str] | None = None


@dataclass(frozen=True)
class Refused:
    """As a first answer: the device could not be brought up. Later: the process ends, for this reason, without its
    Done.
    """

    reason: str


@dataclass(frozen=True)
class CheckRequest:
    """Prove one variant on hard points and sequences alone."""

    operator: str
    variant: str


@dataclass(frozen=True)
class Done:
    """The last message has been dealt with."""
