"""Measured change of ITL and TPOT per stack and concurrency, with bootstrap intervals: a panel for each GPU.

A row of panels has one scale. The numbers above a panel are the change of the lowest dot in per cent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spec_decode_bench.decode_loop.analysis import Delta
from spec_decode_bench.decode_loop.plots._loops import (
    SCHEDULINGS,
    LoopPanel,
    loop_caption,
    loop_panels,
    runs_of,
    stack_styles,
    title_loops,
)
from spec_decode_bench.harness.numbers import signed
from spec_decode_bench.harness.records.schema import Run
from spec_decode_bench.plots._axes import draw_intervals, same_y, style_changes
from spec_decode_bench.plots._style import LABEL_PT, SMALL_PT, finish, new_figure

#: Panels side by side; more begin a new band of rows.
MOST_COLUMNS = 3
ROW_IN = 2.1
#: Width of the dots of one concurrency, as a share of the distance between two.
SPREAD = 0.6
METRICS = {"itl_us": "ITL", "tpot_us": "TPOT"}


def figure(runs: Sequence[Run]) -> Figure | None:
    """None without a loop in which the reference and another stack were measured."""
    panels = [panel for panel in loop_panels(runs) if len(panel.stacks) > 1]
    if not panels:
        return None
    bands = [panels[i : i + MOST_COLUMNS] for i in range(0, len(panels), MOST_COLUMNS)]
    schedulings = sorted({name for panel in panels for name in panel.schedulings}, reverse=True)
    rows = [(which, scheduling) for scheduling in schedulings for which in METRICS]
    columns = max(map(len, bands))
    title = f"Change of ITL and TPOT against {panels[0].marked(panels[0].stacks[0])}, measured in a decode loop"
    fig = new_figure(0.5 + ROW_IN * len(rows) * len(bands), title)
    grid = fig.add_gridspec(len(rows) * len(bands), columns)
    styles, handles = stack_styles(panels), {}
    for b, band in enumerate(bands):
        for r, (which, scheduling) in enumerate(rows):
            drawn = []
            for c, panel in enumerate(band):
                ax = fig.add_subplot(grid[b * len(rows) + r, c])
                handles |= _draw_panel(ax, panel, which, scheduling, styles)
                drawn.append(ax)
                if r == 0:
                    title_loops(ax, panel, columns, f"model step {panel.usual_model_us / 1000:g} ms")
                if c == 0:
                    ax.set_ylabel(f"change of {METRICS[which]} (µs)\n{scheduling}", fontsize=LABEL_PT)
                if r == len(rows) - 1:
                    ax.set_xlabel("concurrency (requests)", fontsize=LABEL_PT)
                else:
                    ax.tick_params(axis="x", labelbottom=False)
            same_y(drawn)
    note = ", ".join(f"{name}: {SCHEDULINGS[name]}" for name in schedulings)
    intervals = "95 % intervals by a bootstrap over blocks of steps; percentages: the fastest stack"
    return finish(fig, handles, f"{intervals}\n{note}\n{loop_caption(panels)}", runs_of(panels))


def _draw_panel(
    ax: Axes, panel: LoopPanel, which: str, scheduling: str, styles: dict[str, dict[str, Any]]
) -> dict[str, object]:
    """Returns legend handles by stack. Concurrencies are at equal distances."""
    handles: dict[str, object] = {}
    sizes, others = panel.values("concurrency"), panel.stacks[1:]
    lowest: dict[int, Delta] = {}
    for number, stack in enumerate(others):
        offset = SPREAD * ((number + 0.5) / len(others) - 0.5)
        changes = [panel.delta(stack, which, size, scheduling, panel.usual_model_us) for size in sizes]
        found = {x: one for x, one in enumerate(changes) if one is not None}
        if not found:
            continue
        for x, one in found.items():
            if x not in lowest or one.us.median < lowest[x].us.median:
                lowest[x] = one
        places, us = [x + offset for x in found], [one.us for one in found.values()]
        handles[panel.marked(stack)] = draw_intervals(ax, places, us, **styles[stack], linestyle="none")
    style_changes(ax)
    ax.set_xlim(-0.5, len(sizes) - 0.5)
    ax.set_xticks(range(len(sizes)), [str(size) for size in sizes], fontsize=LABEL_PT)
    top = ax.secondary_xaxis("top")
    top.set_xticks(list(lowest), [_percent(one.percent.median) for one in lowest.values()], fontsize=SMALL_PT)
    top.tick_params(length=0)
    return handles


def _percent(value: float) -> str:
    return f"{signed(value, '.1f' if abs(value) >= 0.1 else '.2f')} %"
