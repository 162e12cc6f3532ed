"""What globs choose, as ``--only`` has them: of a sweep, a loop, or the cells of a record. Never imports torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

from msgspec import structs

from harness.records.schema import Cell, Run, axis_texts


def matching(globs: Iterable[str], names: Collection[str]) -> set[str]:
    """The globs that, without their ``!``, fit one of the names of something."""
    return {glob for glob in globs if any(fnmatchcase(name, glob.removeprefix("!")) for name in names)}


def kept(globs: Sequence[str], hits: Collection[str]) -> bool:
    """Whether to keep something that ``hits`` of the globs match: one without ``!`` matches it, or all globs have one;
    and no glob with ``!`` matches it.
    """
    return not any(one.startswith("!") for one in hits) and (bool(hits) or all(one.startswith("!") for one in globs))


def is_chosen(cell: Cell, only: Sequence[str]) -> bool:
    """Whether a cell matches one of the globs (any cell if all exclude) and none of those with "!" in front: by its
    variant, ``operator/variant``, or its key with or without the axes at their defaults.
    """
    if not only:
        return True
    every_axis = ",".join(f"{axis}={text}" for axis, text in axis_texts(cell.point, cell.axes).items())
    names = (cell.variant, f"{cell.operator}/{cell.variant}", cell.key, f"{cell.operator}/{cell.variant}/{every_axis}")
    return kept(only, matching(only, names))


def chosen(run: Run, only: Sequence[str]) -> Run:
    """The run with these cells only; each keeps the segment, and so the calibration, it was timed in."""
    kept = [is_chosen(cell, only) for cell in run.cells]
    cells = [cell for cell, keep in zip(run.cells, kept, strict=True) if keep]
    return structs.replace(run, cells=cells, segments=[(sum(kept[:start]), one) for start, one in run.segments])
