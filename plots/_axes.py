"""Grids of small panels, and plain numbers (1, 2, 5, 10, 20 ...) on their axes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from harness.analysis.stats import is_plausible
from plots._panels import Panel
from plots._style import LABEL_PT, TITLE_PT, WIDTH_IN, new_figure

PANEL_HEIGHT_IN = 3.1


def panel_grid(panels: Sequence[Panel], title: str, most_columns: int = 3) -> tuple[Figure, list[Axes]]:
    """One axes per panel, up to ``most_columns`` side by side; each device and cache state starts a new row, operators
    in the same order below.
    """
    devices: dict[tuple[str, str, str], list[Panel]] = {}
    for panel in panels:
        devices.setdefault(panel.taken_on, []).append(panel)
    columns = min(most_columns, max(map(len, devices.values())))
    rows = sum(math.ceil(len(group) / columns) for group in devices.values())
    figure = new_figure(0.4 + PANEL_HEIGHT_IN * rows)
    figure.suptitle(title, fontsize=TITLE_PT)
    grid = figure.add_gridspec(rows, columns)
    axes, row = {}, 0
    for group in devices.values():
        for number, panel in enumerate(group):
            axes[id(panel)] = figure.add_subplot(grid[row + number // columns, number % columns])
        row += math.ceil(len(group) / columns)
    return figure, [axes[id(panel)] for panel in panels]


def inner_width(ax: Axes) -> float:
    """Inches between the y axis and the right edge of a panel, cautiously: the layout is not known yet."""
    return 0.8 * WIDTH_IN / ax.get_gridspec().ncols


def panel_title(panel: Panel, detail: str, width_in: float) -> str:
    """Operator, device, generation and a cache state other than hot, and what of it is drawn, broken to ``width_in``
    inches.
    """
    device = panel.device.removeprefix("NVIDIA ")
    where = device if panel.generation in device else f"{device} ({panel.generation})"
    where = f"CPU wall time, {device}" if panel.figure == "cpu_us" else where
    where += "" if panel.cache == "hot" else f", {panel.cache} cache"
    return "\n".join(
        line for part in (panel.operator, where, detail) for line in textwrap.wrap(part, int(13 * width_in))
    )


def title_panel(ax: Axes, panel: Panel, detail: str) -> None:
    ax.set_title(panel_title(panel, detail, WIDTH_IN / ax.get_gridspec().ncols), fontsize=LABEL_PT)


def x_label(axis: str) -> str:
    return "batch size (requests)" if axis == "batch_size" else axis


def plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 10_000 else f"{value:g}"


def round_numbers(low: float, high: float) -> list[float]:
    """From the last round number <= low to the first one >= high: 1-2-5 numbers, every leading digit where that makes
    few numbers, powers of ten alone where the others would be many.
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
    """Logarithmic y axis, us, with round numbers as the only ticks. Bounds that noise pushed to 0 or below have no
    place on it.
    """
    values = [value for value in values if is_plausible(value)] or [1.0]
    ticks = round_numbers(min(values), max(values))
    ax.set_yscale("log")
    ax.set_ylim(min(ticks[0], min(values) / 1.1), max(ticks[-1], max(values) * 1.1))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_yticks(ticks, [plain(tick) for tick in ticks], fontsize=LABEL_PT)


def log_x(ax: Axes, values: Iterable[float]) -> None:
    """Logarithmic x axis with the measured values as ticks; all get a tick, those that have room a number."""
    values = sorted(set(values))
    low, high = values[0] / 1.3, values[-1] * 1.3
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    ax.xaxis.set_minor_locator(NullLocator())
    inches = inner_width(ax) / math.log(high / low)
    labelled: list[float] = []
    for value in sorted(values, key=lambda value: (not math.log2(value).is_integer(), -value)):  # powers of two first
        if all(
            inches * abs(math.log(value / other)) > 0.06 + 0.035 * len(plain(value) + plain(other))
            for other in labelled
        ):
            labelled.append(value)
    ax.set_xticks(values, [plain(value) if value in labelled else "" for value in values], fontsize=LABEL_PT)
