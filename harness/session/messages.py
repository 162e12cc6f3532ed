"""The messages between a session and its worker processes: plain data, as MessagePack.

A worker begins with a Job, and answers Up when its device is up. Then it is sent requests, at last an empty message,
and answers each with one value; with Fatal where it cannot go on. What it is doing goes through a pipe of its own,
which only the supervisor reads (``Heartbeat``, ``Result``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar, Literal, Union

import msgspec

from spec_decode_bench.harness import registry
from spec_decode_bench.harness.config.load import LoadedConfig, Measure
from spec_decode_bench.harness.config.work_items import Answer, Death, Request, Result, Task, item_kinds
from spec_decode_bench.harness.records.schema import Calibration, Environment, Where

Role = Literal["evaluate", "audit"]


@dataclass(frozen=True)
class Sweep:
    """What a worker plans itself, with variants that it loads later. only: as of --only."""

    source: LoadedConfig
    only: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """What a worker is started with.

    timed:    whether to time the variants that passed.
    role:     which process this is: the one that verifies and times, or the one that uses CUPTI.
    compiled: CUDA sources to compile for every architecture where there is no GPU; none for the replacement of a dead
              worker.
    brief:    whether it is one of many processes that are compared (docs/ci.md): no cross-check of the estimators, no
              audit.
    gpu:      the GPU that the process may see, as CUDA_VISIBLE_DEVICES has it; None where it takes the first one.
    host_lock: whether to hold the host's lock while host time is measured (harness/host_lock.py).
    operators: names of those whose files it imports; None for all.
    rooms:    modules that register what its messages may hold.
    sweep:    of --watch.
    """

    device: str
    variant_files: tuple[str, ...]
    seed: int
    measure: Measure
    timed: bool
    role: Role = "evaluate"
    compiled: tuple[Path, ...] = ()
    brief: bool = False
    gpu: str | None = None
    host_lock: bool = False
    operators: tuple[str, ...] | None = None
    rooms: tuple[str, ...] = field(default_factory=lambda: tuple(registry.MODULES))
    sweep: Sweep | None = None


class _Message(msgspec.Struct, frozen=True, tag=True, tag_field="line"):
    pass


class Heartbeat(_Message):
    """Sent before variants, or what else is asked for, get control, so that the session knows whom to blame if the
    process dies or hangs.

    variants: one, or several that take turns. where: what it is verified on, of a Check.
    """

    variants: tuple[str, ...]
    where: Where | None = None


# --- answers ----------------------------------------------------------------------------------------------------------


class Up(_Message):
    """The answer to a Job. environment: of an evaluator only."""

    environment: Environment | None = None


class Ready(_Message):
    """An evaluator's answer to Calibrate. compiled: CUDA source -> architecture -> "ok" or NVRTC's error (without a GPU
    only). seconds: as in Header.
    """

    environment: Environment
    calibration: Calibration | None
    compiled: dict[str, dict[str, str]]
    seconds: dict[str, float] = {}


class AuditReady(_Message):
    """An auditor's answer to Calibrate: CUPTI's samples of each calibration kernel, as KernelTimes.cupti_us.

    own:     by the kernel's name. spins: by the nanoseconds asked for.
    blocked: why CUPTI delivers nothing; None where it does.
    """

    own: dict[str, list[float]]
    spins: dict[int, list[float]]
    blocked: str | None


class Loaded(_Message):
    """An answer to Load. error: why the files cannot be used; then ``files`` is all that is known.

    files:   those given, and what they import and include of the user's and of the suite's kernels.
    own:     "operator/variant" of the variants that they define.
    items:   of the sweep. sources, compiled: as in Header. warnings: a sentence each.
    code:    "operator/variant" -> hash of its files.
    """

    files: list[str] = []
    error: str | None = None
    own: list[str] = []
    items: list[Task] = []
    sources: dict[str, str] = {}
    code: dict[str, str] = {}
    compiled: dict[str, dict[str, str]] = {}
    environment: Environment | None = None
    warnings: list[str] = []


class Fatal(_Message):
    """The process cannot go on and ends. As the answer to a Job: the device could not be brought up. To Calibrate: it
    could not be calibrated.
    """

    reason: str


# --- requests ---------------------------------------------------------------------------------------------------------


class Calibrate(_Message):
    """Measure what the times of this run are judged by. No other process uses the device meanwhile.

    timed: whether anything is left to be timed.
    """

    answer: ClassVar[Any] = Ready | AuditReady

    timed: bool = True

    def run(self, owner: Any) -> Ready | AuditReady:
        return owner.ready(self.timed)


class Load(_Message):
    """Import these files of --variants; plan the job's sweep with them."""

    answer: ClassVar[Any] = Loaded

    files: tuple[str, ...]

    def run(self, owner: Any) -> Loaded:
        return owner.load(self.files)


class AuditOf(_Message):
    """Examine the launch of a variant that was timed at a point, under CUPTI, and complete its metrics."""

    answer: ClassVar[Any] = Answer[Result]

    task: Task
    timed: Result

    @property
    def variants(self) -> tuple[str, ...]:
        return (self.timed.variant,)

    def id_of(self, variant: str) -> str:
        return self.timed.variant_id

    def of(self, variants: Collection[str]) -> AuditOf:
        return self

    def run(self, owner: Any) -> list[Result]:
        return owner.audit(self.task, self.timed)

    def died(self, variant: str, death: Death) -> Result:
        """The first process found nothing wrong with it."""
        return self.timed.unaudited(death.message)


_encode = msgspec.msgpack.Encoder().encode


@cache
def _decoder(kinds: tuple[Any, ...]) -> msgspec.msgpack.Decoder:
    return msgspec.msgpack.Decoder(Union[kinds])  # noqa: UP007 - of a tuple


def send(connection: Connection, message: Any) -> None:
    """Raises OSError where the other end is gone."""
    connection.send_bytes(_encode(message))


def receive_request(connection: Connection) -> Calibrate | Load | Request | None:
    """In a worker; None where no more requests come. Raises EOFError where the parent is gone."""
    received = connection.recv_bytes()
    return _decoder((Calibrate, Load, AuditOf, *item_kinds())).decode(received) if received else None


def receive(connection: Connection, kinds: tuple[Any, ...]) -> Any:
    """One of these types. Raises EOFError or OSError where the worker is gone, or msgspec.DecodeError."""
    return _decoder(kinds).decode(connection.recv_bytes())
