"""What a trace of any tool consists of: ranges and API calls of the host, operations of the device.

Times are nanoseconds of one clock, as the tool has them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from spec_decode_bench.harness.errors import UsageError
from spec_decode_bench.harness.timing.api_calls import waits

#: Category of the range around one call; those of the ranges around them are the phases.
CALL = "call"


@dataclass(frozen=True, slots=True)
class Range:
    """A range of the suite's domain. phase: its category."""

    name: str
    phase: str
    thread: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A call of the CUDA runtime or driver. correlation: by which operations of the device refer to it."""

    name: str
    thread: int
    start: int
    end: int
    correlation: tuple[int, int]

    @property
    def waits(self) -> bool:
        return waits(self.name)


@dataclass(frozen=True, slots=True)
class Operation:
    """Work of the device. correlation: of the API call that submitted it, a graph's launch for a node of the graph."""

    kind: Literal["kernel", "memcpy", "memset", "graph"]
    name: str
    start: int
    end: int
    correlation: tuple[int, int]


@dataclass
class Trace:
    """tool_version: as the file has it. ranges: of the suite's domain."""

    tool: str
    tool_version: str
    ranges: list[Range] = field(default_factory=list)
    calls: list[ApiCall] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


class ReportError(UsageError):
    """A profiler's file cannot be used; the message says which one and why."""
