"""The start of a decode step on the lanes of host and device, for two stacks side by side: what comes before the model
step, which takes the rest. A step begins where the model step before it ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from spec_decode_bench.decode_loop.analysis import value
from spec_decode_bench.decode_loop.plots._loops import LoopPanel, loop_caption, loop_panels, scheduling_in_words
from spec_decode_bench.decode_loop.records import Loop, LoopSpan
from spec_decode_bench.harness.records.schema import Run
from spec_decode_bench.plots._lanes import EDGE_STYLE, Bar, draw_lanes
from spec_decode_bench.plots._style import LABEL_PT, finish, new_figure

ROW_IN = 1.7
#: The stack that the last of the configuration is shown beside; without it the reference.
ENGINE = "vllm_call"
#: What host and device do, in the order of the legend.
COLOURS = {
    "schedule": ("scheduler", "#999999"),
    "metadata": ("metadata before the model step", "#D55E00"),
    "after": ("metadata after sampling", "#E69F00"),
    "model": ("model step (host: its submission)", "#56B4E9"),
    "wait": ("host waits for accepted tokens", "#E8E8E8"),
}


def figure(runs: Sequence[Run]) -> Figure | None:
    """None without a traced step of two stacks."""
    panel = next((one for one in loop_panels(runs) if _rows(one)), None)
    if panel is None:
        return None
    rows = _rows(panel)
    where = panel.title().replace("\n", " · ")
    fig = new_figure(0.7 + ROW_IN * len(rows), f"The start of a decode step, traced\n{where}")
    grid = fig.add_gridspec(len(rows), 2)
    for r, loops in enumerate(rows):
        spans = [_one_step(loop) for loop in loops]
        longest = max(_busy(shown, start, end) for shown, start, end in spans)
        for c, (loop, (shown, start, end)) in enumerate(zip(loops, spans, strict=True)):
            ax = fig.add_subplot(grid[r, c])
            _draw(ax, shown, start, end, longest)
            stack = f"{panel.marked(loop.stack)}, {scheduling_in_words(loop.axes['scheduling'])}"
            concurrency, model_ms = loop.axes["concurrency"], loop.axes["model_step_us"] / 1000
            itl_ms = value(loop, "itl_us") / 1000
            step = f"concurrency {concurrency}, model step {model_ms:g} ms, ITL {itl_ms:.2f} ms"
            ax.set_title(f"{stack}\n{step}", fontsize=LABEL_PT)
            if r == len(rows) - 1:
                ax.set_xlabel("ms since the end of the previous model step", fontsize=LABEL_PT)
    edge = {"end of a model step: the next step begins": Line2D([], [], **EDGE_STYLE)}
    handles = {words: Patch(facecolor=colour) for words, colour in COLOURS.values()} | edge
    text = (
        "To the right only the model step goes on. Traced with events that the measured steps do not have; the ITL is "
        "that of the measured steps."
    )
    text += f"\n{loop_caption([panel], {loop.stack for loops in rows for loop in loops})}"
    return finish(fig, handles, text, [panel.run])


def _rows(panel: LoopPanel) -> list[list[Loop]]:
    """For each scheduling, two stacks of the loop with the most requests and the longest model step."""
    found = []
    for scheduling in panel.schedulings:
        points = [
            point
            for point in panel.points
            if point[0].axes["scheduling"] == scheduling and sum(bool(loop.trace) for loop in point) > 1
        ]
        if points:
            best = max(points, key=lambda point: (point[0].axes["concurrency"], point[0].axes["model_step_us"]))
            traced = [loop for loop in best if loop.trace]
            before = min(traced, key=lambda loop: (loop.stack != ENGINE, loop.stack != loop.reference))
            found.append([before, [loop for loop in traced if loop is not before][-1]])
    return found


def _one_step(loop: Loop) -> tuple[list[LoopSpan], float, float]:
    """All spans, and from where to where the step goes in which the host has the median of work: between
    the ends of two model steps.
    """
    ends = sorted(span.end_us for span in loop.trace if (span.lane, span.name) == ("device", "model"))
    steps = sorted(pairwise(ends[:-1]), key=lambda step: _busy(loop.trace, start=step[0], end=step[1]))
    start, end = steps[len(steps) // 2]
    return loop.trace, start, end


def _busy(spans: Sequence[LoopSpan], start: float, end: float) -> float:
    """Microseconds from the start of a step until only its model step is left."""
    others = [span for span in spans if span.name != "wait" and (span.lane, span.name) != ("device", "model")]
    return max((span.end_us for span in others if start <= span.start_us < end), default=end) - start


def _draw(ax: Axes, spans: Sequence[LoopSpan], start: float, end: float, longest: float) -> None:
    models = {(span.lane, span.step): span.start_us for span in spans if span.name == "model"}
    bars = []
    for span in spans:
        after = span.name == "metadata" and span.start_us > models.get((span.lane, span.step), math.inf)
        colour = COLOURS["after" if after else span.name][1]
        bars.append(Bar(span.lane, (span.start_us - start) / 1000, (span.end_us - start) / 1000, colour))
    draw_lanes(ax, bars, (end - start) / 1000, longest / 1000)
