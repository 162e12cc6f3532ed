"""Time against bytes: every variant a dot over the copy bound, the time of a copy of as many bytes in the same run.

A panel per operator and device. The list in a panel is each variant's geometric mean of the ratio to the copy bound,
over the points of the panel. An operator with little traffic, such as a schedule, lies to the left, where launching is
the cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spec_decode_bench.harness.analysis.stats import COPY_BOUND, copy_bound_us, geometric_mean, median_us
from spec_decode_bench.harness.numbers import significant
from spec_decode_bench.harness.records.schema import Calibration, Run
from spec_decode_bench.plots._axes import log_y, panel_grid, title_panel
from spec_decode_bench.plots._panels import Panel, coincides, known_failures_caption, panels, runs_of
from spec_decode_bench.plots._style import (
    COPY_BOUND_STYLE,
    HALO_STYLE,
    LABEL_PT,
    SMALL_PT,
    environment_caption,
    finish,
)

#: Bytes -> how an axis spells them.
UNITS = {1: "B", 2**10: "KiB", 2**20: "MiB", 2**30: "GiB"}
#: Ratios that a panel lists, the smallest ones.
LISTED = 8
#: Height of a line of the list, as a share of the panel's.
LINE = 0.055


def figure(runs: Sequence[Run]) -> Figure | None:
    """None where no GPU run has a timed cell and a calibration."""
    found = [panel for panel in panels(runs) if panel.metric == "gpu_us" and any(map(_calibration, panel.points))]
    if not found:
        return None
    fig, axes = panel_grid(found, "GPU time against the bytes that the operator must move, and the copy bound")
    handles: dict[str, object] = {}
    for ax, panel in zip(axes, found, strict=True):
        handles |= _draw_panel(ax, panel)
    handles |= {"copy bound": handles.pop("copy bound")}
    notes = f"Numbers in a panel: geometric mean of time over copy bound.\n{COPY_BOUND}\n"
    text = notes + known_failures_caption(found) + environment_caption(runs_of(found))
    return finish(fig, handles, text, runs_of(found))


def _calibration(point) -> Calibration | None:
    timed = point.timed("gpu_us")
    return point.run.calibration_of(point.cells[timed[0]]) if timed else None


def _draw_panel(ax: Axes, panel: Panel) -> dict[str, object]:
    """Returns legend handles by name."""
    handles: dict[str, object] = {}
    points = [(point, known) for point in panel.points if (known := _calibration(point)) is not None]
    dots: dict[str, dict[str, tuple[int, float, float]]] = {}  # variant -> point -> bytes, time, bound
    for point, known in points:
        for variant in point.timed("gpu_us"):
            size = point.cells[variant].metrics.bytes_moved
            dot = size, median_us(point.cells[variant], "gpu_us"), copy_bound_us(known, size)
            dots.setdefault(variant, {})[point.label] = dot
    drawn: list[dict[str, float]] = []
    for variant in (name for name in panel.variants() if name in dots):
        style = panel.style(variant) | {"linestyle": "none", "alpha": 0.8}
        sizes = [size for size, _, _ in dots[variant].values()]
        times = {label: us for label, (_, us, _) in dots[variant].items()}
        if coincides(times, drawn):
            ax.plot(sizes, list(times.values()), **style, **HALO_STYLE)
            style["zorder"] = HALO_STYLE["zorder"]
        drawn.append(times)
        (handles[panel.marked(variant)],) = ax.plot(sizes, list(times.values()), **style, markersize=4)
    sizes = [max(size, 1) for of_variant in dots.values() for size, _, _ in of_variant.values()]
    low, high = min(sizes) / 2, max(sizes) * 2
    grid = np.geomspace(low, high, 200)
    bounds: list[float] = []
    for known in dict.fromkeys(known for _, known in points):
        curve = [copy_bound_us(known, int(size)) for size in grid]
        bounds += curve
        (handles["copy bound"],) = ax.plot(grid, curve, **COPY_BOUND_STYLE)
    log_y(ax, [*(us for times in drawn for us in times.values()), *bounds])
    _bytes_axis(ax, low, high)
    ax.set_ylabel("GPU time per call (µs)", fontsize=LABEL_PT)
    ax.grid(True, color="#e6e6e6", linewidth=0.6)
    _list_ratios(ax, {panel.marked(name): [us / bound for _, us, bound in of.values()] for name, of in dots.items()})
    title_panel(ax, panel, "")
    return handles


def _list_ratios(ax: Axes, ratios: Mapping[str, Sequence[float]]) -> None:
    means = {name: geometric_mean(values) for name, values in ratios.items()}
    best = sorted(means, key=means.get)
    lines = [f"{significant(means[name])}× {name}" for name in best[:LISTED]]
    lines += [f"{len(best) - LISTED} more above"] if len(best) > LISTED else []
    low, high = ax.get_ylim()
    ax.set_ylim(low, low * (high / low) ** (1 / (1 - LINE * len(lines) - 0.02)))  # room above the dots
    place = {"transform": ax.transAxes, "ha": "left", "va": "top", "fontsize": SMALL_PT}
    ax.text(0.02, 0.98, "\n".join(lines), **place, in_layout=False)


def _bytes_axis(ax: Axes, low: float, high: float) -> None:
    """Logarithmic, with ticks at powers of two that are few enough to read."""
    ax.set_xscale("log", base=2)
    ax.set_xlim(low, high)
    exponents = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    step = max(1, -(-len(exponents) // 5))
    shown = [2**exponent for exponent in exponents if exponent % step == 0] or [2 ** exponents[0]]
    ax.set_xticks(shown, [_in_bytes(size) for size in shown], fontsize=LABEL_PT)
    ax.minorticks_off()
    ax.set_xlabel("bytes read and written", fontsize=LABEL_PT)


def _in_bytes(size: int) -> str:
    unit = max(one for one in UNITS if one <= size)
    return f"{size // unit} {UNITS[unit]}"
