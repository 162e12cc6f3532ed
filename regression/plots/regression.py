"""A comparison: a forest plot of head / base, first of each variant, then the cells that broke, with the reason, then
those that changed or are unsure.

The verdicts are those of regression/comparison.py.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from spec_decode_bench.harness.analysis.stats import Interval
from spec_decode_bench.harness.numbers import counted, signed
from spec_decode_bench.harness.packages import project
from spec_decode_bench.harness.records.schema import Run, axis_texts, label_parts, split_key
from spec_decode_bench.plots._style import commit, finish, machine, new_figure, save
from spec_decode_bench.regression.comparison import VERDICTS, CellComparison, Comparison, Summary, Verdict

#: 1170 px at the resolution of ``save``, the width of an image in a pull request.
WIDTH_IN = 7.8
#: Rows at most, and the height: two screens of 900 px at a width of 880 px.
MAX_CELLS, MAX_MEANS, MAX_BROKEN, MAX_IN = 40, 30, 8, 15.0
LABEL_CHARACTERS = 50
#: Of the reason why a cell broke: letters a line, and lines.
REASON_CHARACTERS, REASON_LINES = 46, 4
LINE_IN, GAP_IN, AROUND_IN = 0.135, 0.06, 0.5
TEXT_PT, NOTE_PT, TITLE_PT = 7.5, 6.5, 9.5

#: Shape and colour (Okabe-Ito) both show the verdict; arrow heads point to where the cell moved.
MARKS = {
    "slower": {"color": "#D55E00", "marker": ">", "markerfacecolor": "#D55E00"},
    "faster": {"color": "#0072B2", "marker": "<", "markerfacecolor": "#0072B2"},
    "same": {"color": "#777777", "marker": "o", "markerfacecolor": "#777777"},
    "unsure": {"color": "#B07500", "marker": "D", "markerfacecolor": "white"},
}
#: The colour of what failed on one side.
BROKEN = "#B00020"
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
    """An entry of the plot: a variant or a cell with its change, or a heading, without one.

    right: text beside the plot. reason: inside the plot, why a cell broke.
    """

    label: str
    ratio: Interval | None = None
    verdict: Verdict = "same"
    right: str = ""
    mean: bool = False
    reason: str = ""

    @property
    def height_in(self) -> float:
        return LINE_IN * (1 + max(self.label.count("\n"), self.reason.count("\n"))) + GAP_IN


def _wrapped(text: str) -> str:
    """A label in several lines."""
    return "\n".join(textwrap.wrap(text, LABEL_CHARACTERS, break_on_hyphens=False))


def draw(comparison: Comparison, path_stem: Path) -> list[Path]:
    """Write the plot as PNG and SVG; [] where there is nothing to draw."""
    cells = comparison.gating_cells
    several = len(comparison.gating) > 1
    means = [*_summary_lines(comparison, several), *_broken_lines(comparison)]
    if not (cells or means):
        return []
    urgent = sorted(cells, key=_urgency)
    drawn = _that_fit([cell for cell in urgent if cell.verdict != "same"], means, several)
    lines = [*means, *_lines(drawn, several)]
    height_in = sum(line.height_in for line in lines)
    figure = new_figure(height_in + AROUND_IN, width_in=WIDTH_IN)
    axes = figure.add_subplot()
    _forest(axes, lines, height_in, comparison)
    sides = "head against base" if comparison.pair is None else f"{comparison.pair[1]} against {comparison.pair[0]}"
    axes.set_xlabel(
        f"change of {', '.join(comparison.gating)}, {sides}, % (log scale; right is slower)", fontsize=TEXT_PT
    )
    handles = [Line2D([], [], markersize=5, linewidth=1.2, label=verdict, **MARKS[verdict]) for verdict in VERDICTS]
    figure.legend(
        handles=handles,
        title=textwrap.fill(_title(comparison), 95),
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(handles),
        alignment="left",
        title_fontproperties={"size": TITLE_PT, "weight": "bold"},
        fontsize=TEXT_PT,
        frameon=False,
    )
    return save(finish(figure, {}, _notes(comparison, cells, drawn), (*comparison.base, *comparison.head)), path_stem)


def _urgency(one: CellComparison | Summary) -> tuple[int, float]:
    return URGENCY.index(one.verdict), -abs(math.log(one.ratio.median))


def _summary_lines(comparison: Comparison, several: bool) -> list[Line]:
    """A row for each variant, grouped by operator as the record has them; the larger changes where not all fit."""
    found = [one for one in comparison.summaries if one.metric in comparison.gating]
    kept = sorted(found, key=_urgency)[:MAX_MEANS]
    more = f" ({len(found) - len(kept)} more variants changed less)" if len(found) > len(kept) else ""
    lines = [Line(f"geometric mean of a variant{more}")] if found else []
    for one in found:
        if one in kept:
            words = [f"{one.operator} / {one.variant}", *([one.metric] if several else [])]
            right = f"{signed((one.ratio.median - 1) * 100, 'z.1f')} % · {counted(one.cells, 'cell')}"
            lines.append(Line(_wrapped("  ".join(words)), one.ratio, one.verdict, right, mean=True))
    return lines


def _broken_lines(comparison: Comparison) -> list[Line]:
    """Cells that failed on one side or are no longer timed, with the reason; the first MAX_BROKEN of each."""
    groups = {
        "broken: passed in base, wrong or failing in head": [(one, one.head) for one in comparison.broken],
        "no longer timed in head": [(one, one.head) for one in comparison.untimed],
        "fixed: wrong or failing in base, passed in head": [(one, one.base) for one in comparison.fixed],
    }
    lines = []
    for heading, transitions in groups.items():
        lines += [Line(heading)] if transitions else []
        for one, state in transitions[:MAX_BROKEN]:
            operator, variant, point = split_key(one.key)
            axes = ", ".join(f"{axis}={value}" for axis, value in label_parts(point).items())
            reason = textwrap.wrap(f"× {state}", REASON_CHARACTERS, max_lines=REASON_LINES, placeholder=" …")
            lines.append(Line(_wrapped(f"{operator} / {variant}  {axes}"), reason="\n".join(reason)))
    return lines


def _that_fit(cells: Sequence[CellComparison], means: Sequence[Line], several: bool) -> list[CellComparison]:
    """As many of the first cells as stay within MAX_IN together with the variants, at most MAX_CELLS."""

    def height(count: int) -> float:
        return sum(line.height_in for line in [*means, *_lines(cells[:count], several)]) + AROUND_IN

    count = min(len(cells), MAX_CELLS)
    while count and height(count) > MAX_IN:
        count -= 1
    return list(cells[:count])


def _lines(cells: Sequence[CellComparison], several: bool) -> list[Line]:
    """Operators by their most urgent cell, and their cells likewise. A row names the batch size and what is not as in
    most rows of its operator; the heading names that. several: whether labels name the metric.
    """
    operators: dict[str, list[CellComparison]] = {}
    for cell in sorted(cells, key=_urgency):
        operators.setdefault(cell.operator, []).append(cell)
    lines = []
    for operator, members in operators.items():
        named = dict.fromkeys(axis for cell in members for axis in label_parts(cell.point))
        texts = [axis_texts(cell.point, cell.axes) or label_parts(cell.point) for cell in members]
        parts = [[f"{axis}={one[axis]}" for axis in named if axis in one] for one in texts]
        usual = [Counter(one[axis] for one in texts if axis in one).most_common(1)[0][0] for axis in named]
        varies = "batch_size" in named and len({one.get("batch_size") for one in texts}) > 1
        shared = [f"{axis}={value}" for axis, value in zip(named, usual, strict=True)]
        shared = [part for part in shared if not (varies and part.startswith("batch_size="))]
        otherwise = "unless a row says otherwise: " if any(part not in own for own in parts for part in shared) else ""
        lines.append(Line("\n".join(filter(None, [operator, _wrapped(otherwise + ", ".join(shared))]))))
        for cell, own in zip(members, parts, strict=True):
            values = ", ".join(part for part in own if part not in shared)
            words = filter(None, [cell.variant, cell.metric if several else "", values])
            below = " (small)" if cell.below_min_change and cell.verdict in ("slower", "faster") else ""
            right = " → ".join(cell.texts) + below
            lines.append(Line(_wrapped("  ".join(words)), cell.ratio, cell.verdict, right))
    return lines


def _forest(axes: Axes, lines: Sequence[Line], height_in: float, comparison: Comparison) -> None:
    """y: inches from the top, since labels differ in their number of lines. x: logarithm of the ratio."""
    threshold = comparison.threshold
    sides = "base → head, µs" if comparison.pair is None else f"{' → '.join(comparison.pair)}, µs"
    axes.axvspan(math.log(1 - threshold), math.log(1 + threshold), color="#E4E4E4", linewidth=0, zorder=0)
    axes.axvline(0, color="#999999", linewidth=0.8, zorder=1)
    text = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": TEXT_PT}
    small = text | {"fontsize": NOTE_PT, "color": "#555555"}
    top = 0.0
    named = False
    for line, following in zip(lines, [*lines[1:], None], strict=True):
        middle = top + line.height_in / 2
        if line.reason:
            axes.text(-0.015, middle, line.label, ha="right", **text)
            axes.text(0.01, middle, line.reason, ha="left", **small | {"color": BROKEN})
        elif line.ratio is None:
            axes.axhline(top, color="#BBBBBB", linewidth=0.6, zorder=1)
            heading, *shared = line.label.split("\n")
            axes.text(-0.015, top + (LINE_IN + GAP_IN) / 2, heading, ha="right", weight="bold", **text)
            axes.text(-0.015, middle + LINE_IN / 2, "\n".join(shared), ha="right", **small)
            if top and not named and following.ratio is not None:
                axes.text(1.015, top + (LINE_IN + GAP_IN) / 2, sides, ha="left", **small)
                named = True
        else:
            axes.text(-0.015, middle, line.label, ha="right", **text)
            axes.text(1.015, middle, line.right, ha="left", **text)
            _mark(axes, line, middle)
        top += line.height_in
    axes.set_ylim(height_in, 0)
    axes.set_yticks([])
    axes.spines[["left", "right", "top"]].set_visible(False)
    _percent_axis(axes, [line.ratio for line in lines if line.ratio], threshold)


def _mark(axes: Axes, line: Line, y: float) -> None:
    style = MARKS[line.verdict]
    width = 3.0 if line.mean else 1.4
    if not math.isnan(line.ratio.low):
        bounds = [math.log(line.ratio.low), math.log(line.ratio.high)]
        axes.plot(bounds, [y, y], color=style["color"], linewidth=width, zorder=2, solid_capstyle="butt")
    axes.plot([math.log(line.ratio.median)], [y], linestyle="", markersize=6 if line.mean else 5, zorder=3, **style)


def _percent_axis(axes: Axes, ratios: Sequence[Interval], threshold: float) -> None:
    """The range of all changes, and at least twice the band, so that small changes look small. An interval much longer
    than that is cut at the frame.
    """
    changes = [math.log(one.median) for one in ratios]
    least = 2 * max(math.log1p(threshold), -math.log1p(-threshold))
    low, high = min([*changes, -least]), max([*changes, least])
    room = 0.5 * (high - low)
    bounds = [bound for one in ratios if not math.isnan(one.low) for bound in (math.log(one.low), math.log(one.high))]
    low, high = (
        min([low, *(max(bound, low - room) for bound in bounds)]),
        max([high, *(min(b, high + room) for b in bounds)]),
    )
    low, high = low - (high - low) * 0.04, high + (high - low) * 0.04
    axes.set_xlim(low, high)
    ticks = _even_ticks(low, high) if high - low < SHORT else _round_ticks(low, high)
    axes.set_xticks(
        [math.log1p(tick / 100) for tick in ticks],
        [signed(tick, ".6g") if tick else "0" for tick in ticks],
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
    outcome = {"regression": "Regression", "fine": "No regression", "could not tell": "Could not tell"}
    words = ", ".join([*broken, *(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)])
    subject = outcome[comparison.outcome] if comparison.pair is None else " against ".join(reversed(comparison.pair))
    return f"{subject}: {words}"


def _notes(comparison: Comparison, cells: Sequence[CellComparison], drawn: Sequence[CellComparison]) -> str:
    left_out = Counter(cell.verdict for cell in cells) - Counter(cell.verdict for cell in drawn)
    left_out.pop("same", None)
    of_one_side = {"broken": comparison.broken, "no longer timed": comparison.untimed, "fixed": comparison.fixed}
    not_drawn = [f"{number} more {verdict}" for verdict, number in left_out.items()]
    not_drawn += [f"{len(of) - MAX_BROKEN} more {what}" for what, of in of_one_side.items() if len(of) > MAX_BROKEN]
    observation = "round" if comparison.unit == "round" else "process"
    small_us = f"{comparison.rule.min_change_us:g} µs"
    small = any(cell.below_min_change and cell.verdict in ("slower", "faster") for cell in drawn)
    return "\n".join(
        [
            *(f"{why[0].upper()}{why[1:]}." for why in comparison.unclear if comparison.outcome == "could not tell"),
            *([f"Not drawn: {', '.join(not_drawn)}."] if not_drawn else []),
            f"Bar: interval that holds for all cells together; a {observation} is one observation. "
            f"Band: ±{comparison.threshold * 100:.3g} %." + (f" Small: below {small_us}." if small else ""),
            *(
                [_described("base", comparison.base), _described("head", comparison.head)]
                if comparison.pair is None
                else [_described("run", comparison.head)]
            ),
        ]
    )


def _described(side: str, runs: Sequence[Run]) -> str:
    environment = runs[0].header.environment
    wraps = [f"{project(name)} {environment.package(name)}" for name in environment.packages]
    several = [f"{len(runs)} processes"] if len(runs) > 1 else []
    return " · ".join([f"{side}: {runs[0].header.name}", *wraps, machine(environment), commit(environment), *several])
