"""Change of ITL that the decode loop predicts, beside the one measured in a server. Needs a record of each."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from spec_decode_bench.decode_loop.records import loops_of
from spec_decode_bench.engine_plugin.prediction import predictions
from spec_decode_bench.engine_plugin.records import blocks_of
from spec_decode_bench.harness.records.schema import Run
from spec_decode_bench.plots._axes import draw_intervals, style_changes
from spec_decode_bench.plots._style import LABEL_PT, environment_caption, finish, new_figure

HEIGHT_IN = 3.4
#: What is drawn -> its colour, marker and shift, as a share of the distance between two groups.
LOOKS = {"measured in the server": ("#882255", "D", -0.12), "predicted by the loop": ("#0072B2", "o", 0.12)}


def figure(runs: Sequence[Run]) -> Figure | None:
    """None without a server's record and a loop's whose stacks have the names of its arms."""
    pairs = [(engine, loops) for engine in runs if blocks_of(engine) for loops in runs if loops_of(loops)]
    found = next(((pair, rows) for pair in pairs if (rows := predictions(*pair))), None)
    if found is None:
        return None
    pair, rows = found
    fig, handles = new_figure(HEIGHT_IN, "Change of ITL: what the decode loop predicts, and what the server shows"), {}
    ax = fig.add_subplot()
    for name, (color, marker, shift) in LOOKS.items():
        intervals = [row.measured if name.startswith("measured") else row.predicted for row in rows]
        places = [x + shift for x in range(len(rows))]
        style = {"color": color, "marker": marker, "linestyle": "none"}
        handles[name] = draw_intervals(ax, places, intervals, **style)
    labels = [
        f"{row.arm.batch} requests, {row.arm.name}\nserver {row.server / 1000:.2f} ms, loop {row.loop / 1000:.2f} ms"
        for row in rows
    ]
    ax.set_xticks(range(len(rows)), labels, fontsize=LABEL_PT)
    ax.set_xlim(-0.5, len(rows) - 0.5)
    ax.set_ylabel("change of ITL (µs)", fontsize=LABEL_PT)
    style_changes(ax)
    return finish(fig, handles, f"95 % intervals\n{environment_caption(pair)}", pair)
