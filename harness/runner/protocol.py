"""The messages between the parent and its worker processes. Never imports torch.

A worker begins with a Job, and answers Done when its device is up, or Fatal. Then the parent sends messages, at last
None. Each is answered with its events as they happen (Ready, AuditReady, Heartbeat, Cell, Finding, Outputs, Audited,
Compared, Loop), then Done. Messages and answers travel with a number, which is 0 for the Job: an answer to another
message is never taken for this one's.
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
    """What a worker is started with.

    timed:    whether to time the variants that passed.
    role:     which process this is: the one that verifies and times, the one that uses CUPTI, or the one that compares
              the outputs of timed launches and imports no variant.
    compiled: CUDA sources to compile for every architecture where there is no GPU; none for the replacement of a dead
              worker.
    verified: whether another run has verified every cell that will be asked for (harness/runner/verified_by.py).
    gpu:      the GPU that the process may see, as CUDA_VISIBLE_DEVICES has it; None where it takes the first one.
    host_lock: whether to hold the host's lock while host time is measured (harness/timing/host_lock.py).
    """

    device: str
    variant_files: tuple[str, ...]
    seed: int
    measure: Measure
    timed: bool
    role: Role = "evaluate"
    compiled: tuple[Path, ...] = ()
    verified: bool = False
    gpu: str | None = None
    host_lock: bool = False


@dataclass(frozen=True)
class Calibrate:
    """Measure what the times of this run are judged by. No other process uses the device meanwhile."""


@dataclass(frozen=True)
class Task:
    """One operator at one point, the names of its variants, and the seconds they may be timed for together.

    at_capacity: whether it is a point at capacity: every variant is launched once, and none is timed.
    baseline:    of the cells; None for the operator's own.
    check_seed:  of the inputs on which timed launches run once more. Nothing has seen these inputs before.
    """

    operator: str
    axes: Mapping[str, Any]
    variants: tuple[str, ...]
    budget_s: float
    at_capacity: bool = False
    check_seed: int = 0
    baseline: str | None = None


@dataclass(frozen=True)
class CheckRequest:
    """Check one variant on its operator's hard points and sequences only.

    at:   the name of the only one to check, or the axes of any other point; None for all.
    only: exactly the one named in ``at``, even where the variant declares a limit.
    """

    operator: str
    variant: str
    at: str | Mapping[str, Any] | None = None
    only: bool = False


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
    """An evaluator's answer to Calibrate. compiled: CUDA source -> architecture -> "ok" or NVRTC's error (without a GPU
    only).
    """

    environment: Environment
    calibration: Calibration | None
    compiled: dict[str, dict[str, str]]


@dataclass(frozen=True)
class AuditReady:
    """An auditor's answer to Calibrate: CUPTI's samples of each calibration kernel, as fields of KernelTimes.

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
Message = Calibrate | Task | CheckRequest | RandomRequest | LoopTask | Outputs


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
    """The process cannot go on and ends. As the answer to a Job: the device could not be brought up. To Calibrate: it
    could not be calibrated.
    """

    reason: str


@dataclass(frozen=True)
class Done:
    """All events of the last message have been sent."""
