"""What globs choose, as ``--only`` has them: of a sweep, a loop, or the cells of a record. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from msgspec import structs

from harness.records.schema import Cell, Run, axis_texts


class Selector:
    """Globs are alternatives; those that begin with ``!`` leave out what they match, whatever else does."""

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
    every_axis = ",".join(f"{axis}={text}" for axis, text in axis_texts(cell.point, cell.axes).items())
    names = (cell.variant, f"{cell.operator}/{cell.variant}", cell.key, f"{cell.operator}/{cell.variant}/{every_axis}")
    return Selector(only).keeps(names)


def chosen(run: Run, only: Sequence[str]) -> Run:
    """The run with these cells only; each keeps the segment, and so the calibration, it was timed in."""
    kept = [is_chosen(cell, only) for cell in run.cells]
    cells = [cell for cell, keep in zip(run.cells, kept, strict=True) if keep]
    return structs.replace(run, cells=cells, segments=[(sum(kept[:start]), one) for start, one in run.segments])
