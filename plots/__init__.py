"""Figures of recorded runs, one per module: ``draw(runs, stem)`` writes stem.png and stem.svg and returns their paths,
or [] where the runs hold nothing to draw. They read records only and never import torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.records.schema import Run

os.environ["MPLBACKEND"] = "agg"  # figures go into files only, and matplotlib refuses to load with an unknown one

#: The figures of a set of runs. plots.regression draws a comparison of two.
FIGURES = (
    "latency",
    "speedup",
    "itl_tpot",
    "calibration",
    "loop_delta",
    "loop_itl",
    "loop_model_step",
    "loop_timeline",
)


def draw_all(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Draw every figure of FIGURES into ``folder``; the paths of the files written."""
    return [path for name in FIGURES for path in import_module(f"plots.{name}").draw(runs, Path(folder) / name)]
