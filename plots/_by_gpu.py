"""A colour per GPU, for figures in which several GPUs share a panel; variants differ in markers then."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from spec_decode_bench.plots._axes import panel_title
from spec_decode_bench.plots._panels import Panel, gpus_of
from spec_decode_bench.plots._style import LABEL_PT, WIDTH_IN, variant_style

#: By Okabe and Ito.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


class GpuStyles:
    """The styles of a figure that shows these panels."""

    def __init__(self, panels: Sequence[Panel]) -> None:
        self._colours = dict(zip(gpus_of(panels), itertools.cycle(COLOURS), strict=False))
        names = dict.fromkeys(name for panel in panels for name in panel.variants())
        marks = itertools.cycle(itertools.product(("full", "none"), MARKERS))
        self._marks = dict(zip(names, marks, strict=False))

    def of(self, panel: Panel, variant: str) -> dict[str, Any]:
        """Keyword arguments of ``Axes.plot``."""
        return self._mark(variant) | {"color": self.colour(panel)}

    def colour(self, panel: Panel) -> str:
        """Grey for a CPU."""
        return self._colours.get(panel.device, "#888888")

    def _mark(self, variant: str) -> dict[str, Any]:
        fill, marker = self._marks[variant]
        return variant_style(variant) | {"marker": marker, "fillstyle": fill}

    def handles(self, variants: Sequence[str]) -> dict[str, Any]:
        """For the legend: the GPUs, then these variants in grey. A mark may follow the name of a variant."""
        gpus = {gpu: Line2D([], [], color=colour, linewidth=3) for gpu, colour in self._colours.items()}
        return gpus | {
            name: Line2D([], [], **(self._mark(name.split()[0]) | {"color": "#555555"})) for name in variants
        }


def title_shared(ax: Axes, group: Sequence[Panel], details: Sequence[str]) -> None:
    """Operator and, where they differ from panel to panel, which points of which GPU are shown."""
    unlike = len(set(details)) > 1
    detail = (
        "; ".join(f"{panel.device}: {one}" for panel, one in zip(group, details, strict=True)) if unlike else details[0]
    )
    width_in = WIDTH_IN / ax.get_gridspec().ncols
    ax.set_title(panel_title(group[0], detail, width_in, where=""), fontsize=LABEL_PT)
