"""Record files: written line by line, each on disk before the next cell starts, never rewritten. Never imports torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from harness.records import SCHEMA_VERSION, Cell, Header, RecordError, Run, Segment

Line = Header | Segment | Cell


class Writer:
    """Appends to one run file. ``resume``: the file exists, and its torn last line, if any, is cut off first."""

    def __init__(self, path: Path, resume: bool = False) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if resume:
                _cut_torn_line(path)
            self._file = open(path, "ab" if resume else "xb")  # noqa: SIM115 - lives as long as the run
        except FileExistsError:
            raise RecordError(
                f"{path} exists already and records are never overwritten; choose another folder with --out, or complete it with --resume"
            ) from None
        except OSError as error:
            raise RecordError(f"cannot write {path}: {error.strerror}; choose another folder with --out") from None

    def write(self, line: Line) -> None:
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


def _cut_torn_line(path: Path) -> None:
    """A line without its newline was under way when the run was killed. What stands before it is whole."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole != len(content):
        os.truncate(path, whole)


def write_run(run: Run, path: Path) -> None:
    """A whole run into a new file."""
    writer = Writer(path)
    try:
        writer.write(run.header)
        segments = dict.fromkeys(range(len(run.cells) + 1), ())
        for start, segment in run.segments:
            segments[start] = (*segments[start], segment)
        for i, cell in enumerate(run.cells):
            for line in (*segments[i], cell):
                writer.write(line)
    finally:
        writer.close()


def read_run(path: str | Path) -> Run:
    """Read one run file. A torn last line (a killed run) is dropped and reported in ``truncated``."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from None
    decoder = msgspec.json.Decoder(Line)
    decoded: list[Line] = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            decoded.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            if number == 1:
                _check_schema(path, line)
            if number == len(lines) and decoded:
                return _run(path, decoded, truncated=True)
            raise RecordError(f"{path}:{number}: not a record of this suite ({error})") from None
    return _run(path, decoded, truncated=False)


def _check_schema(path: str | Path, line: bytes) -> None:
    """A header of another schema need not have the fields of this one; the schema is what to name then."""
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return
    if isinstance(found, dict) and found.get("line") == "header" and found.get("schema") != SCHEMA_VERSION:
        raise RecordError(f"{path}: schema {found.get('schema')}, this suite reads {SCHEMA_VERSION}; record the run again")


def _run(path: str | Path, lines: Sequence[Line], truncated: bool) -> Run:
    if not lines or not isinstance(lines[0], Header):
        raise RecordError(f"{path}: no header in the first line; is it a run of this suite?")
    if lines[0].schema != SCHEMA_VERSION:
        raise RecordError(f"{path}: schema {lines[0].schema}, this suite reads {SCHEMA_VERSION}; record the run again")
    cells: list[Cell] = []
    segments: list[tuple[int, Segment]] = []
    for line in lines[1:]:
        if isinstance(line, Cell):
            cells.append(line)
        elif isinstance(line, Segment):
            segments.append((len(cells), line))
    return Run(str(path), lines[0], cells, truncated, segments)
