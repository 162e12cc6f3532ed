"""What `bench.py profile` writes: session.json by the process that is profiled, profile.json when it is attributed.

Times here were taken under a profiler. They say where time goes; they are not results.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from spec_decode_bench.harness.records.file import UNREADABLE, content
from spec_decode_bench.harness.records.schema import Environment, RecordError, Us

PROFILE_VERSION = 1
#: Files in the folder of a profile.
SESSION, PROFILE = "session.json", "profile.json"
#: What a cell does in a profile, in this order: its launch is called, and a graph of one launch is replayed.
Phase = Literal["eager", "graph"]
PHASES: tuple[Phase, ...] = ("eager", "graph")


class ProfiledCell(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cell that was prepared. no_graph: why its launch cannot be captured; then it has no graph phase."""

    key: str
    operator: str
    variant: str
    point: str
    axes: dict[str, Any]
    baseline: str
    bytes_moved: int
    no_graph: str | None = None


class Session(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run of the cells for a profiler.

    calls:    how often each cell ran in each phase.
    sources:  as in the header of a record.
    left_out: key -> why the cell does not run here. failed: key -> why it should have, but could not.
    nvtx:     version of the nvtx package, and whether a tool listened to it.
    """

    version: int
    name: str
    command: str
    started: str
    seed: int
    calls: int
    environment: Environment
    sources: dict[str, str] = {}
    cells: list[ProfiledCell]
    left_out: dict[str, str] = {}
    failed: dict[str, str] = {}
    nvtx: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a cell did in one phase. Lists hold microseconds, one value per call.

    kernels, memcpys, memsets, graphs: operations of the device; a graph counts as one where the tool does not show its
                nodes.
    api_calls:  calls of the CUDA runtime and driver, those that wait included.
    host_us:    length of the range.
    submit_us:  in API calls that do not wait. wait_us: in those that do.
    device_us:  in which the device worked. gap_us: between its operations, from the first to the last.
    """

    cell: str
    phase: str
    calls: int
    kernels: int = 0
    memcpys: int = 0
    memsets: int = 0
    graphs: int = 0
    api_calls: int = 0
    host_us: list[Us] = []
    submit_us: list[Us] = []
    wait_us: list[Us] = []
    device_us: list[Us] = []
    gap_us: list[Us] = []


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a profile lies in the cells.

    device_us: sum of the device's operations. host_us: from the first range of a cell to the last; attributed is what
    the ranges cover of it.
    """

    operations: int
    operations_attributed: int
    device_us: Us
    device_us_attributed: Us
    host_us: Us
    host_us_attributed: Us

    @property
    def of_operations(self) -> float:
        return self.operations_attributed / self.operations if self.operations else 1.0

    @property
    def of_time(self) -> float:
        """Of the time of host and device together."""
        total = self.device_us + self.host_us
        return (self.device_us_attributed + self.host_us_attributed) / total if total else 1.0


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """Something of the profile that lies in no cell."""

    name: str
    count: int
    us: Us


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Something on a lane, microseconds from the beginning of the call."""

    kind: Literal["kernel", "memcpy", "memset", "graph", "submit", "wait"]
    name: str
    start_us: Us
    end_us: Us


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a cell on the lanes of host and device: the one of median length."""

    cell: str
    phase: str
    us: Us
    host: list[Span]
    device: list[Span]


class KernelCounters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What Nsight Compute counted of one kernel of one call; None where it gave no value.

    us:               duration, caches flushed before.
    dram_read, dram_write: bytes between L2 and memory. l2_read, l2_write: bytes between SMs and L2.
    occupancy, theoretical: active warps as a share of what an SM can hold, and what the launch shape allows.
    registers:        per thread. grid, block: total number of blocks, and of threads in one.
    """

    cell: str
    name: str
    us: float | None = None
    dram_read: float | None = None
    dram_write: float | None = None
    l2_read: float | None = None
    l2_write: float | None = None
    occupancy: float | None = None
    theoretical: float | None = None
    registers: float | None = None
    grid: str = ""
    block: str = ""


class Profile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A profile, attributed to cells. tool: "nsys", "ncu" or "torch". session: None for a report brought from elsewhere
    without its session.json.
    """

    version: int
    tool: str
    tool_version: str
    name: str
    command: str
    session: Session | None = None
    rows: list[Row] = []
    share: Share | None = None
    outside: list[Outside] = []
    steps: list[Step] = []
    counters: list[KernelCounters] = []

    def cell(self, key: str) -> ProfiledCell | None:
        return next((cell for cell in self.session.cells if cell.key == key), None) if self.session else None


Document = TypeVar("Document", Session, Profile)


def read_document(path: Path, kind: type[Document]) -> Document:
    try:
        document = msgspec.json.decode(content(path), type=kind)
    except UNREADABLE as error:
        raise RecordError(f"{path} is not a {path.name} of `bench.py profile`: {error}") from None
    if document.version != PROFILE_VERSION:
        raise RecordError(f"{path} has version {document.version}; this suite reads version {PROFILE_VERSION}")
    return document


def write_document(document: Session | Profile, path: Path) -> None:
    """The whole file or none. Raises OSError."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(msgspec.json.encode(document) + b"\n")
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
