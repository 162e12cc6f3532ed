"""Speed-up over the operator chain as a heat map: a row per point, a column per variant, a panel per operator and device.

The ratio is median(baseline) / median(variant) within one run: of gpu_us on a GPU, of cpu_us on a CPU. The baseline's own
column shows its time. A hatched box has no ratio, and a word says why.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from harness.records import Run
from plots._axes import plain, title_panel
from plots._panels import panels, runs_of
from plots._rows import Row, Table, table
from plots._style import LABEL_PT, SMALL_PT, TITLE_PT, WIDTH_IN, caption, environment_caption, new_figure, save

ROW_IN, HEADER_IN, COLORBAR_IN = 0.2, 1.05, 0.6
#: Blue is faster, red slower; the map is safe for colour blind readers and its middle, 1x, is white.
COLORMAP = "RdBu"
#: Wider tables get the full width of the figure.
COLUMNS_IN_HALF_WIDTH = 6


def draw(runs: Sequence[Run], stem: Path) -> list[Path]:
    """Write stem.png and stem.svg; [] where no run has a timed cell."""
    drawn = figure(runs)
    return save(drawn, stem) if drawn else []


def figure(runs: Sequence[Run]) -> Figure | None:
    found = panels(runs)
    if not found:
        return None
    tables = [table(panel) for panel in found]
    side_by_side = 1 if max(len(one.columns) for one in tables) > COLUMNS_IN_HALF_WIDTH else 2
    bands = [tables[i : i + side_by_side] for i in range(0, len(tables), side_by_side)]
    heights = [HEADER_IN + ROW_IN * max(len(one.rows) for one in band) for band in bands]
    fig = new_figure(0.4 + sum(heights) + COLORBAR_IN)
    fig.suptitle("Speed-up over the operator chain: ratio of medians of the GPU time (on a CPU: wall time)", fontsize=TITLE_PT)
    grid = fig.add_gridspec(len(bands) + 1, side_by_side, height_ratios=[*heights, COLORBAR_IN / 3])
    logs = [abs(math.log2(ratio)) for one in tables for row in one.rows for ratio in row.ratios.values()]
    norm = Normalize(-max([1.0, *logs]), max([1.0, *logs]))
    mappable = ScalarMappable(norm, COLORMAP)
    for number, band in enumerate(bands):
        for column, one in enumerate(band):
            _draw_table(fig.add_subplot(grid[number, column]), one, max(len(other.rows) for other in band), mappable)
    _draw_colorbar(fig, fig.add_subplot(grid[-1, :]), mappable)
    caption(fig, environment_caption(runs_of(found)))
    return fig


def _draw_table(ax: Axes, one: Table, height: int, mappable: ScalarMappable) -> None:
    """``height``: rows of the tallest table beside this one, so that boxes are equally high."""
    columns = one.columns
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_ylim(height - 0.5, -0.5)
    ax.spines[:].set_visible(False)
    for y, row in enumerate(one.rows):
        for x, variant in enumerate(columns):
            _draw_box(ax, x, y, one.panel.baseline, variant, row, mappable)
    width_in = 0.75 * WIDTH_IN / ax.get_gridspec().ncols / len(columns)
    broken = ["_\n".join(name.split("_")) for name in columns]
    fits = max(len(part) for name in broken for part in name.split("\n")) * 0.075 < width_in
    ax.set_xticks(range(len(columns)), broken if fits else columns, fontsize=SMALL_PT, rotation=0 if fits else 60, ha="center" if fits else "left")
    ax.set_yticks(range(len(one.rows)), [row.label for row in one.rows], fontsize=SMALL_PT)
    ax.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes_shown = textwrap.fill(" · ".join(one.axes), max(12, int(height * ROW_IN * 13)))
    ax.set_ylabel(axes_shown, fontsize=SMALL_PT, y=1 - len(one.rows) / height / 2)
    title_panel(ax, one.panel, f"geometric mean over all points of a {one.axes[0]}" if one.thinned else "")


def _draw_box(ax: Axes, x: int, y: int, baseline: str, variant: str, row: Row, mappable: ScalarMappable) -> None:
    ratio = row.ratios.get(variant)
    face, ink, text, hatch = "white", "#555555", row.words.get(variant, ""), "////"
    if variant == baseline and row.baseline_us is not None:
        face, text, hatch = "#f2f2f2", f"{_three_digits(row.baseline_us)} µs", None
    elif ratio is not None:
        red, green, blue, _ = face = mappable.to_rgba(np.log2(ratio))
        ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
        text, hatch = f"{_three_digits(ratio)}×", None
    ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor="white" if hatch is None else "#d8d8d8", hatch=hatch, linewidth=1))
    plate = {"facecolor": "white", "edgecolor": "none", "pad": 1} if hatch else None  # keeps the word legible on the hatching
    ax.text(x, y, text, ha="center", va="center", fontsize=SMALL_PT, color=ink, bbox=plate)


def _three_digits(value: float) -> str:
    return plain(round(value)) if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _draw_colorbar(fig: Figure, ax: Axes, mappable: ScalarMappable) -> None:
    """Powers of two as ticks, the same number on both sides of 1x."""
    top = int(mappable.norm.vmax)
    exponents = range(-top, top + 1, 1 if top < 7 else 2)
    bar = fig.colorbar(mappable, cax=ax, orientation="horizontal", ticks=list(exponents))
    bar.ax.set_xticklabels([f"{2**e}×" if e >= 0 else f"1/{2**-e}×" for e in exponents], fontsize=SMALL_PT)
    bar.set_label("speed-up over the operator chain (slower ← 1× → faster)", fontsize=LABEL_PT)
