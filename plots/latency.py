"""Latency against batch size: medians with bootstrap intervals, one panel per operator and device.

GPU time is gpu_us, the marginal time of a launch in a CUDA graph. A CPU run has panels of its own, of CPU wall time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis import stats
from harness.analysis.estimators import untrusted
from harness.records.schema import Run
from plots._axes import log_x, log_y, panel_grid, title_panel, x_label
from plots._panels import Panel, Place, panels, runs_of
from plots._style import FLOOR_STYLE, LABEL_PT, caption, environment_caption, legend_below, save, stamp, variant_style

#: A ring around what the estimators do not agree on.
UNTRUSTED_STYLE = {"s": 90, "facecolors": "none", "edgecolors": "#B00020", "linewidths": 1.2, "zorder": 5}
Y_LABELS = {"gpu_us": "GPU time per call (µs)", "cpu_us": "CPU wall time per call (µs)"}


def draw(runs: Sequence[Run], stem: Path) -> list[Path]:
    """Write stem.png and stem.svg; [] where no run has a timed cell."""
    drawn = figure(runs)
    return save(drawn, stem) if drawn else []


def figure(runs: Sequence[Run]) -> Figure | None:
    found = [panel for panel in panels(runs) if panel.x_axis()]
    if not found:
        return None
    fig, axes = panel_grid(found, "Latency of one call against batch size (median, 95 % bootstrap interval)")
    handles: dict[str, object] = {}
    for ax, panel in zip(axes, found, strict=True):
        handles |= _draw_panel(ax, panel)
    for last in ("untrusted", "floor"):
        handles |= {last: handles.pop(last)} if last in handles else {}
    legend_below(fig, handles)
    note = (
        "floor: a one-block copy kernel plus the bytes at the copy bandwidth of the same run\n"
        if "floor" in handles
        else ""
    )
    if "untrusted" in handles:
        note += "untrusted: slope, queued events and CUPTI differ by more than 3 %, 100 ns and what their constants are unsure of\n"
    caption(fig, note + environment_caption(runs_of(found)))
    stamp(fig, runs_of(found))
    return fig


def _draw_panel(ax: Axes, panel: Panel) -> dict[str, object]:
    """Returns legend handles by name."""
    x_axis = panel.x_axis()
    slice_name, places = panel.slice(x_axis)
    handles, heights = {}, []
    for variant in panel.variants():
        timed = [place for place in places if variant in place.timed(panel.figure)]
        if not timed:
            continue
        intervals = [stats.interval(place.cells[variant], panel.figure) for place in timed]
        middles = [interval.median for interval in intervals]
        handles[variant] = ax.errorbar(
            [place.axes[x_axis] for place in timed],
            middles,
            yerr=[[i.median - i.low for i in intervals], [i.high - i.median for i in intervals]],
            **variant_style(variant),
            markersize=4.5,
            linewidth=1.3,
            capsize=2,
        )
        ringed = [
            (place.axes[x_axis], middle)
            for place, middle in zip(timed, middles, strict=True)
            if untrusted(place.cells[variant].metrics, place.run.calibration_of(place.cells[variant]))
        ]
        if ringed:
            handles["untrusted"] = ax.scatter(*zip(*ringed, strict=True), **UNTRUSTED_STYLE)
        heights += [bound for interval in intervals for bound in (interval.low, interval.high)]
    floors = {place.axes[x_axis]: floor for place in places if (floor := _floor_us(place, panel.figure)) is not None}
    if floors:
        (handles["floor"],) = ax.plot(list(floors), list(floors.values()), marker="_", **FLOOR_STYLE)
    log_y(ax, [*heights, *floors.values()])
    log_x(ax, [place.axes[x_axis] for place in places if place.timed(panel.figure)])
    ax.set_xlabel(x_label(x_axis), fontsize=LABEL_PT)
    ax.set_ylabel(Y_LABELS[panel.figure], fontsize=LABEL_PT)
    ax.grid(True, color="#e6e6e6", linewidth=0.6)
    title_panel(ax, panel, slice_name)
    return handles


def _floor_us(place: Place, figure: str) -> float | None:
    """The floor at this point; every variant has the same bytes to move. None on a CPU or without calibration."""
    timed = place.timed(figure)
    calibration = place.run.calibration_of(place.cells[timed[0]]) if timed else None
    if figure != "gpu_us" or calibration is None:
        return None
    return stats.floor_us(calibration, place.cells[timed[0]].metrics.bytes_moved)
