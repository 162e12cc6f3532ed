"""What another GPU changes, operator by operator: GPU time of one call, and modelled change of ITL, at one batch size.

For runs of several GPU models. A row shows the baseline and one other variant, the same on every GPU: the one with the
lowest geometric mean. The ITL is that of harness/analysis/itl_tpot.py, left out where the runs model different servers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from harness.analysis.itl_tpot import Delta, ServingModel, delta, described, serving_model_of
from harness.analysis.stats import geometric_mean, median_us
from harness.records.schema import Run
from harness.wording import signed, significant
from plots._axes import plain, round_numbers
from plots._by_gpu import GpuStyles
from plots._panels import Panel, PointCells, by_operator, known_failures_caption, panels, runs_of
from plots._style import (
    LABEL_PT,
    TITLE_PT,
    caption,
    environment_caption,
    legend_below,
    mark_uncalibrated,
    new_figure,
)

#: The points shown are those with the number of requests that is nearest to this one.
REQUESTS = 128
#: Inches of a GPU's line, and between two operators.
LINE_IN, GAP_IN = 0.17, 0.2


@dataclass(frozen=True)
class _Row:
    """One operator at one point on every GPU that has it. points: by panel."""

    panels: Sequence[Panel]
    points: Sequence[PointCells]
    variant: str

    def us(self, variant: str) -> list[float]:
        """gpu_us of a variant on each GPU."""
        return [median_us(point.cells[variant], "gpu_us") for point in self.points]

    @property
    def baseline(self) -> str:
        return self.panels[0].baseline

    @property
    def name(self) -> str:
        one = self.panels[0]
        cache = "" if one.cache == "hot" else f", {one.cache} cache"
        return f"{one.operator}{cache}\n{one.marked(self.baseline)} → {one.marked(self.variant)}"


def figure(runs: Sequence[Run]) -> Figure | None:
    """None unless two GPU models have times of a variant and its baseline at one point."""
    found = panels(runs)
    rows = [row for group in by_operator(found) if len(group) > 1 and (row := _row(group)) is not None]
    if not rows:
        return None
    shown = [panel for row in rows for panel in row.panels]
    styles, model = GpuStyles(found), _model(runs_of(shown))
    lines = sum(len(row.panels) for row in rows)
    fig = new_figure(1.0 + LINE_IN * lines + GAP_IN * len(rows))
    title = "What another GPU changes: time of one call" + (" and modelled ITL" if model else "")
    fig.suptitle(f"{title}, by operator", fontsize=TITLE_PT)
    axes = fig.subplots(1, 2 if model else 1, sharey=True, width_ratios=(3, 2) if model else None, squeeze=False)[0]
    _draw_times(axes[0], rows, styles)
    if model:
        _draw_itl(axes[1], rows, styles, model)
    for ax in axes:
        for y in _boundaries(rows):
            ax.axhline(y, color="#dddddd", linewidth=0.6)
    handles = styles.handles([]) | {
        "baseline": Line2D([], [], color="#555555", marker="o", fillstyle="none", linestyle="none"),
        "fastest other variant": Line2D([], [], color="#555555", marker="o", linestyle="none"),
    }
    legend_below(fig, handles)
    notes = [*_itl_notes(model, shown), *_point_notes(rows), known_failures_caption(shown)]
    caption(fig, "\n".join([*filter(None, notes), environment_caption(runs_of(shown))]))
    mark_uncalibrated(fig, runs_of(shown))
    return fig


def _itl_notes(model: ServingModel | None, shown: Sequence[Panel]) -> list[str]:
    """The model; and the CPUs, as another host may change the ITL more than another GPU."""
    if model is None:
        return []
    notes = [f"ITL: {described(model)}; 95 % bootstrap intervals"]
    if model.scheduling == "sync":
        hosts = {(panel.device, run.header.environment.processor) for panel in shown for run in runs_of([panel])}
        named = "; ".join(f"{gpu}: {processor}" for gpu, processor in sorted(hosts))
        notes.append(f"eager_us holds the host's time to launch, on {named}")
    return notes


def _point_notes(rows: Sequence[_Row]) -> list[str]:
    """A line for each point."""
    operators: dict[str, list[str]] = {}
    for row in rows:
        operators.setdefault(row.points[0].label, []).append(row.panels[0].operator)
    return [f"{label}: {', '.join(dict.fromkeys(names))}" for label, names in operators.items()]


def _row(group: Sequence[Panel]) -> _Row | None:
    """None where the GPUs have no point in common at which the baseline and another variant were timed."""
    by_label = [{point.label: point for point in panel.points} for panel in group]
    found = []
    for label, first in by_label[0].items():
        points = [of_gpu[label] for of_gpu in by_label if label in of_gpu]
        timed = set(first.timed("gpu_us")).intersection(*(point.timed("gpu_us") for point in points))
        if len(points) == len(group) and group[0].baseline in timed and len(timed) > 1:
            found.append(points)
    if not found:
        return None
    points = min(found, key=lambda of_gpus: abs(math.log(of_gpus[0].axes.get("batch_size", REQUESTS) / REQUESTS)))
    means = {
        name: geometric_mean([median_us(point.cells[name], "gpu_us") for point in points])
        for name in points[0].timed("gpu_us")
        if name != group[0].baseline and all(name in point.timed("gpu_us") for point in points)
    }
    return _Row(group, points, min(means, key=means.__getitem__))


def _model(runs: Sequence[Run]) -> ServingModel | None:
    """The model of all runs; None where they have several, or one has none."""
    models = {serving_model_of(run.header) for run in runs}
    return models.pop() if len(models) == 1 else None


def _places(rows: Sequence[_Row]) -> list[list[float]]:
    """Inches below the top: a line for each GPU of each row."""
    places, y = [], GAP_IN / 2
    for row in rows:
        places.append([y + LINE_IN * (i + 0.5) for i in range(len(row.panels))])
        y += LINE_IN * len(row.panels) + GAP_IN
    return places


def _boundaries(rows: Sequence[_Row]) -> list[float]:
    return [ys[-1] + LINE_IN / 2 + GAP_IN / 2 for ys in _places(rows)[:-1]]


def _draw_times(ax: Axes, rows: Sequence[_Row], styles: GpuStyles) -> None:
    """A number is the time of the variant, and how much longer it takes than on the first GPU of the row."""
    places = _places(rows)
    for row, ys in zip(rows, places, strict=True):
        before, after = row.us(row.baseline), row.us(row.variant)
        for panel, y, slow, fast in zip(row.panels, ys, before, after, strict=True):
            style = {"color": styles.colour(panel), "marker": "o", "markersize": 5}
            ax.plot([fast, slow], [y, y], color=styles.colour(panel), linewidth=1.3, zorder=1.5)
            ax.plot(slow, y, **style, markerfacecolor="white")
            ax.plot(fast, y, **style)
            beside = "" if panel is row.panels[0] else f"{signed(100 * (fast / after[0] - 1), '.0f')} %   "
            _number(ax, f"{beside}{significant(fast)}", fast, y)
    times = [us for row in rows for name in (row.baseline, row.variant) for us in row.us(name)]
    ticks = round_numbers(min(times), max(times))
    ax.set_xscale("log")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(ticks, [plain(tick) for tick in ticks], fontsize=LABEL_PT)
    ax.set_xlim(min(times) / 1.2 / (max(times) / min(times)) ** 0.3, 1.2 * max(times))  # room for the numbers
    ax.set_yticks([sum(ys) / len(ys) for ys in places], [row.name for row in rows], fontsize=LABEL_PT)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(places[-1][-1] + (LINE_IN + GAP_IN) / 2, 0)
    ax.grid(True, axis="x", color="#e6e6e6", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.set_xlabel("GPU time per call (µs)", fontsize=LABEL_PT)


def _draw_itl(ax: Axes, rows: Sequence[_Row], styles: GpuStyles, model: ServingModel) -> None:
    lowest = 0.0
    for row, ys in zip(rows, _places(rows), strict=True):
        found = [delta(model, point.cells[row.baseline], point.cells[row.variant]) for point in row.points]
        if not any(found):
            why = "prefill" if row.points[0].cells[row.variant].phase == "prefill" else "not timed"
            _number(ax, why, 0, sum(ys) / len(ys), color="#555555")
            continue
        for panel, y, one in zip(row.panels, ys, found, strict=True):
            if one is not None:
                _bar(ax, y, one, styles.colour(panel))
                lowest = min(lowest, one.percent.low)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.margins(x=0.05)
    ax.set_xlim(left=1.45 * lowest)  # room for the numbers
    ax.tick_params(axis="x", labelsize=LABEL_PT)
    ax.tick_params(axis="y", length=0)
    ax.grid(True, axis="x", color="#e6e6e6", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.set_xlabel("modelled change of ITL (%)", fontsize=LABEL_PT)


def _bar(ax: Axes, y: float, change: Delta, colour: str) -> None:
    percent = change.percent
    error = [[percent.median - percent.low], [percent.high - percent.median]]
    ax.barh(y, percent.median, height=0.8 * LINE_IN, color=colour, xerr=error, error_kw={"linewidth": 0.8})
    _number(ax, f"{signed(percent.median, '.1f')} %", min(percent.low, 0), y)


def _number(ax: Axes, text: str, x: float, y: float, **style: Any) -> None:
    """To the left of what it belongs to."""
    at = {"xytext": (-6, 0), "textcoords": "offset points", "ha": "right", "va": "center"}
    ax.annotate(text, (x, y), **at, fontsize=LABEL_PT, **style)
