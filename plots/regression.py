"""A comparison of two runs: a forest plot of head / base per cell, with intervals, threshold and verdicts.

The verdicts are those of harness/analysis/compare.py.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.analysis.compare import CORRELATED, VERDICTS, CellComparison, Comparison
from harness.records.schema import Run
from plots._style import DPI, caption, commit, machine, mark_uncalibrated, save

#: 1170 px at the resolution of ``save``, the width of an image in a pull request.
WIDTH_IN = 7.8
MAX_CELLS = 40
#: A larger change comes from a damaged record and would make the axis useless for the others.
MAX_RATIO = 1e6
LABEL_CHARACTERS = 50
LINE_IN, GAP_IN, AROUND_IN = 0.135, 0.06, 1.15
TEXT_PT, NOTE_PT, TITLE_PT = 7.5, 6.5, 9.5

#: Shape and colour (Okabe-Ito) both show the verdict; arrow heads point to where the cell moved.
MARKS = {
    "slower": {"color": "#D55E00", "marker": ">", "markerfacecolor": "#D55E00"},
    "faster": {"color": "#0072B2", "marker": "<", "markerfacecolor": "#0072B2"},
    "same": {"color": "#777777", "marker": "o", "markerfacecolor": "#777777"},
    "unsure": {"color": "#B07500", "marker": "D", "markerfacecolor": "white"},
}
#: Which cells are drawn first where not all can be.
URGENCY = ("slower", "faster", "unsure", "same")
#: An axis shorter than SHORT (log units) has ticks at even steps in per cent. A longer one has them at MULTIPLES, the
#: rounder ones first, as long as they do not overlap.
SHORT, MAX_TICKS = 0.6, 9
STEPS = (0.5, 1, 2, 5, 10, 20)
MULTIPLES = tuple(
    multiple * 10.0**power
    for multiples in ((1,), (2, 5), (1.5, 3, 4, 7), (1.2, 8))
    for power in range(-6, 7)
    for multiple in multiples
)


@dataclass(frozen=True)
class Line:
    """An entry of the plot: a cell with its label, or the heading of an operator, without a cell.

    lines: number of text lines in the label.
    """

    label: str
    lines: int
    cell: CellComparison | None


def draw(comparison: Comparison, path_stem: Path) -> list[Path]:
    """Write the plot as PNG and SVG; [] where no gating figure has a ratio to draw, as when every cell broke."""
    cells = [cell for cell in comparison.gating_cells if 1 / MAX_RATIO <= cell.ratio.median <= MAX_RATIO]
    if not cells:
        return []
    drawn = sorted(cells, key=lambda cell: (URGENCY.index(cell.verdict), -abs(math.log(cell.ratio.median))))[:MAX_CELLS]
    lines = _lines(drawn, several=len(comparison.gating) > 1)
    height_in = sum(line.lines * LINE_IN + GAP_IN for line in lines)
    figure = Figure(figsize=(WIDTH_IN, height_in + AROUND_IN), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _forest(axes, lines, height_in, comparison.threshold)
    axes.set_xlabel(
        f"change of {', '.join(comparison.gating)}, head against base, % (log scale; right is slower)", fontsize=TEXT_PT
    )
    handles = [Line2D([], [], markersize=5, linewidth=1.2, label=verdict, **MARKS[verdict]) for verdict in VERDICTS]
    figure.legend(
        handles=handles,
        title=_title(comparison),
        loc="outside upper left",
        ncols=len(handles),
        alignment="left",
        title_fontproperties={"size": TITLE_PT, "weight": "bold"},
        fontsize=TEXT_PT,
        frameon=False,
    )
    caption(figure, _notes(comparison, cells, drawn))
    mark_uncalibrated(figure, (comparison.base, comparison.head))
    return save(figure, path_stem)


def _lines(cells: Sequence[CellComparison], several: bool) -> list[Line]:
    """Operators by their worst cell, and their cells from worst to best. Axis values that all cells of an operator
    share are in its heading. several: whether labels name the figure.
    """
    operators: dict[str, list[CellComparison]] = {}
    for cell in sorted(cells, key=lambda cell: -cell.ratio.median):
        operators.setdefault(cell.operator, []).append(cell)
    lines = []
    for operator, members in operators.items():
        parts = [re.split(r",(?=\w+=)", cell.point) for cell in members]
        shared = [part for part in parts[0] if all(part in others for others in parts)]
        heading = [operator, *textwrap.wrap(", ".join(shared), LABEL_CHARACTERS, break_on_hyphens=False)]
        lines.append(Line("\n".join(heading), len(heading), None))
        for cell, own in zip(members, parts, strict=True):
            words = [
                cell.variant,
                *([cell.figure] if several else []),
                ", ".join(part for part in own if part not in shared),
            ]
            label = textwrap.wrap("  ".join(word for word in words if word), LABEL_CHARACTERS, break_on_hyphens=False)
            lines.append(Line("\n".join(label), len(label), cell))
    return lines


def _forest(axes: Axes, lines: Sequence[Line], height_in: float, threshold: float) -> None:
    """y: inches from the top, since labels differ in their number of lines. x: logarithm of the ratio."""
    axes.axvspan(math.log(1 - threshold), math.log(1 + threshold), color="#E4E4E4", linewidth=0, zorder=0)
    axes.axvline(0, color="#999999", linewidth=0.8, zorder=1)
    text = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": TEXT_PT}
    top = 0.0
    for line in lines:
        middle = top + (line.lines * LINE_IN + GAP_IN) / 2
        if line.cell is None:
            axes.axhline(top, color="#BBBBBB", linewidth=0.6, zorder=1)
            operator, *shared = line.label.split("\n")
            axes.text(-0.015, top + (LINE_IN + GAP_IN) / 2, operator, ha="right", weight="bold", **text)
            axes.text(
                -0.015,
                middle + LINE_IN / 2,
                "\n".join(shared),
                ha="right",
                **(text | {"fontsize": NOTE_PT, "color": "#555555"}),
            )
        else:
            axes.text(-0.015, middle, line.label, ha="right", **text)
            axes.text(1.015, middle, " → ".join(line.cell.texts), ha="left", **text)
            _mark(axes, line.cell, middle)
        top += line.lines * LINE_IN + GAP_IN
    axes.text(
        1.015,
        (LINE_IN + GAP_IN) / 2,
        "base → head, µs",
        ha="left",
        **(text | {"fontsize": NOTE_PT, "color": "#555555"}),
    )
    axes.set_ylim(height_in, 0)
    axes.set_yticks([])
    axes.spines[["left", "right", "top"]].set_visible(False)
    _percent_axis(axes, [line.cell for line in lines if line.cell], threshold)


def _mark(axes: Axes, cell: CellComparison, y: float) -> None:
    style = MARKS[cell.verdict]
    if not math.isnan(cell.ratio.low):
        bounds = [math.log(cell.ratio.low), math.log(cell.ratio.high)]
        axes.plot(bounds, [y, y], color=style["color"], linewidth=1.4, zorder=2)
    axes.plot([math.log(cell.ratio.median)], [y], linestyle="", markersize=5, zorder=3, **style)


def _percent_axis(axes: Axes, cells: Sequence[CellComparison], threshold: float) -> None:
    """The range of all intervals, and at least twice the band, so that small changes look small."""
    bounds = [bound for cell in cells for bound in (cell.ratio.median, cell.ratio.low, cell.ratio.high)]
    ratios = [bound for bound in bounds if not math.isnan(bound)]
    low, high = math.log(min(*ratios, 1 - 2 * threshold)), math.log(max(*ratios, 1 + 2 * threshold))
    low, high = low - (high - low) * 0.04, high + (high - low) * 0.04
    axes.set_xlim(low, high)
    ticks = _even_ticks(low, high) if high - low < SHORT else _round_ticks(low, high)
    axes.set_xticks(
        [math.log1p(tick / 100) for tick in ticks],
        [f"{tick:+.6g}".replace("-", "−") if tick else "0" for tick in ticks],
        fontsize=TEXT_PT,
    )
    axes.grid(axis="x", color="#EEEEEE", linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)


def _even_ticks(low: float, high: float) -> list[float]:
    least, greatest = math.expm1(low) * 100, math.expm1(high) * 100
    step = next(step for step in STEPS if (greatest - least) / step <= MAX_TICKS)
    return [step * count for count in range(math.ceil(least / step), math.floor(greatest / step) + 1)]


def _round_ticks(low: float, high: float) -> list[float]:
    kept: list[float] = []
    for tick in (math.log(multiple) for multiple in MULTIPLES):
        if low <= tick <= high and all(abs(tick - other) > (high - low) / MAX_TICKS for other in kept):
            kept.append(tick)
    return [math.expm1(tick) * 100 for tick in kept]


def _title(comparison: Comparison) -> str:
    counts = comparison.counts(*comparison.gating)
    broken = [f"{len(comparison.broken)} broken"] if comparison.broken else []
    return ", ".join([*broken, *(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)])


def _notes(comparison: Comparison, cells: Sequence[CellComparison], drawn: Sequence[CellComparison]) -> str:
    left_out = Counter(cell.verdict for cell in cells) - Counter(cell.verdict for cell in drawn)
    cannot_be_drawn = {
        "broken": len(comparison.broken),
        "no longer timed": len(comparison.untimed),
        "without a ratio that can be drawn": len(comparison.gating_cells) - len(cells),
    }
    not_drawn = [f"{number} more {verdict}" for verdict, number in left_out.items()]
    not_drawn += [f"{number} {what}" for what, number in cannot_be_drawn.items() if number]
    band = f"±{comparison.threshold * 100:g} %"
    return "\n".join(
        [
            *([f"Not drawn: {', '.join(not_drawn)}."] if not_drawn else []),
            f"Point: ratio of medians. Bar: 95 % bootstrap interval. Band: {band}. {CORRELATED}",
            _described("base", comparison.base),
            _described("head", comparison.head),
        ]
    )


def _described(side: str, run: Run) -> str:
    environment = run.header.environment
    return f"{side}: {run.header.name} · {machine(environment)} · {commit(environment)}"
