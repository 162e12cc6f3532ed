"""Latency against batch size: medians with bootstrap intervals, one panel per operator and device.

The GPU time is gpu_us, the time of one more call in a CUDA graph. CPU runs have their own panels, with CPU wall time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from spec_decode_bench.harness.analysis import stats
from spec_decode_bench.harness.analysis.estimators import AGREEMENT, doubt
from spec_decode_bench.harness.contract import CAPTURE
from spec_decode_bench.harness.records.schema import Run, label_parts
from spec_decode_bench.plots._axes import draw_intervals, log_x, log_y, panel_grid, title_panel, title_shared, x_label
from spec_decode_bench.plots._panels import (
    GpuStyles,
    Panel,
    PointCells,
    by_operator,
    coincides,
    gpus_of,
    known_failures_caption,
    panels,
    runs_of,
)
from spec_decode_bench.plots._style import (
    COPY_BOUND_STYLE,
    HALO_STYLE,
    LABEL_PT,
    environment_caption,
    finish,
)

#: A ring around medians that no second estimator confirms.
DOUBTED = "doubted"
DOUBTED_STYLE = {"s": 90, "facecolors": "none", "edgecolors": "#B00020", "linewidths": 1.2, "zorder": 5}
Y_LABELS = {"gpu_us": "GPU time per call (µs)", "cpu_us": "CPU wall time per call (µs)"}


def figure(runs: Sequence[Run], by: str = "panel") -> Figure | None:
    """None where there is nothing to draw. Captured steps are left out: no two of them differ in batch size alone.

    by: of several GPUs, "panel" draws each in a panel of its own, on one scale, and "gpu" each in a colour.
    """
    found = [panel for panel in panels(runs) if panel.x_axis() and not _is_captured(panel)]
    if not found:
        return None
    styles = GpuStyles(found) if by == "gpu" and len(gpus_of(found)) > 1 else None
    groups = by_operator(found)
    shown = [group[0] for group in groups] if styles else [panel for group in groups for panel in group]
    fig, axes = panel_grid(shown, "Latency of one call against batch size (median, 95 % bootstrap interval)")
    of_panel = {id(panel): ax for panel, ax in zip(shown, axes, strict=True)}
    handles: dict[str, object] = {}
    for group in groups:
        places = [of_panel[id(group[0] if styles else panel)] for panel in group]
        drawn = [_draw_panel(ax, panel, styles) for ax, panel in zip(places, group, strict=True)]
        for ax, panel, one in zip(places, group, drawn, strict=True):
            handles |= one.handles
            log_y(ax, [height for other in drawn for height in other.heights])
            log_x(ax, [x for other in drawn for x in other.xs])
            if not styles:
                title_panel(ax, panel, one.slice_name)
        if styles:
            title_shared(places[0], group, [one.slice_name for one in drawn])
    last = {name: handles.pop(name) for name in (DOUBTED, "copy bound") if name in handles}
    handles = (styles.handles(list(handles)) if styles else handles) | last
    note = f"{stats.COPY_BOUND}\n" if "copy bound" in handles else ""
    if DOUBTED in handles:
        note += f"{DOUBTED}: neither queued events nor CUPTI is within {AGREEMENT} of the graph slope\n"
    text = note + known_failures_caption(found) + environment_caption(runs_of(found))
    return finish(fig, handles, text, runs_of(found))


def _is_captured(panel: Panel) -> bool:
    return all(CAPTURE in label_parts(point.label) for point in panel.points)


@dataclass(frozen=True)
class _Drawn:
    """What a panel shows: legend handles by name, the values on both axes, the values of axes that all points share."""

    handles: dict[str, object]
    heights: list[float]
    xs: list[float]
    slice_name: str


def _draw_panel(ax: Axes, panel: Panel, styles: GpuStyles | None) -> _Drawn:
    """Without the scales of the axes, which several panels may share."""
    x_axis = panel.x_axis()
    slice_name, points = panel.slice(x_axis)
    handles, heights, drawn = {}, [], []
    for variant in panel.variants():
        timed = [point for point in points if variant in point.timed(panel.metric)]
        if not timed:
            continue
        intervals = [stats.interval(point.cells[variant], panel.metric) for point in timed]
        times = {point.axes[x_axis]: interval.median for point, interval in zip(timed, intervals, strict=True)}
        style = styles.of(panel, variant) if styles else panel.style(variant)
        if coincides(times, drawn):
            ax.plot(list(times), list(times.values()), **style, **HALO_STYLE)
            style["zorder"] = HALO_STYLE["zorder"]
        drawn.append(times)
        style |= {"markersize": 4.5, "linewidth": 1.3}
        handles[panel.marked(variant)] = draw_intervals(ax, list(times), intervals, **style)
        ringed = [
            (x, us)
            for point, (x, us) in zip(timed, times.items(), strict=True)
            if doubt(point.cells[variant].metrics, point.run.calibration_of(point.cells[variant]))
        ]
        if ringed:
            handles[DOUBTED] = ax.scatter(*zip(*ringed, strict=True), **DOUBTED_STYLE)
        heights += [bound for interval in intervals for bound in (interval.low, interval.high)]
    bounds = {
        point.axes[x_axis]: bound for point in points if (bound := _copy_bound_us(point, panel.metric)) is not None
    }
    if bounds:
        (bound,) = ax.plot(list(bounds), list(bounds.values()), marker="_", **COPY_BOUND_STYLE)
        handles["copy bound"] = Line2D([], [], marker="_", **COPY_BOUND_STYLE)
        if styles:
            bound.set_color(styles.colour(panel))
    ax.set_xlabel(x_label(x_axis), fontsize=LABEL_PT)
    ax.set_ylabel(Y_LABELS[panel.metric], fontsize=LABEL_PT)
    ax.grid(True, color="#e6e6e6", linewidth=0.6)
    xs = [point.axes[x_axis] for point in points if point.timed(panel.metric)]
    return _Drawn(handles, [*heights, *bounds.values()], xs, slice_name)


def _copy_bound_us(point: PointCells, metric: str) -> float | None:
    """The copy bound at this point, which is the same for every variant. None on a CPU or without calibration."""
    timed = point.timed(metric)
    calibration = point.run.calibration_of(point.cells[timed[0]]) if timed else None
    if metric != "gpu_us" or calibration is None:
        return None
    return stats.copy_bound_us(calibration, point.cells[timed[0]].metrics.bytes_moved)
