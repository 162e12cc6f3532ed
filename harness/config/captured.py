"""Grids ``capture: FILE``: a point for each entry of a capture file that is legal for its operator.

Such a point has, beside the values of all axes, under the key ``capture``

    name:  ``llama_eagle@1200``: file and step; ``llama_eagle@1200.1`` where the engine called the operator again in it
    file:  as the configuration gives it
    crc32: of the entry, so that records of another file of this name are not taken for the same
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from spec_decode_bench.harness.config.load import CONFIGS, LoadedConfig
from spec_decode_bench.harness.contract import CAPTURE, Operator, Point
from spec_decode_bench.harness.errors import CaptureError, did_you_mean, first_line

if TYPE_CHECKING:
    from spec_decode_bench.harness.captures import Capture, Entry

#: Of the suite's own captures; ``configs/captures/NAME`` names them in any folder.
SHIPPED = CONFIGS / "captures"


@dataclass(frozen=True)
class CapturedPoint:
    """One entry: its point, or why it has none."""

    entry: Entry
    point: Point | None = None
    reason: str = ""


def path_of(file: str) -> Path:
    """Of the file that a configuration names: relative to the working directory, or the suite's own."""
    shipped = SHIPPED / Path(file).name
    is_shipped = file == f"configs/captures/{shipped.name}" and not Path(file).exists() and shipped.exists()
    return shipped if is_shipped else Path(file)


def is_capture(file: str) -> bool:
    """Whether a name is that of a capture file that can be read."""
    from spec_decode_bench.harness.captures import MAGIC

    try:
        with open(path_of(file), "rb") as opened:
            return opened.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


def read(file: str) -> Capture:
    """The capture that a configuration names. Raises CaptureError."""
    path = path_of(file)
    try:
        status = path.stat()
    except OSError as error:
        where = "" if path.is_absolute() else "; paths are relative to the working directory"
        raise CaptureError(f"{file}: cannot be read: {error.strerror}{where}") from None
    return _read(path, path.resolve(), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _read(path: Path, *version: Path | int) -> Capture:
    from spec_decode_bench.harness.captures import read_capture

    return read_capture(path)


def entry_of(operator: str, capture: Mapping[str, Any]) -> Entry:
    """What a captured point of an operator refers to. Raises CaptureError where the file has no such entry any more."""
    names = _named(read(capture["file"]))
    entry = next((entry for entry, name in names if (entry.operator, name) == (operator, capture["name"])), None)
    if entry is None or entry.crc32 != capture["crc32"]:
        raise CaptureError(f"{capture['file']}: has changed since {capture['name']} of {operator} was planned")
    return entry


def _named(capture: Capture) -> Iterator[tuple[Entry, str]]:
    """The entries with their names, which are unique for each operator."""
    calls: dict[tuple[str, int], int] = {}
    stem = quote(Path(capture.path).stem, safe="._- ~")
    for entry in capture.entries:
        call = calls[entry.operator, entry.step] = calls.get((entry.operator, entry.step), -1) + 1
        yield entry, f"{stem}@{entry.step}" + (f".{call}" if call else "")


def points_of(file: str, operators: Mapping[str, Operator]) -> list[CapturedPoint]:
    """All entries of a file, in its order, as points. Raises CaptureError."""
    return [_point(file, entry, name, operators) for entry, name in _named(read(file))]


def _point(file: str, entry: Entry, name: str, operators: Mapping[str, Operator]) -> CapturedPoint:
    if entry.operator not in operators:
        return CapturedPoint(entry, reason="this suite has no such operator")
    operator = operators[entry.operator]
    axes = {axis.name: axis for axis in operator.axes}
    try:
        values = {}
        for axis, value in entry.axes.items():
            if axis not in axes:
                return CapturedPoint(entry, reason=f"no axis {axis!r}{did_you_mean(axis, list(axes))}")
            try:
                values[axis] = axes[axis].parse(value)
            except Exception as error:  # a parse= such as int raises TypeError as well
                message = error if isinstance(error, ValueError) else first_line(error)
                return CapturedPoint(entry, reason=f"{axis} {message}, got {value!r}")
        point = operator.complete(values)
        if (rule := operator.broken_rule(point)) is not None:
            return CapturedPoint(entry, reason=rule.message.format_map(point))
    except Exception as error:  # defaults and rules of an operator may be a user's code
        return CapturedPoint(entry, reason=f"cannot make a point of its axes: {first_line(error)}")
    return CapturedPoint(entry, Point({**point, CAPTURE: {"name": name, "file": file, "crc32": entry.crc32}}))


def expanded(source: LoadedConfig, g: int, operators: Mapping[str, Operator]) -> Iterator[tuple[Operator, Point]]:
    """The points of grid ``g``, which has the key ``capture``. operators: of the configuration. Raises ConfigError."""
    grid = source.config.sweep[g]
    if other := next((name for name in grid if name != CAPTURE), None):
        raise source.error(f"sweep[{g}].{other}", "the axes of captured points are in their file; use another grid")
    for key, file in _files(source, g):
        try:
            captured = points_of(file, operators)
        except CaptureError as error:
            raise source.error(key, str(error)) from None
        held = dict.fromkeys(one.entry.operator for one in captured)
        if not operators.keys() & held.keys():
            what = f"has inputs of {', '.join(held)}, not of these operators" if held else "holds no whole entry"
            raise source.error(key, "; ".join([f"{file} {what}", *read(file).problems]))
        for one in captured:
            if one.point is not None:
                yield operators[one.entry.operator], one.point


def _files(source: LoadedConfig, g: int) -> list[tuple[str, str]]:
    """(key path, file) of a grid. Raises ConfigError."""
    key, value = f"sweep[{g}].{CAPTURE}", source.config.sweep[g][CAPTURE]
    files = {f"{key}[{i}]": file for i, file in enumerate(value)} if isinstance(value, list) else {key: value}
    if not files:
        raise source.error(key, "is empty: give at least one file")
    for place, file in files.items():
        if not isinstance(file, str):
            raise source.error(place, f"must be the path of a capture file, got {file!r}")
    return list(files.items())


def check_names(source: LoadedConfig) -> None:
    """Raises ConfigError where the keys of two files could not be told apart."""
    named: dict[str, str] = {}
    for g, grid in enumerate(source.config.sweep):
        for key, file in _files(source, g) if CAPTURE in grid else ():
            if (other := named.setdefault(Path(file).stem, file)) != file:
                raise source.error(key, f"{other} and {file} have the same name in keys; rename one")


def left_out(source: LoadedConfig, operators: Mapping[str, Operator]) -> list[str]:
    """Sentences about the entries of a sweep's captures that give no point. operators: all of the catalog."""
    files = {file for g, grid in enumerate(source.config.sweep) if CAPTURE in grid for _, file in _files(source, g)}
    chosen = source.config.operators
    return [sentence for file in sorted(files) for sentence in told(file, points_of(file, operators), chosen)]


def told(file: str, captured: Sequence[CapturedPoint], chosen: Collection[str] | None = None) -> list[str]:
    """What is to be known of a file: entries that could not be read, and those that give no point, by reason.

    chosen: operators whose entries are meant; all without it.
    """
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in captured:
        if one.point is None and (chosen is None or one.entry.operator in chosen):
            reasons.setdefault((one.entry.operator, one.reason), []).append(str(one.entry.step))
    texts = [
        f"{operator} at {'step' if len(steps) == 1 else 'steps'} {', '.join(steps)}: {reason}"
        for (operator, reason), steps in reasons.items()
    ]
    lines = [f"{file}: {problem}" for problem in read(file).problems]
    if texts:
        count = sum(map(len, reasons.values()))
        lines.append(f"{file}: {count} of {len(captured)} entries left out: {'; '.join(texts)}")
    return lines
