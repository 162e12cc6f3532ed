"""Figures of recorded runs, one per module: ``figure(runs)``, None where the runs hold nothing to draw. They read
records only and never import torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from spec_decode_bench.harness import registry

if TYPE_CHECKING:
    from spec_decode_bench.harness.records.schema import Run

os.environ["MPLBACKEND"] = "agg"  # figures go into files only, and matplotlib refuses to load with an unknown one

#: The figures of a set of runs, beside those that rooms register for their lines.
FIGURES = tuple(
    f"spec_decode_bench.plots.{name}"
    for name in ("latency", "speedup", "roofline", "itl_tpot", "generations", "calibration")
)
#: Those that can draw several GPUs in one panel.
BY_GPU = ("latency", "itl_tpot")


def draw_all(
    runs: Sequence[Run],
    folder: Path,
    by: str = "panel",
    figures: Sequence[str] | None = None,
    beside: Sequence[Run] = (),
) -> list[Path]:
    """Draw figures into ``folder``; the paths of the files written.

    figures: names of some; None for all.
    by:     "panel" draws each GPU in panels of its own, "gpu" in a colour of its own in the figures of BY_GPU.
    beside: recorded runs to draw in panels of their own, in the figures for which ``runs`` hold something.
    """
    from spec_decode_bench.plots._style import name_recorded, save

    written = []
    sections = {section.key: section for run in runs if (section := registry.section_of(run))}
    for path in (*FIGURES, *(figure for section in sections.values() for figure in section.figures)):
        name = path.rpartition(".")[2]
        if figures is not None and name not in figures:
            continue
        module, options = import_module(path), {"by": by} if name in BY_GPU else {}
        drawn = module.figure(runs, **options)
        if drawn and beside:
            drawn = module.figure([*runs, *beside], **options)
            name_recorded(drawn, beside)
        written += save(drawn, Path(folder) / name) if drawn else []
    return written
