"""Figures over recorded runs. Each module draws one: ``draw(runs, stem)`` writes stem.png and stem.svg and returns the
paths, or [] where the runs hold nothing for it. They read records only; no torch, and matplotlib only once something
is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.records.schema import Run

#: The figures that any set of runs may have. plots.regression needs a pair of runs and stands apart.
FIGURES = ("latency", "speedup", "itl_tpot", "calibration")


def draw_all(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Every figure of FIGURES into ``folder``, named after it; only the files that were written are returned."""
    return [path for name in FIGURES for path in import_module(f"plots.{name}").draw(runs, Path(folder) / name)]
