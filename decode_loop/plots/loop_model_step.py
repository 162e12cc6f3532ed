"""Measured change of ITL against the time of the model step: from which one on does the metadata no longer matter?"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spec_decode_bench.decode_loop.plots._loops import (
    LoopPanel,
    loop_caption,
    loop_panels,
    runs_of,
    scheduling_in_words,
    stack_styles,
    title_loops,
)
from spec_decode_bench.harness.records.schema import Run
from spec_decode_bench.plots._axes import draw_intervals, plain, same_y, style_changes
from spec_decode_bench.plots._style import LABEL_PT, finish, new_figure

ROW_IN = 2.5
#: Distance between the dots of two stacks, as a share of the axis, so that equal ones do not hide each other.
APART = 0.02


def figure(runs: Sequence[Run]) -> Figure | None:
    """None without loops of at least two model steps."""
    panels = [one for one in loop_panels(runs) if len(one.stacks) > 1 and len(one.values("model_step_us")) > 1]
    if not panels:
        return None
    columns = max(len(panel.values("scheduling")) for panel in panels)
    title = f"Change of ITL against {panels[0].marked(panels[0].stacks[0])} by the time of the model step"
    fig = new_figure(0.5 + ROW_IN * len(panels), title)
    grid = fig.add_gridspec(len(panels), columns)
    styles, handles = stack_styles(panels), {}
    for r, panel in enumerate(panels):
        size, row = _widest(panel), []
        for c, scheduling in enumerate(panel.schedulings):
            ax = fig.add_subplot(grid[r, c])
            handles |= _draw(ax, panel, size, scheduling, styles)
            title_loops(ax, panel, columns, f"concurrency {size}, {scheduling_in_words(scheduling)}")
            if c == 0:
                ax.set_ylabel("change of ITL (µs)", fontsize=LABEL_PT)
            if r == len(panels) - 1:
                ax.set_xlabel("model step (ms)", fontsize=LABEL_PT)
            row.append(ax)
        same_y(row)
    text = f"95 % intervals by a bootstrap over blocks of steps.\n{loop_caption(panels)}"
    return finish(fig, handles, text, runs_of(panels))


def _widest(panel: LoopPanel) -> int:
    """The concurrency with the most model steps; of several the largest."""
    sizes = [point[0].axes["concurrency"] for point in panel.points]
    return max(set(sizes), key=lambda size: (sizes.count(size), size))


def _draw(ax: Axes, panel: LoopPanel, concurrency: int, scheduling: str, styles: dict) -> dict[str, object]:
    """Returns legend handles by stack."""
    handles: dict[str, object] = {}
    steps = [us / 1000 for us in panel.values("model_step_us")]
    apart = APART * (steps[-1] - steps[0])
    for number, stack in enumerate(panel.stacks[1:]):
        found = {}
        for step_us in panel.values("model_step_us"):
            if one := panel.delta(stack, "itl_us", concurrency, scheduling, step_us):
                found[step_us / 1000 + apart * number] = one.us
        if found:
            style = styles[stack] | {"linewidth": 1.2}
            handles[panel.marked(stack)] = draw_intervals(ax, list(found), list(found.values()), **style)
    ax.set_xticks(steps, [plain(step) for step in steps], fontsize=LABEL_PT)
    style_changes(ax)
    return handles
