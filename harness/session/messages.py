"""The messages between a session and its worker processes: plain data, as MessagePack.

A worker begins with a Job, and answers Up when its device is up, or Fatal. Then it is sent Calibrate and work items, at
last an empty message. Each is answered with its events as they happen, then Done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, Union

import msgspec

from spec_decode_bench.harness import registry
from spec_decode_bench.harness.config.load import Measure
from spec_decode_bench.harness.config.work_items import Checked, WorkItem, item_kinds
from spec_decode_bench.harness.contract import Buffers
from spec_decode_bench.harness.records.schema import Calibration, Cell, Environment, Finding, Outcome, Place

Role = Literal["evaluate", "audit"]


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
    rooms:    modules that register what its messages may hold.
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
    rooms: tuple[str, ...] = field(default_factory=lambda: tuple(registry.MODULES))


class _Message(msgspec.Struct, frozen=True, tag=True, tag_field="line"):
    pass


class Calibrate(_Message):
    """Measure what the times of this run are judged by. No other process uses the device meanwhile.

    timed: whether anything is left to be timed.
    """

    timed: bool = True


class Heartbeat(_Message):
    """Sent before a variant, or what else an item asks for, gets control, so that the session knows whom to blame if
    the process dies or hangs.

    In the phase "measure" the variants of an item are interleaved, with one heartbeat per round; in "block" one has
    control.
    place, name, buffers, seed: what it is verified on, of a Check; seed: of a random batch.
    """

    variant: str
    phase: Literal["verify", "measure", "block", "audit"]
    place: Place | None = None
    name: str = ""
    buffers: Buffers | None = None
    seed: int | None = None


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
    """An auditor's answer to Calibrate: CUPTI's samples of each calibration kernel, as fields of KernelTimes.

    own:     kernel name -> samples by field.
    spins:   nanoseconds asked for -> samples by field.
    blocked: why CUPTI delivers nothing; None where it does.
    """

    own: dict[str, dict[str, list[float]]]
    spins: dict[int, dict[str, list[float]]]
    blocked: str | None


class Audited(_Message):
    """What the auditor found for one variant. counts: counts and CUPTI times, as fields of Metrics."""

    variant: str
    counts: dict[str, Any] = {}
    finding: Finding | None = None


class Fatal(_Message):
    """The process cannot go on and ends. As the answer to a Job: the device could not be brought up. To Calibrate: it
    could not be calibrated.
    """

    reason: str


class Done(_Message):
    """All events of the last message have been sent."""


#: What is sent to a worker, and what a worker sends.
Message = Calibrate | WorkItem
Event = Heartbeat | Up | Ready | AuditReady | Outcome | Checked | Audited | Fatal | Done
_encode = msgspec.msgpack.Encoder().encode
_EVENTS = (Heartbeat, Up, Ready, AuditReady, Cell, Checked, Audited, Fatal, Done)


@cache
def _decoder(kinds: tuple[type, ...]) -> msgspec.msgpack.Decoder:
    return msgspec.msgpack.Decoder(Union[kinds])  # noqa: UP007 - of a tuple


def _message_of(received: bytes) -> Message:
    return _decoder((Calibrate, *item_kinds())).decode(received)


def _event_of(received: bytes) -> Event:
    return _decoder((*_EVENTS, *(section.line for section in registry.SECTIONS.values()))).decode(received)


def send(connection: Connection, message: Message | Event) -> None:
    """Raises OSError where the other end is gone."""
    connection.send_bytes(_encode(message))


def receive_message(connection: Connection) -> Message | None:
    """In a worker; None where no more messages come. Raises EOFError where the parent is gone."""
    received = connection.recv_bytes()
    return _message_of(received) if received else None


def receive_event(connection: Connection) -> Event:
    """Raises EOFError or OSError where the worker is gone, or msgspec.DecodeError."""
    return _event_of(connection.recv_bytes())
