"""What a run leaves behind: JSONL, one header line, then one line per cell, written at once and never rewritten.

Only raw samples are stored. Medians, slopes, intervals, ratios are derived by whoever reads (``stats``), so that a
better statistic can be applied to old runs. Never imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

SCHEMA_VERSION = 1

#: passed: verified, and timed where it can be. mismatch: verification rejected it. failed: it raised or could not be
#: measured. skipped: does not apply at this point. unavailable: this machine lacks what it needs.
Status = Literal["passed", "mismatch", "failed", "skipped", "unavailable"]


class RecordError(Exception):
    """A record file cannot be read or written; the message says which and why."""


class Environment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine and the software of a run. ``device`` is "cuda" or "cpu"."""

    device: str
    processor: str
    python: str
    torch: str
    triton: str | None = None
    cuda_core: str | None = None
    gpu: str | None = None
    generation: str | None = None
    sm: str | None = None
    sm_count: int | None = None
    l2_bytes: int | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_limit_w: float | None = None
    commit: str | None = None
    dirty: bool = False
    notes: tuple[str, ...] = ()


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The ruler of this run, raw: graph replays of a null kernel and of a one-block copy, device-to-device copies."""

    null_graph_us: dict[int, list[float]]
    block_copy_graph_us: dict[int, list[float]]
    launch_host_us: list[float]
    copy_bytes: int
    copy_us: list[float]


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="header", tag_field="line"):
    """First line of a run. ``variants``: operator/variant in catalogue order, the order of columns and bars."""

    schema: int
    name: str
    command: str
    started: str
    seed: int
    variants: tuple[str, ...] = ()
    config: dict[str, Any]
    environment: Environment
    calibration: Calibration | None = None
    compiled: dict[str, dict[str, str]] = {}


class Metrics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Raw samples of one cell, microseconds.

    graph_us: copies of the launch in one CUDA graph -> time of each replay, one per round; gpu_us is its slope.
    cpu_us:   wall time of one launch of a PyTorch variant on a CPU; never a GPU time.
    """

    bytes_moved: int
    host_us: list[float] = []
    eager_us: list[float] = []
    graph_us: dict[int, list[float]] = {}
    cpu_us: list[float] = []
    launches: int | None = None
    graph_nodes: dict[str, int] = {}
    no_graph: str | None = None
    rounds: int = 0
    stopped: str | None = None
    sm_clock_mhz: list[int] = []


class Cell(msgspec.Struct, frozen=True, kw_only=True, tag="cell", tag_field="line", omit_defaults=True):
    """One operator x point x variant. ``point`` is the label of the point, ``axes`` its values in full."""

    operator: str
    variant: str
    baseline: str
    point: str
    axes: dict[str, Any]
    status: Status
    reason: str | None = None
    metrics: Metrics | None = None

    @property
    def key(self) -> str:
        """Name of the cell's NVTX ranges, and what two runs are joined on."""
        return cell_key(self.operator, self.variant, self.point)

    @property
    def point_key(self) -> tuple[str, str]:
        return self.operator, self.point


class Run(msgspec.Struct, frozen=True):
    path: str
    header: Header
    cells: list[Cell]
    truncated: bool = False


def cell_key(operator: str, variant: str, point: str) -> str:
    return f"{operator}/{variant}/{point}"


def sources_compile(compiled: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether no CUDA source failed for any architecture; ``compiled`` as in the header."""
    return all(result == "ok" for results in compiled.values() for result in results.values())


def label_parts(point: str) -> dict[str, str]:
    """The label of a point taken apart: axis -> value as text, for the axes that are not at their default."""
    return dict(part.split("=", 1) for part in point.split(",") if "=" in part)


class Writer:
    """Appends to one run file; every line reaches the disk before the next cell starts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "xb")  # noqa: SIM115 - lives as long as the run
        except FileExistsError:
            raise RecordError(f"{path} exists already and records are never overwritten; choose another folder with --out") from None
        except OSError as error:
            raise RecordError(f"cannot write {path}: {error.strerror}; choose another folder with --out") from None

    def header(self, header: Header) -> None:
        self._append(header)

    def cell(self, cell: Cell) -> None:
        self._append(cell)

    def _append(self, line: Header | Cell) -> None:
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RecordError(f"cannot write {self.path}: {error.strerror}; what was written before is kept") from None

    def close(self) -> None:
        """Close the file; one to which nothing was written is removed."""
        self._file.close()
        if self.path.stat().st_size == 0:
            self.path.unlink()


def read_run(path: str | Path) -> Run:
    """Read one run file. A torn last line (a killed run) is dropped and reported in ``truncated``."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from None
    decoder = msgspec.json.Decoder(Header | Cell)
    decoded: list[Header | Cell] = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            decoded.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            if number == len(lines) and decoded:
                return Run(str(path), *_split(path, decoded), truncated=True)
            raise RecordError(f"{path}:{number}: not a record of this suite ({error})") from None
    return Run(str(path), *_split(path, decoded))


def _split(path: str | Path, lines: list[Header | Cell]) -> tuple[Header, list[Cell]]:
    if not lines or not isinstance(lines[0], Header):
        raise RecordError(f"{path}: no header in the first line; is it a run of this suite?")
    if lines[0].schema != SCHEMA_VERSION:
        raise RecordError(f"{path}: schema {lines[0].schema}, this suite reads {SCHEMA_VERSION}; record the run again")
    return lines[0], [line for line in lines[1:] if isinstance(line, Cell)]
