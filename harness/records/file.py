"""Writes and reads record files. Lines are only appended, each on disk before the next one."""

from __future__ import annotations

import fcntl
import itertools
import math
import os
import re
import shlex
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Union

import msgspec
from msgspec import structs

from spec_decode_bench.harness import registry
from spec_decode_bench.harness.checks import Difference
from spec_decode_bench.harness.printable import printable
from spec_decode_bench.harness.records.schema import (
    READABLE_SCHEMAS,
    Cell,
    CheckLine,
    Header,
    Outcome,
    RecordError,
    Run,
    Save,
    Segment,
    UnknownLine,
)

Line = Header | Segment | Outcome
#: What decoding a line may raise; the last comes from brackets nested too deep.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
#: The last field of a line: CRC-32 of all bytes before it.
_CHECKSUM = re.compile(rb',"crc32":"([0-9a-f]{8})"}$')
#: In a line without these all texts are printable: escapes, and characters beyond ASCII.
_NOT_PLAIN = re.compile(rb'\\[^"\\/]|[^\x20-\x7e]')


class Writer:
    """Appends to one run file, and holds a lock on it until it is closed.

    resume: the file exists; an incomplete last line is removed first. Otherwise the file must be new; one without a
            complete first line counts as new.
    resumable: whether the message about one that is there tells how to complete it.
    """

    def __init__(self, path: Path, resume: bool = False, resumable: bool = True) -> None:
        self.path = path
        elsewhere = "" if resume else "; choose another folder with --out"
        self._made_folder = not path.parent.exists()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - lives as long as the run
            try:
                _lock(self._file, path, elsewhere)
                if resume:
                    _end_last_line(self._file, path)
                elif is_empty_record(path):
                    os.truncate(path, 0)
                else:
                    complete = f", or complete it with --resume {shlex.quote(str(path.parent))}" if resumable else ""
                    raise RecordError(f"{path} already exists, and records are never overwritten{elsewhere}{complete}")
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise RecordError(f"cannot write {path}: {error.strerror}{elsewhere}") from None

    def write(self, line: Line | UnknownLine) -> None:
        """Raises RecordError, for example where the disk is full."""
        text = _CHECKSUM.sub(b"}", line.raw) if isinstance(line, UnknownLine) else _encoded(line)
        fields = text.removesuffix(b"}")
        unwritten = memoryview(fields + b',"crc32":"%08x"}\n' % zlib.crc32(fields))
        try:
            while unwritten:
                unwritten = unwritten[self._file.write(unwritten) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RecordError(
                f"cannot write {self.path}: {error.strerror}; what was written before is kept; "
                "make room and complete it with --resume"
            ) from None

    def close(self) -> None:
        """Close the file. An empty one is removed, with its folder if that was made for it."""
        if not self._file.closed and self.path.exists() and self.path.stat().st_size == 0:
            self.path.unlink()
            if self._made_folder:
                with suppress(OSError):  # the folder holds other files by now
                    self.path.parent.rmdir()
        self._file.close()


def content(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from None


def is_empty_record(path: Path) -> bool:
    """Whether the run was killed before its first line was complete, so that there is nothing to resume or to lose.

    Raises RecordError where the file cannot be read.
    """
    read = content(path)
    return not read or (read.startswith(b'{"line":"header"') and b"\n" not in read)


def _lock(file: BinaryIO, path: Path, elsewhere: str) -> None:
    """Keep a second process from writing to the file. The lock ends with the process, however that ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RecordError(f"another run is writing {path}; wait until it ends, or stop it{elsewhere}") from None
    except OSError:
        pass  # a network file system without locks


def _end_last_line(file: BinaryIO, path: Path) -> None:
    """Complete a last line that lacks only its newline, and remove one that is incomplete (the run was killed)."""
    content = path.read_bytes()
    start = content.rfind(b"\n") + 1
    if start == len(content):
        return
    try:
        _decoded(content[start:])
    except UNREADABLE:
        os.truncate(path, start)
    else:
        file.write(b"\n")


def write_run(run: Run, path: Path) -> None:
    """Write a run to a new file."""
    writer = Writer(path)
    try:
        for line in lines_of(run):
            writer.write(line)
    finally:
        writer.close()


def lines_of(run: Run) -> list[Line | UnknownLine]:
    """The lines of a run's file, in order."""
    return [run.header, *run.segments, *run.outcomes, *run.unknown]


def record_path(path: str) -> Path:
    """A record, or run.jsonl in the folder of a run. Raises RecordError for another folder."""
    if not Path(path).is_dir():
        return Path(path)
    record = Path(path) / "run.jsonl"
    if not record.exists():
        raise RecordError(f"{path} has no run.jsonl; give a record, or the folder of one run")
    return record


def read_run(path: str | Path) -> Run:
    """As ``read_record``. Raises RecordError for a record of a verification, too."""
    run = read_record(path)
    if any(isinstance(line, CheckLine) for line in run.others):
        raise RecordError(f"{path} is a record of verify, which has no times")
    return run


def read_record(path: str | Path) -> Run:
    """Read one run file. An incomplete last line (of a killed run) is dropped and noted in ``truncated``.

    Texts are printable in what is returned. Raises RecordError with path and line number.
    """
    lines = content(path).split(b"\n")
    decoded: list[Line] = []
    truncated = False
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        if number == 1:
            _check_schema(path, line)
        try:
            _check_sum(line)
            record_line = _decoded(line)
        except UNREADABLE as error:
            if number == len(lines) and decoded:
                truncated = True
                break
            what = "a damaged line; restore the record from a copy" if decoded else "not a record of this suite"
            raise RecordError(f"{path}:{number}: {what} ({error})") from None
        except ValueError as error:
            raise RecordError(f"{path}:{number}: {error}") from None
        if decoded and isinstance(record_line, Header):
            raise RecordError(f"{path}:{number}: a second header; to combine shards, use bench.py merge")
        decoded.append(record_line)
        for key, settings in record_line.config.items() if isinstance(record_line, Header) else ():
            if settings is not None and key in registry.ROOMS:
                registry.section(key)  # whose lines follow
    if not decoded or not isinstance(decoded[0], Header):
        raise RecordError(f"{path}: the first line is not a header; is it a record of this suite?")
    cells, segments, unknown = (
        [line for line in decoded if isinstance(line, kind)] for kind in (Cell, Segment, UnknownLine)
    )
    others = [line for line in decoded if isinstance(line, Outcome) and not isinstance(line, Cell)]
    return _last_save(Run(str(path), decoded[0], cells, truncated, segments, others, unknown))


def _last_save(run: Run) -> Run:
    """Of a record of --watch the last save with cells, and those before it; any other record as it is."""
    begins = [segment for segment in run.segments if segment.save is not None]
    headers = [run.header, *(_header_of(run.header, segment, segment.save) for segment in begins)]
    bounds = [0, *(segment.process for segment in begins), math.inf]
    if not begins:
        return run
    saves = [
        structs.replace(
            run,
            header=header,
            cells=[cell for cell in run.cells if first <= cell.process < end],
            segments=[segment for segment in run.segments if first < segment.process < end],
        )
        for header, (first, end) in zip(headers, itertools.pairwise(bounds), strict=True)
    ]
    *earlier, last = [save for save in saves if save.cells] or saves[:1]
    return structs.replace(last, earlier=earlier)


def _header_of(first: Header, segment: Segment, save: Save) -> Header:
    """Of a save, as if the record began with it."""
    return structs.replace(
        first,
        started=segment.started,
        environment=segment.environment,
        calibration=segment.calibration,
        uncalibrated=segment.uncalibrated,
        seconds=segment.seconds,
        cells=save.cells,
        variants=save.variants,
        sources=save.sources,
        compiled=save.compiled,
    )


def _line_kinds() -> tuple[type, ...]:
    return (Header, Segment, Cell, CheckLine, *(section.line for section in registry.SECTIONS.values()))


@cache
def _decoder(kinds: tuple[type, ...]) -> msgspec.json.Decoder:
    return msgspec.json.Decoder(Union[kinds])  # noqa: UP007 - of a tuple


def _decoded(line: bytes) -> Line | UnknownLine:
    """Raises one of UNREADABLE."""
    kinds = _line_kinds()
    try:
        if _NOT_PLAIN.search(line) is None and b'"tensor":' not in line:
            return _decoder(kinds).decode(line)
        fields = _with_difference(_shown(msgspec.json.decode(line)))
        return msgspec.convert(fields, Union[kinds], str_keys=True)  # noqa: UP007 - of a tuple
    except msgspec.ValidationError:
        if (kind := _other_kind(line, kinds)) is None:
            raise
        return UnknownLine(kind, line)


def _other_kind(line: bytes, kinds: Sequence[type]) -> str | None:
    """The kind of a line, where it is none of these."""
    fields = msgspec.json.decode(line)
    kind = fields.get("line") if isinstance(fields, dict) else None
    known = [one.__struct_config__.tag for one in kinds]
    return printable(kind) if isinstance(kind, str) and kind not in known else None


def _check_sum(line: bytes) -> None:
    """Raises ValueError for a line that is not as it was written, DecodeError for one that is cut off."""
    match = _CHECKSUM.search(line)
    if match and int(match[1], 16) != zlib.crc32(line[: match.start()]):
        raise ValueError("wrong checksum: damaged, or edited by hand; restore the record from a copy")
    if match is None and line.startswith(b'{"line":') and line.endswith(b"}"):
        msgspec.json.decode(line)  # raises DecodeError where the line is cut off behind an inner brace
        raise ValueError("no checksum: damaged, or edited by hand; restore the record from a copy")


def _encoded(value: Any) -> bytes:
    """As JSON; texts that UTF-8 cannot hold are made printable."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # a lone surrogate, as in a path that is not UTF-8
        return msgspec.json.encode(_shown(msgspec.to_builtins(value)))


def as_recorded(value: Any) -> Any:
    """A value as plain types, as ``read_run`` gives it back."""
    return _shown(msgspec.json.decode(_encoded(value)))


def _shown(value: Any) -> Any:
    """Plain values with every text printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, (list, tuple)):
        return [_shown(inner) for inner in value]
    if isinstance(value, dict):
        return {_shown(name): _shown(inner) for name, inner in value.items()}
    return value


def _with_difference(line: Any) -> Any:
    """A line of any schema as of this one: before 5 a finding had the fields of a Difference itself."""
    finding = line.get("finding") if isinstance(line, dict) else None
    if isinstance(finding, dict) and "tensor" in finding:
        names = finding.keys() & set(Difference.__struct_fields__)
        finding["difference"] = {name: finding.pop(name) for name in names}
    return line


def _check_schema(path: str | Path, line: bytes) -> None:
    """Raises RecordError for the header of another schema, which need not have the fields of this one."""
    try:
        header = msgspec.json.decode(line)
    except UNREADABLE:
        return
    if isinstance(header, dict) and header.get("line") == "header" and header.get("schema") not in READABLE_SCHEMAS:
        raise RecordError(
            f"{path}: schema {header.get('schema')!r}, this suite reads {' and '.join(map(str, READABLE_SCHEMAS))}; "
            "record the run again, or read it with the version that wrote it"
        )
