"""Speed-up over the baseline: a table per operator and device, with a row per point and a column per variant.

The ratio is median(baseline) / median(variant) within one run: of gpu_us on a GPU, of cpu_us on a CPU. The baseline's
column shows its time. At points where it has none, the others show their times; an operator whose baseline has none at
all, such as a chain that cannot be captured, is left out. A hatched box has neither, and a short reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from spec_decode_bench.harness.numbers import significant
from spec_decode_bench.harness.records.schema import Run
from spec_decode_bench.plots._axes import panel_title
from spec_decode_bench.plots._panels import by_operator, known_failures_caption, panels, runs_of
from spec_decode_bench.plots._speedup_table import MEANINGS, SpeedupRow, SpeedupTable, speedup_table
from spec_decode_bench.plots._style import LABEL_PT, SMALL_PT, WIDTH_IN, environment_caption, finish, new_figure

ROW_IN, TITLE_LINE_IN, LINE_IN, GAP_IN, COLORBAR_IN = 0.2, 0.14, 0.13, 0.2, 0.6
#: Widths in inches: of a letter at SMALL_PT, of the narrowest box that fits its text, of the narrowest title.
LETTER_IN, MIN_BOX_IN, MIN_TITLE_IN = 0.06, 0.48, 2.2
#: Blue is faster, red slower, white is 1x; can be read with every common colour vision deficiency.
COLORMAP = "RdBu"
#: log2 of the smallest ratio that gets the full colour, so that small differences look small.
MIN_SPAN = 2.0
#: Tables with more rows have a row per batch size instead of per point; of one table, and of all of a figure together.
MAX_ROWS, MAX_ROWS_OF_ALL = 60, 240


def figure(runs: Sequence[Run]) -> Figure | None:
    """None where no run has a timed baseline."""
    groups = by_operator(panels(runs))
    found = [panel for group in groups for panel in group]
    max_rows = min(MAX_ROWS, max(12, MAX_ROWS_OF_ALL // max(1, len(found))))
    of_all = [speedup_table(panel, max_rows) for panel in found]
    tables = [one for one in of_all if any(row.ratios for row in one.rows)]
    if not tables:
        return None
    bands = _bands(tables, beside=any(len(group) > 1 for group in groups))
    heights = [
        max(_header_in(band, one) for one in band) + ROW_IN * max(len(one.rows) for one in band) for band in bands
    ]
    title = "Speed-up over the baseline (grey): ratio of medians of the GPU time (on a CPU: wall time)"
    fig = new_figure(0.4 + sum(heights) + COLORBAR_IN, title)
    grid = fig.add_gridspec(len(bands) + 1, 1, height_ratios=[*heights, COLORBAR_IN / 3])
    logs = [abs(math.log2(ratio)) for one in tables for row in one.rows for ratio in row.ratios.values()]
    norm = Normalize(-max([MIN_SPAN, *logs]), max([MIN_SPAN, *logs]))
    mappable = ScalarMappable(norm, COLORMAP)
    for number, band in enumerate(bands):
        # One per band, so that long labels in one do not narrow the others.
        inside = grid[number].subgridspec(1, len(band))
        for column, one in enumerate(band):
            _draw_table(fig.add_subplot(inside[column]), band, one, mappable)
    _draw_colorbar(fig, fig.add_subplot(grid[-1]), mappable)
    used = {row.reasons.get(name) for one in of_all for row in one.rows for name in one.columns}
    meanings = [f"{reason}: {meaning}" for reason, meaning in MEANINGS.items() if reason in used]
    if any(row.times for one in tables for row in one.rows):
        meanings.append("a time instead of a ratio: the baseline was not timed there")
    left_out = [
        f"left out: {panel.operator}, whose baseline {panel.baseline} has no time ({row.reasons[panel.baseline]})"
        for panel, row in ((one.panel, one.rows[0]) for one in of_all if one not in tables)
    ]
    known_failures = known_failures_caption(found).rstrip("\n")
    lines = ["; ".join(meanings), *left_out, known_failures, environment_caption(runs_of(found))]
    return finish(fig, {}, "\n".join(filter(None, lines)), runs_of(found))


def _bands(tables: Sequence[SpeedupTable], beside: bool = False) -> list[list[SpeedupTable]]:
    """Tables from the top down, two side by side if the boxes of both stay wide enough: of the same device and cache
    state, or, with ``beside``, of the same operator on two GPUs.
    """
    bands: list[list[SpeedupTable]] = []
    for one in tables:
        pair = [*bands[-1], one] if bands else [one]
        kinds = {(other.panel.operator, other.panel.cache) if beside else other.panel.taken_on for other in pair}
        fit = all(_box_in(pair, other) >= MIN_BOX_IN and _broken_names(pair, other) for other in pair)
        if len(pair) == 2 and len(kinds) == 1 and fit:
            bands[-1] = pair
        else:
            bands.append([one])
    return bands


def _boxes_in(band: Sequence[SpeedupTable]) -> float:
    """Width for the boxes of each table of a band, beside the row labels of all."""
    labels_in = sum(
        LETTER_IN * max(len(text) for text in (*one.axes, *(row.label for row in one.rows))) + 0.2 for one in band
    )
    return (WIDTH_IN - labels_in) / len(band)


def _box_in(band: Sequence[SpeedupTable], one: SpeedupTable) -> float:
    return _boxes_in(band) / len(one.columns)


def _broken_names(band: Sequence[SpeedupTable], one: SpeedupTable) -> list[str] | None:
    """Variant names broken at underscores; None where they are still too wide for their columns."""
    names = [one.panel.marked(name).replace("_", "_\n") for name in one.columns]
    longest = max(len(part) for name in names for part in name.split("\n"))
    return names if (longest + 1) * LETTER_IN < _box_in(band, one) else None


def _title(band: Sequence[SpeedupTable], one: SpeedupTable) -> str:
    return panel_title(one.panel, one.mean, max(_boxes_in(band), MIN_TITLE_IN))


def _header_in(band: Sequence[SpeedupTable], one: SpeedupTable) -> float:
    """Height above the boxes: the title, and the variant names, which are slanted where they cannot be broken."""
    broken = _broken_names(band, one)
    names_in = (
        LINE_IN * (1 + max(name.count("\n") for name in broken)) if broken else LETTER_IN * max(map(len, one.columns))
    )
    return GAP_IN + TITLE_LINE_IN * (1 + _title(band, one).count("\n")) + max(LINE_IN * len(one.axes), names_in)


def _draw_table(ax: Axes, band: Sequence[SpeedupTable], one: SpeedupTable, mappable: ScalarMappable) -> None:
    """The axes are as high as the tallest table of the band, so that all boxes have the same height."""
    height, columns = max(len(other.rows) for other in band), one.columns
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_ylim(height - 0.5, -0.5)
    ax.spines[:].set_visible(False)
    for y, row in enumerate(one.rows):
        for x, variant in enumerate(columns):
            _draw_box(ax, x, y, one.panel.baseline, variant, row, mappable)
    broken = _broken_names(band, one)
    labels = (
        {"labels": broken}
        if broken
        else {"labels": [one.panel.marked(c) for c in columns], "rotation": 60, "ha": "left", "rotation_mode": "anchor"}
    )
    ax.set_xticks(range(len(columns)), **labels, fontsize=SMALL_PT)
    ax.set_yticks(range(len(one.rows)), [row.label for row in one.rows], fontsize=SMALL_PT, family="monospace")
    ax.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    over_the_labels = {
        "xycoords": "axes fraction",
        "textcoords": "offset points",
        "xytext": (-4, 3),
        "ha": "right",
        "va": "bottom",
    }
    ax.annotate(" ·\n".join(one.axes), (0, 1), **over_the_labels, fontsize=SMALL_PT)
    ax.set_title(_title(band, one), fontsize=LABEL_PT)


def _draw_box(ax: Axes, x: int, y: int, baseline: str, variant: str, row: SpeedupRow, mappable: ScalarMappable) -> None:
    ratio = row.ratios.get(variant)
    face, ink, text, hatch = "white", "#555555", row.reasons.get(variant, ""), "////"
    if variant == baseline and ratio is not None:
        face, text, hatch = "#f2f2f2", f"{significant(row.baseline_us)} µs", None
    elif variant in row.times:
        text, hatch = f"{significant(row.times[variant])} µs", None
    elif ratio is not None:
        red, green, blue, _ = face = mappable.to_rgba(np.log2(ratio))
        ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
        text, hatch = f"{significant(ratio)}×", None
    edge = "#d8d8d8" if hatch else "white"
    box = ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor=edge, hatch=hatch, linewidth=1))
    # A white plate keeps the reason legible on the hatching.
    plate = {"facecolor": "white", "edgecolor": "none", "pad": 1} if hatch else None
    label = ax.text(x, y, text, ha="center", va="center", fontsize=SMALL_PT, color=ink, bbox=plate)
    box.set_in_layout(False)  # all inside the axes: the layout need not measure hundreds of boxes
    label.set_in_layout(False)


def _draw_colorbar(fig: Figure, ax: Axes, mappable: ScalarMappable) -> None:
    """With powers of two as ticks, the same number on both sides of 1x."""
    top = int(mappable.norm.vmax)
    step = 1 if top < 7 else math.ceil(top / 4)
    exponents = range(-(top // step) * step, top + 1, step)
    bar = fig.colorbar(mappable, cax=ax, orientation="horizontal", ticks=list(exponents))
    bar.ax.set_xticklabels([f"{2**e}×" if e >= 0 else f"1/{2**-e}×" for e in exponents], fontsize=SMALL_PT)
    bar.set_label("speed-up over the baseline (slower ← 1× → faster)", fontsize=LABEL_PT)
