"""Measured change of ITL against the time of the model step: from where on does the metadata not matter any more?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.analysis.decode_loop import delta, reference_of
from harness.records.schema import Run
from plots._axes import plain
from plots._loops import LoopPanel, loop_panels, same_y, scheduling_in_words, stack_styles, title_loops
from plots._style import (
    LABEL_PT,
    TITLE_PT,
    caption,
    environment_caption,
    legend_below,
    mark_uncalibrated,
    new_figure,
    save,
)

ROW_IN = 2.5


def draw(runs: Sequence[Run], stem: Path) -> list[Path]:
    """Write stem.png and stem.svg; [] without loops of at least two model steps."""
    drawn = figure(runs)
    return save(drawn, stem) if drawn else []


def figure(runs: Sequence[Run]) -> Figure | None:
    panels = [one for one in loop_panels(runs) if len(one.stacks) > 1 and len(one.values("model_step_us")) > 1]
    if not panels:
        return None
    columns = max(len(panel.values("scheduling")) for panel in panels)
    fig = new_figure(0.5 + ROW_IN * len(panels))
    fig.suptitle(f"Change of ITL against {panels[0].stacks[0]} by the time of the model step", fontsize=TITLE_PT)
    grid = fig.add_gridspec(len(panels), columns)
    styles, handles = stack_styles(panels), {}
    for r, panel in enumerate(panels):
        size, row = _widest(panel), []
        for c, scheduling in enumerate(sorted(panel.values("scheduling"), reverse=True)):
            ax = fig.add_subplot(grid[r, c])
            handles |= _draw(ax, panel, size, scheduling, styles)
            title_loops(ax, panel, columns, f"concurrency {size}, {scheduling_in_words(scheduling)}")
            if c == 0:
                ax.set_ylabel("change of ITL (µs)", fontsize=LABEL_PT)
            if r == len(panels) - 1:
                ax.set_xlabel("model step (ms)", fontsize=LABEL_PT)
            row.append(ax)
        same_y(row)
    legend_below(fig, handles)
    runs_drawn = {id(panel.run): panel.run for panel in panels}.values()
    caption(fig, f"95 % intervals by a bootstrap over blocks of steps.\n{environment_caption(runs_drawn)}")
    mark_uncalibrated(fig, runs_drawn)
    return fig


def _widest(panel: LoopPanel) -> int:
    """The concurrency with the most model steps; of several the largest."""
    sizes = [point[0].axes["concurrency"] for point in panel.points]
    return max(set(sizes), key=lambda size: (sizes.count(size), size))


def _draw(ax: Axes, panel: LoopPanel, concurrency: int, scheduling: str, styles: dict) -> dict[str, object]:
    """Returns legend handles by stack."""
    handles: dict[str, object] = {}
    for stack in panel.stacks[1:]:
        found = {}
        for step_us in panel.values("model_step_us"):
            loops = panel.at(concurrency=concurrency, scheduling=scheduling, model_step_us=step_us)
            reference, mine = reference_of(loops), next((one for one in loops if one.stack == stack), None)
            if reference is not None and mine is not None and (one := delta(reference, mine, "itl_us")):
                found[step_us / 1000] = one.us
        if found:
            handles[stack] = ax.errorbar(
                list(found),
                [one.median for one in found.values()],
                yerr=[
                    [one.median - one.low for one in found.values()],
                    [one.high - one.median for one in found.values()],
                ],
                **styles[stack],
                linewidth=1.2,
                markersize=5,
                capsize=2,
            )
    steps = [us / 1000 for us in panel.values("model_step_us")]
    ax.set_xticks(steps, [plain(step) for step in steps], fontsize=LABEL_PT)
    ax.axhline(0, color="black", linewidth=0.8)
    ax.tick_params(axis="y", labelsize=LABEL_PT)
    ax.margins(y=0.12)
    ax.grid(True, axis="y", color="#e6e6e6", linewidth=0.6)
    return handles
