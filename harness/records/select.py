"""Selects the records to read, the cells to keep, and the baseline of ratios."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import structs

from spec_decode_bench.harness.errors import did_you_mean
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.schema import Cell, RecordError, Run, axis_texts


class Selector:
    """What ``--only`` keeps, of a sweep, a loop or a record. Globs are alternatives; those that begin with ``!`` leave
    out what they match, whatever else does.
    """

    def __init__(self, globs: Sequence[str]) -> None:
        self._globs = globs
        self._unused = dict.fromkeys(globs)

    def keeps(self, names: Iterable[str]) -> bool:
        """Whether no ``!`` glob matches one of the names, and another glob does, unless all have ``!``."""
        names = tuple(names)
        hits = [glob for glob in self._globs if any(fnmatchcase(name, glob.removeprefix("!")) for name in names)]
        for glob in hits:
            self._unused.pop(glob, None)
        if any(glob.startswith("!") for glob in hits):
            return False
        return bool(hits) or all(glob.startswith("!") for glob in self._globs)

    @property
    def unused(self) -> str | None:
        """The first glob that has matched nothing so far."""
        return next(iter(self._unused), None)


def is_chosen(cell: Cell, only: Sequence[str]) -> bool:
    """Whether ``only`` keeps a cell: by its variant, ``operator/variant``, or its key with or without the axes at their
    defaults.
    """
    if not only:
        return True
    names = (cell.variant, cell.variant_id, cell.key, f"{cell.variant_id}/{every_axis(cell)}")
    return Selector(only).keeps(names)


def every_axis(cell: Cell) -> str:
    """The label of its point with the axes at their defaults."""
    return ",".join(f"{axis}={text}" for axis, text in axis_texts(cell.point, cell.axes).items())


def chosen(run: Run, only: Sequence[str]) -> Run:
    """The run with these cells only."""
    return structs.replace(run, cells=[cell for cell in run.cells if is_chosen(cell, only)])


def with_baseline(runs: Sequence[Run], name: str) -> list[Run]:
    """The runs with ratios to the variant ``name``, for the operators that have it; the others keep their baseline.

    Raises RecordError where no run has such a variant.
    """
    known = {cell.variant for run in runs for cell in run.cells}
    if name not in known:
        raise RecordError(
            f"--baseline {name}: no variant in these records has this name{did_you_mean(name, sorted(known))}"
        )
    operators = {cell.operator for run in runs for cell in run.cells if cell.variant == name}
    return [
        structs.replace(
            run,
            cells=[structs.replace(c, baseline=name) if c.operator in operators else c for c in run.cells],
        )
        for run in runs
    ]


def read_side(path: str | Path) -> tuple[Run, ...]:
    """The records of one side of a comparison, several processes of the same code: a record; of a folder its
    ``*.jsonl`` and its ``*/run.jsonl``, by name.

    Raises RecordError for a folder without any.
    """
    path = Path(path)
    if not path.is_dir():
        return (read_run(path),)
    records = sorted([*path.glob("*.jsonl"), *path.glob("*/run.jsonl")])
    if not records:
        raise RecordError(f"{path}: no record here (*.jsonl or */run.jsonl); give the folder of one or more runs")
    return tuple(map(read_run, records))
