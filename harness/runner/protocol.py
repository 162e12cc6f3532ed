"""The messages between the parent and its worker processes. Never imports torch.

The parent sends one Job, then messages, then None. A worker answers the Job with Ready, AuditReady, Done or Fatal, and
each message with its events as they happen (Heartbeat, Cell, Finding, Outputs, Audited, Compared, Loop), then Done.
Messages and answers travel with a number, which is 0 for the Job: an answer to another message is never taken for this
one's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.config.load import Measure
from harness.config.loops import LoopGroup
from harness.records.schema import Calibration, Environment, Status

#: Reason of a point or batch that is left out because Triton's interpreter or torch.compile is slow.
INTERPRETER_SPENT = (
    "Triton's interpreter or torch.compile has used its {:g} s for this variant (measure.interpreter_budget_s); "
    "it passed all hard points and earlier batches"
)


def is_left_out(reason: str | None) -> bool:
    """Whether a reason is INTERPRETER_SPENT."""
    return (reason or "").startswith(INTERPRETER_SPENT.partition("{")[0])


Role = Literal["evaluate", "audit", "compare"]


@dataclass(frozen=True)
class Job:
    """Sent once, first.

    timed:    whether to time the variants that passed.
    role:     which process this is: the one that verifies and times, the one that uses CUPTI, or the one that compares
              the outputs of timed launches and imports no variant.
    compiled: CUDA sources to compile for every architecture where there is no GPU; none for the replacement of a dead
              worker.
    verified: whether another run has verified every cell that will be asked for (harness/runner/verified_by.py).
    """

    device: str
    variant_files: tuple[str, ...]
    seed: int
    measure: Measure
    timed: bool
    role: Role = "evaluate"
    compiled: tuple[Path, ...] = ()
    verified: bool = False


@dataclass(frozen=True)
class Task:
    """One operator at one point, the names of its variants, and the seconds they may be timed for together.

    at_capacity: whether it is a point at capacity: every variant is launched once, and none is timed.
    check_seed:  of the inputs on which timed launches run once more. Nothing has seen these inputs before.
    """

    operator: str
    axes: Mapping[str, Any]
    variants: tuple[str, ...]
    budget_s: float
    at_capacity: bool = False
    check_seed: int = 0


@dataclass(frozen=True)
class CheckRequest:
    """Check one variant on its operator's hard points and sequences only.

    at: the name of the only one to check, or the axes of any other point; None for all.
    """

    operator: str
    variant: str
    at: str | Mapping[str, Any] | None = None


@dataclass(frozen=True)
class RandomRequest:
    """Verify one variant on ``count`` random batches."""

    operator: str
    variant: str
    count: int


@dataclass(frozen=True)
class LoopTask:
    """One decode loop: verify its stacks, let them take turns, and answer with a line for each of them."""

    group: LoopGroup


@dataclass(frozen=True)
class Heartbeat:
    """Sent before a variant gets control, so that the parent knows whom to blame if the process dies or hangs.

    In the phase "measure" the variants of a task take turns, with one heartbeat a round.
    """

    variant: str
    phase: Literal["verify", "measure", "audit"]


@dataclass(frozen=True)
class Ready:
    """An evaluator's answer to its Job. compiled: CUDA source -> architecture -> "ok" or NVRTC's error (without a GPU
    only).
    """

    environment: Environment
    calibration: Calibration | None
    compiled: dict[str, dict[str, str]]


@dataclass(frozen=True)
class AuditReady:
    """An auditor's answer to its Job: CUPTI's samples of each calibration kernel, as fields of KernelTimes.

    own:     kernel name -> samples by field.
    spins:   nanoseconds asked for -> samples by field.
    blocked: why CUPTI delivers nothing; None where it does.
    """

    own: dict[str, dict[str, list[float]]]
    spins: dict[int, dict[str, list[float]]]
    blocked: str | None


@dataclass(frozen=True)
class Rejection:
    """Why a variant did not pass: status and reason of its cell."""

    status: Status
    reason: str


@dataclass(frozen=True)
class Outputs:
    """What a timed variant wrote for the inputs of ``check_seed``.

    what:     in words: a call, or a replay of the largest graph that was timed.
    poison:   the pattern that the outputs held before.
    contents: output -> all of its elements, as bytes.
    """

    variant: str
    what: str
    poison: int
    contents: Mapping[str, bytes] = field(repr=False)


#: What the parent sends after the job.
Message = Task | CheckRequest | RandomRequest | LoopTask | Outputs


@dataclass(frozen=True)
class Compared:
    """Whether outputs equal the reference: what is wrong with them, or None."""

    mismatch: str | None


@dataclass(frozen=True)
class Audited:
    """What the auditor found for one variant. counts: counts and CUPTI times, as fields of Metrics."""

    variant: str
    counts: dict[str, Any] = field(default_factory=dict)
    rejection: Rejection | None = None


@dataclass(frozen=True)
class Fatal:
    """The process cannot go on and ends. As the answer to a Job: the device could not be brought up."""

    reason: str


@dataclass(frozen=True)
class Done:
    """All events of the last message have been sent."""
