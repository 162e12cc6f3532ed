"""The cells of a record that globs choose, as ``--only`` of a run does. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from msgspec import structs

from harness.records.schema import Cell, Run, axis_texts


def is_chosen(cell: Cell, only: Sequence[str]) -> bool:
    """Whether a cell matches one of the globs (any cell if all exclude) and none of those with "!" in front: by its
    variant, ``operator/variant``, or its key with or without the axes at their defaults.
    """
    if not only:
        return True
    every_axis = ",".join(f"{axis}={text}" for axis, text in axis_texts(cell.point, cell.axes).items())
    names = (cell.variant, f"{cell.operator}/{cell.variant}", cell.key, f"{cell.operator}/{cell.variant}/{every_axis}")
    hits = [glob for glob in only if any(fnmatchcase(name, glob.removeprefix("!")) for name in names)]
    excluded = any(glob.startswith("!") for glob in hits)
    return not excluded and (bool(hits) or all(glob.startswith("!") for glob in only))


def chosen(run: Run, only: Sequence[str]) -> Run:
    """The run with these cells only; each keeps the segment, and so the calibration, it was timed in."""
    kept = [is_chosen(cell, only) for cell in run.cells]
    cells = [cell for cell, keep in zip(run.cells, kept, strict=True) if keep]
    return structs.replace(run, cells=cells, segments=[(sum(kept[:start]), one) for start, one in run.segments])
