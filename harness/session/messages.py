"""The messages between a session and its worker processes: plain data, as MessagePack. What launches wrote follows its
message as it is, as packing tens of megabytes and unpacking them takes longer than to compare them.

A worker begins with a Job, and answers Up when its device is up, or Fatal. Then it is sent Calibrate, work items and
Outputs, at last an empty message. Each is answered with its events as they happen, then Done.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, Union

import msgspec
from msgspec import structs

from spec_decode_bench.harness import registry
from spec_decode_bench.harness.config.load import Measure
from spec_decode_bench.harness.config.work_items import Checked, WorkItem, item_kinds
from spec_decode_bench.harness.contract import Buffers
from spec_decode_bench.harness.records.schema import Calibration, Cell, Environment, Finding, Outcome, Place, Status

Role = Literal["evaluate", "audit", "compare"]


@dataclass(frozen=True)
class Job:
    """What a worker is started with.

    timed:    whether to time the variants that passed.
    role:     which process this is: the one that verifies and times, the one that uses CUPTI, or the one that compares
              the outputs of timed launches and imports no variant.
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


class Outputs(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="line", omit_defaults=True):
    """What a timed variant wrote for the inputs of ``check_seed``: sent by the evaluator, and passed on to the process
    that compares.

    what:     in words: a call, or a replay of the largest graph that was timed.
    poison:   the pattern that the outputs held before.
    contents: output -> all of its elements, as bytes or a buffer of bytes.

    The session asks for its outcome as for that of a WorkItem.
    """

    operator: str
    variant: str
    axes: dict[str, Any]
    point: str
    check_seed: int
    what: str
    poison: int
    contents: dict[str, Any]

    @property
    def variants(self) -> tuple[str, ...]:
        return (self.variant,)

    def id_of(self, variant: str) -> str:
        return f"{self.operator}/{variant}"

    def of(self, variants: Collection[str]) -> Outputs:
        return self

    def failed(self, variant: str, **fields: Any) -> Compared:
        """The process that compares died of them; nothing else of the death concerns the variant."""
        message = f"{self.what} could not be checked: {fields['message']}"
        failure = {"status": Status.FAILED, "when": "after_timing", "message": message}
        return Compared(variant, Finding(place=Place.POINT, name=self.point, **failure))


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


class Compared(_Message):
    """Whether outputs equal the reference: what is wrong with them, or None."""

    variant: str
    finding: Finding | None


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
Message = Calibrate | WorkItem | Outputs
Event = Heartbeat | Up | Ready | AuditReady | Outcome | Checked | Outputs | Compared | Audited | Fatal | Done
_encode = msgspec.msgpack.Encoder().encode
_EVENTS = (Heartbeat, Up, Ready, AuditReady, Cell, Checked, Outputs, Compared, Audited, Fatal, Done)


@cache
def _decoder(kinds: tuple[type, ...]) -> msgspec.msgpack.Decoder:
    return msgspec.msgpack.Decoder(Union[kinds])  # noqa: UP007 - of a tuple


def _message_of(received: bytes) -> Message:
    return _decoder((Calibrate, *item_kinds(), Outputs)).decode(received)


def _event_of(received: bytes) -> Event:
    return _decoder((*_EVENTS, *(section.line for section in registry.SECTIONS.values()))).decode(received)


def send(connection: Connection, message: Message | Event) -> None:
    """Raises OSError where the other end is gone."""
    contents = message.contents if isinstance(message, Outputs) else {}
    if contents:
        message = structs.replace(message, contents=dict.fromkeys(contents))
    connection.send_bytes(_encode(message))
    for content in contents.values():
        connection.send_bytes(content)


def receive_message(connection: Connection) -> Message | None:
    """In a worker; None where no more messages come. Raises EOFError where the parent is gone."""
    received = connection.recv_bytes()
    return _with_contents(_message_of(received), connection) if received else None


def receive_event(connection: Connection) -> Event:
    """Raises EOFError or OSError where the worker is gone, or msgspec.DecodeError."""
    return _with_contents(_event_of(connection.recv_bytes()), connection)


def _with_contents(message: Any, connection: Connection) -> Any:
    if not isinstance(message, Outputs):
        return message
    return structs.replace(message, contents={name: connection.recv_bytes() for name in message.contents})
