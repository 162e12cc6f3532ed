"""Grids of small panels, their titles, and logarithmic axes with round numbers (1, 2, 5, 10, 20, ...)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from spec_decode_bench.harness.analysis.cache_states import HOT
from spec_decode_bench.harness.analysis.stats import Interval, is_plausible
from spec_decode_bench.plots._panels import Panel, by_operator, gpus_of
from spec_decode_bench.plots._style import LABEL_PT, WIDTH_IN, new_figure

PANEL_HEIGHT_IN = 3.1
#: More GPUs than this do not fit beside each other.
MAX_GPU_COLUMNS = 4


def panel_grid(panels: Sequence[Panel], title: str, max_columns: int = 3) -> tuple[Figure, list[Axes]]:
    """One axes per panel, up to ``max_columns`` in a row; each device and cache state starts a new row. Where several
    GPUs show the same, each GPU has a column instead, and each operator a row.
    """
    gpus, groups = gpus_of(panels), by_operator(panels)
    rows: list[list[Panel | None]] = []
    if any(len(group) > 1 for group in groups) and len(gpus) <= MAX_GPU_COLUMNS:
        for group in (group for group in groups if group[0].device in gpus):
            of_gpu = {panel.device: panel for panel in group}
            rows.append([of_gpu.get(gpu) for gpu in gpus])
        on_cpu = [panel for panel in panels if panel.device not in gpus]
        rows += [on_cpu[start : start + len(gpus)] for start in range(0, len(on_cpu), len(gpus))]
    else:
        devices: dict[tuple[str, str, str], list[Panel]] = {}
        for panel in panels:
            devices.setdefault(panel.taken_on, []).append(panel)
        most = max(map(len, devices.values()))
        columns = math.ceil(most / math.ceil(most / max_columns))  # four panels in two rows of two
        for group in devices.values():
            rows += [group[start : start + columns] for start in range(0, len(group), columns)]
    figure = new_figure(0.4 + PANEL_HEIGHT_IN * len(rows), title)
    grid = figure.add_gridspec(len(rows), max(map(len, rows)))
    axes = {
        id(panel): figure.add_subplot(grid[row, column])
        for row, in_row in enumerate(rows)
        for column, panel in enumerate(in_row)
        if panel is not None
    }
    return figure, [axes[id(panel)] for panel in panels]


def inner_width(ax: Axes) -> float:
    """Inches from the y axis to the right edge of a panel: a lower estimate, as the layout is not known yet."""
    return 0.8 * WIDTH_IN / ax.get_gridspec().ncols


def panel_title(panel: Panel, detail: str, width_in: float, where: str | None = None) -> str:
    """Operator, device, generation, cache state if not hot, and ``detail``, in lines of at most ``width_in`` inches.

    where: instead of device and generation.
    """
    device = panel.device.removeprefix("NVIDIA ")
    if where is None:
        where = device if panel.generation in device else f"{device} ({panel.generation})"
        where = f"CPU wall time, {device}" if panel.metric == "cpu_us" else where
    cache = "" if panel.cache == HOT.name else f"{panel.cache} cache"
    return "\n".join(
        line
        for part in (panel.operator, ", ".join(filter(None, (where, cache))), detail)
        for line in textwrap.wrap(part, int(13 * width_in))
    )


def title_panel(ax: Axes, panel: Panel, detail: str) -> None:
    ax.set_title(panel_title(panel, detail, WIDTH_IN / ax.get_gridspec().ncols), fontsize=LABEL_PT)


def draw_intervals(ax: Axes, x: Sequence[float], intervals: Sequence[Interval], **style: Any) -> ErrorbarContainer:
    """Medians as dots, with error bars."""
    medians = [one.median for one in intervals]
    errors = [one.median - one.low for one in intervals], [one.high - one.median for one in intervals]
    return ax.errorbar(x, medians, yerr=errors, **{"markersize": 5, "capsize": 2} | style)


def style_changes(ax: Axes, margin: float = 0.12) -> None:
    """The line of no change, a grid, and room around the dots, as a share of the axis."""
    ax.axhline(0, color="black", linewidth=0.8)
    ax.tick_params(axis="y", labelsize=LABEL_PT)
    ax.margins(y=margin)
    ax.grid(True, axis="y", color="#e6e6e6", linewidth=0.6)


def same_y(axes: Sequence[Axes]) -> None:
    """One scale for several panels, with 0 in it."""
    limits = [ax.get_ylim() for ax in axes]
    low, high = min(0.0, *(low for low, _ in limits)), max(0.0, *(high for _, high in limits))
    for ax in axes:
        ax.set_ylim(low, high)


def x_label(axis: str) -> str:
    return "batch size (requests)" if axis == "batch_size" else axis


def plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 10_000 else f"{value:g}"


def round_numbers(low: float, high: float) -> list[float]:
    """From the last round number <= low to the first one >= high: numbers with the leading digits 1, 2 and 5; with all
    digits where these are few, and powers of ten where they are many.
    """
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    for digits, most in ((range(1, 10), 5), ((1, 2, 5), 10), ((1,), math.inf)):
        numbers = [float(f"{digit}e{exponent}") for exponent in exponents for digit in digits]
        start = max(i for i, number in enumerate(numbers) if number <= low)
        end = max(start + 1, min(i for i, number in enumerate(numbers) if number >= high))
        if end - start < most:
            break
    return numbers[start : end + 1]


def log_y(ax: Axes, values: Iterable[float]) -> None:
    """Logarithmic y axis in microseconds, with round numbers as the only ticks; values that are not plausible, such as
    interval bounds below 0, do not count.
    """
    values = [value for value in values if is_plausible(value)] or [1.0]
    ticks = round_numbers(min(values), max(values))
    ax.set_yscale("log")
    ax.set_ylim(min(ticks[0], min(values) / 1.1), max(ticks[-1], max(values) * 1.1))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_yticks(ticks, [plain(tick) for tick in ticks], fontsize=LABEL_PT)


def log_x(ax: Axes, values: Iterable[float]) -> None:
    """Logarithmic x axis with a tick at each value; numbers only where there is room, powers of two first."""
    values = sorted(set(values))
    low, high = values[0] / 1.3, values[-1] * 1.3
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    ax.xaxis.set_minor_locator(NullLocator())
    inches = inner_width(ax) / math.log(high / low)
    labelled: list[float] = []
    for value in sorted(values, key=lambda value: (not math.log2(value).is_integer(), -value)):
        if all(
            inches * abs(math.log(value / other)) > 0.06 + 0.035 * len(plain(value) + plain(other))
            for other in labelled
        ):
            labelled.append(value)
    ax.set_xticks(values, [plain(value) if value in labelled else "" for value in values], fontsize=LABEL_PT)


def title_shared(ax: Axes, group: Sequence[Panel], details: Sequence[str]) -> None:
    """Operator and, where they differ from panel to panel, which points of which GPU are shown."""
    unlike = len(set(details)) > 1
    detail = (
        "; ".join(f"{panel.device}: {one}" for panel, one in zip(group, details, strict=True)) if unlike else details[0]
    )
    width_in = WIDTH_IN / ax.get_gridspec().ncols
    ax.set_title(panel_title(group[0], detail, width_in, where=""), fontsize=LABEL_PT)
