"""Figures of recorded runs, one per module: ``figure(runs)``, None where the runs hold nothing to draw. They read
records only and never import torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spec_decode_bench.harness.records.schema import Run

os.environ["MPLBACKEND"] = "agg"  # figures go into files only, and matplotlib refuses to load with an unknown one

#: The figures of a set of runs. plots.regression draws a comparison of two.
FIGURES = (
    "latency",
    "speedup",
    "roofline",
    "itl_tpot",
    "generations",
    "calibration",
    "loop_delta",
    "loop_itl",
    "loop_model_step",
    "loop_timeline",
)


_ROOM_OF = {name: "decode_loop." for name in FIGURES if name.startswith("loop_")}
#: Those that can draw several GPUs in one panel.
BY_GPU = ("latency", "itl_tpot")


def draw_all(
    runs: Sequence[Run],
    folder: Path,
    by: str = "panel",
    figures: Sequence[str] = FIGURES,
    beside: Sequence[Run] = (),
) -> list[Path]:
    """Draw these figures into ``folder``; the paths of the files written.

    by:     "panel" draws each GPU in panels of its own, "gpu" in a colour of its own in the figures of BY_GPU.
    beside: recorded runs to draw in panels of their own, in the figures for which ``runs`` hold something.
    """
    from spec_decode_bench.plots._style import name_recorded, save

    written = []
    for name in figures:
        module, options = (
            import_module(f"spec_decode_bench.{_ROOM_OF.get(name, '')}plots.{name}"),
            {"by": by} if name in BY_GPU else {},
        )
        drawn = module.figure(runs, **options)
        if drawn and beside:
            drawn = module.figure([*runs, *beside], **options)
            name_recorded(drawn, beside)
        written += save(drawn, Path(folder) / name) if drawn else []
    return written
