"""Distribution of the measured ITL of every stack: the share of intervals that are at most so long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spec_decode_bench.decode_loop.analysis import pool
from spec_decode_bench.decode_loop.plots._loops import loop_caption, loop_panels, runs_of, stack_styles, title_loops
from spec_decode_bench.decode_loop.records import Loop
from spec_decode_bench.harness.records.schema import Run
from spec_decode_bench.plots._style import LABEL_PT, SMALL_PT, finish, new_figure

ROW_IN = 2.3
#: The rarest intervals are left out of the range of x, or one of them would hide the others.
SHOWN = (0.0, 0.995)


def figure(runs: Sequence[Run]) -> Figure | None:
    """None without a measured loop."""
    panels = loop_panels(runs)
    if not panels:
        return None
    rows = [(panel, size) for panel in panels for size in _ends(panel.values("concurrency"))]
    columns = max(len(panel.values("scheduling")) for panel in panels)
    fig = new_figure(0.5 + ROW_IN * len(rows), "Inter-token latency, measured in a decode loop")
    grid = fig.add_gridspec(len(rows), columns)
    styles, handles = stack_styles(panels), {}
    for r, (panel, size) in enumerate(rows):
        for c, scheduling in enumerate(panel.schedulings):
            ax = fig.add_subplot(grid[r, c])
            loops = panel.at(size, scheduling, panel.usual_model_us)
            for loop in loops:
                handles[panel.marked(loop.stack)] = _draw(ax, loop, styles[loop.stack]["color"])
            detail = f"concurrency {size}, model step {panel.usual_model_us / 1000:g} ms, "
            title_loops(ax, panel, columns, detail + scheduling)
            if loops:
                _limit(ax, loops)
            ax.set_ylim(0, 1)
            ax.tick_params(labelsize=LABEL_PT)
            ax.grid(True, color="#e6e6e6", linewidth=0.6)
            if c == 0:
                ax.set_ylabel("share of intervals", fontsize=LABEL_PT)
            if r == len(rows) - 1:
                ax.set_xlabel("ITL (ms)", fontsize=LABEL_PT)
    text = f"The longest 0.5 % of the intervals lie outside the panels.\n{loop_caption(panels)}"
    return finish(fig, handles, text, runs_of(panels))


def _ends(values: Sequence[int]) -> list[int]:
    """The smallest and the largest."""
    return list(dict.fromkeys([values[0], values[-1]]))


def _draw(ax: Axes, loop: Loop, colour: str) -> object:
    itl = np.sort(pool(loop.blocks, "itl_us").values) / 1000
    (line,) = ax.step(itl, np.arange(1, len(itl) + 1) / len(itl), where="post", color=colour, linewidth=1.4)
    return line


def _limit(ax: Axes, loops: Sequence[Loop]) -> None:
    values = np.concatenate([pool(loop.blocks, "itl_us").values for loop in loops]) / 1000
    low, high = np.quantile(values, SHOWN)
    margin = 0.05 * (high - low) or 0.01
    ax.set_xlim(low - margin, high + margin)
    ax.tick_params(axis="x", labelsize=SMALL_PT)
