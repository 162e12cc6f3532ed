"""What another GPU changes, operator by operator: GPU time of one call, and modelled change of ITL.

For runs of several GPU models. A row shows the baseline and one other variant, the same on every GPU, at one point;
what a GPU has no time of stays blank. The ITL is modelled (harness/analysis/itl_tpot.py) with async scheduling, however
the runs were configured: with sync scheduling it would tell hosts apart rather than GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator
from msgspec.structs import replace

from spec_decode_bench.harness.analysis.itl_tpot import Delta, delta, serving_model_of
from spec_decode_bench.harness.analysis.stats import QUEUED, geometric_mean, median_us
from spec_decode_bench.harness.numbers import signed, significant
from spec_decode_bench.harness.records.schema import Run
from spec_decode_bench.plots._axes import plain, round_numbers
from spec_decode_bench.plots._panels import (
    GpuStyles,
    Panel,
    PointCells,
    by_operator,
    known_failures_caption,
    panels,
    runs_of,
)
from spec_decode_bench.plots._style import LABEL_PT, SMALL_PT, environment_caption, finish, new_figure

#: The points shown are those with the number of requests that is nearest to this one.
REQUESTS = 128
#: Inches of a GPU's line, and between two operators.
LINE_IN, GAP_IN = 0.17, 0.13


@dataclass(frozen=True)
class _Row:
    """An operator at one point. times: GPU -> gpu_us of baseline and variant. deltas: GPU -> change of ITL."""

    panel: Panel
    variant: str
    label: str
    times: Mapping[str, tuple[float, float]]
    deltas: Mapping[str, Delta]

    @property
    def name(self) -> str:
        one = self.panel
        cache = "" if one.cache == "hot" else f", {one.cache} cache"
        return f"{one.operator}{cache}\n{one.marked(one.baseline)} → {one.marked(self.variant)}"


def figure(runs: Sequence[Run]) -> Figure | None:
    """None unless two GPU models have times of one operator."""
    found = [panel for panel in panels(runs) if panel.metric == "gpu_us"]
    rows = [row for group in by_operator(found) if (row := _row(group)) is not None]
    if not any(len(row.times) > 1 for row in rows):
        return None
    rows.sort(key=lambda row: -geometric_mean([before for before, _ in row.times.values()]))
    styles = GpuStyles(found)
    colours = {panel.device: styles.colour(panel) for panel in found}
    row_in = LINE_IN * len(colours) + GAP_IN
    title = f"What another GPU changes, at the batch size nearest to {REQUESTS}"
    fig = new_figure(0.9 + row_in * len(rows), title)
    columns = 2 if any(row.deltas for row in rows) else 1
    axes = fig.subplots(1, columns, sharey=True, width_ratios=(5, 3)[:columns], squeeze=False)[0]
    for draw, ax in zip((_draw_times, _draw_itl), axes, strict=False):
        draw(ax, rows, colours)
        ax.tick_params(axis="x", labelsize=LABEL_PT)
        ax.tick_params(axis="y", labelsize=LABEL_PT, length=0)
        ax.grid(True, axis="x", color="#e6e6e6", linewidth=0.6)
        ax.set_axisbelow(True)
        for i in range(1, len(rows)):
            ax.axhline(row_in * i, color="#cccccc", linewidth=0.6)
    axes[0].set_yticks([row_in * (i + 0.5) for i in range(len(rows))], [row.name for row in rows])
    axes[0].set_ylim(row_in * len(rows), 0)
    dot = {"color": "#555555", "marker": "o", "linestyle": "none"}
    dots = {"baseline": Line2D([], [], **dot, fillstyle="none"), "fastest other variant": Line2D([], [], **dot)}
    notes = [f"in brackets: against {next(iter(colours))}"]
    if columns == 2:
        notes.append(f"ITL: modelled from {QUEUED}, async scheduling, calls per step as configured; 95 % intervals")
    for label in dict.fromkeys(row.label for row in rows):
        notes.append(f"{label}: {', '.join(row.panel.operator for row in rows if row.label == label)}")
    text = "\n".join([*notes, known_failures_caption(found) + environment_caption(runs_of(found))])
    return finish(fig, styles.handles([]) | dots, text, runs_of(found))


def _row(group: Sequence[Panel]) -> _Row | None:
    """The point that most GPUs have, of these the nearest to REQUESTS, of these the one with the fewest axes away from
    their defaults; and the variant that most of them have there, of these the fastest. None where no GPU has times of
    the baseline and another variant.
    """
    panel, by_label = group[0], {}
    for of_gpu in group:
        for point in of_gpu.points:
            timed = point.timed("gpu_us")
            if panel.baseline in timed and len(timed) > 1:
                by_label.setdefault(point.label, {})[of_gpu.device] = point
    if not by_label:
        return None

    def rank(label: str) -> tuple[int, float, int]:
        requests = next(iter(by_label[label].values())).axes.get("batch_size", REQUESTS)
        return -len(by_label[label]), abs(requests - REQUESTS), label.count(",")

    label = min(by_label, key=rank)
    times: dict[str, dict[str, float]] = {}
    for gpu, point in by_label[label].items():
        for name in point.timed("gpu_us"):
            times.setdefault(name, {})[gpu] = median_us(point.cells[name], "gpu_us")
    before = times.pop(panel.baseline)
    variant = min(times, key=lambda name: (-len(times[name]), geometric_mean([*times[name].values()])))
    both = {gpu: (before[gpu], after) for gpu, after in times[variant].items()}
    deltas = {gpu: _delta(by_label[label][gpu], panel.baseline, variant) for gpu in both}
    return _Row(panel, variant, label, both, {gpu: one for gpu, one in deltas.items() if one})


def _delta(point: PointCells, baseline: str, variant: str) -> Delta | None:
    model = serving_model_of(point.run.header)
    return model and delta(replace(model, scheduling="async"), point.cells[baseline], point.cells[variant])


def _heights(row: int, gpus: Collection[str]) -> dict[str, float]:
    """GPU -> inches below the top."""
    top = row * (LINE_IN * len(gpus) + GAP_IN) + GAP_IN / 2
    return {gpu: top + LINE_IN * (i + 0.5) for i, gpu in enumerate(gpus)}


def _draw_times(ax: Axes, rows: Sequence[_Row], colours: Mapping[str, str]) -> None:
    """The numbers are left of the faster end of a line and right of the other one."""
    first = next(iter(colours))
    for i, row in enumerate(rows):
        for gpu, ends in row.times.items():
            y = _heights(i, colours)[gpu]
            ax.plot(ends, [y, y], color=colours[gpu], linewidth=1.3, marker="o", markersize=5)
            ax.plot(ends[0], y, color=colours[gpu], marker="o", markersize=5, markerfacecolor="white")
            for which, us in enumerate(ends):
                text = significant(us)
                if gpu != first and first in row.times:
                    text += f" ({signed(100 * (us / row.times[first][which] - 1), '.0f')} %)"
                _number(ax, text, us, y, right=us > ends[1 - which])
    every = [us for row in rows for ends in row.times.values() for us in ends]
    low, high = min(every), max(every)
    ticks = round_numbers(low, high)
    room = max(high / low, 10) ** 0.33  # for the numbers
    ax.set_xscale("log")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(ticks, [plain(tick) for tick in ticks])
    ax.set_xlim(low / room, high * room)
    ax.set_xlabel("GPU time per call (µs)", fontsize=LABEL_PT)


def _draw_itl(ax: Axes, rows: Sequence[_Row], colours: Mapping[str, str]) -> None:
    for i, row in enumerate(rows):
        heights = _heights(i, colours)
        if not row.deltas:
            prefill = any(cell.phase == "prefill" for cell in row.panel.points[0].cells.values())
            _number(ax, "in prefill only" if prefill else "not timed", 0, sum(heights.values()) / len(heights))
        for gpu, change in row.deltas.items():
            itl, y = change.itl_us, heights[gpu]
            error = {"xerr": [[itl.median - itl.low], [itl.high - itl.median]], "error_kw": {"linewidth": 0.8}}
            ax.barh(y, itl.median, 0.8 * LINE_IN, color=colours[gpu], **error)
            _number(ax, signed(itl.median), min(itl.low, 0), y)
    ax.axvline(0, color="black", linewidth=0.8)
    low, high = ax.get_xlim()
    ax.set_xlim(low - 0.25 * (high - low), high)  # room for the numbers
    ax.set_xlabel("modelled change of ITL (µs)", fontsize=LABEL_PT)


def _number(ax: Axes, text: str, x: float, y: float, right: bool = False) -> None:
    """Beside what it belongs to."""
    side = {"xytext": (6, 0), "ha": "left"} if right else {"xytext": (-6, 0), "ha": "right"}
    ax.annotate(text, (x, y), **side, textcoords="offset points", va="center", fontsize=SMALL_PT)
