"""What the decode loop predicts of servers, beside what was measured in them.

    python -m tools.predicted LOOP ENGINE [LOOP ENGINE ...]

LOOP, ENGINE: records of the loop and of the server. The loop has a stack for each arm, with its name. Of the loops at a
batch size the one counts in which the first arm's ITL is nearest to the server's, so that the change itself decides
nothing. Prints a table, and draws engine_predicted.png and .svg into --out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from spec_decode_bench import bench
from spec_decode_bench.decode_loop.analysis import by_point, delta, is_measured, value
from spec_decode_bench.decode_loop.records import Loop
from spec_decode_bench.engine_plugin.analysis import Arm, all_compared
from spec_decode_bench.engine_plugin.records import blocks_of
from spec_decode_bench.engine_plugin.tables import interval_text
from spec_decode_bench.harness import registry
from spec_decode_bench.harness.analysis.stats import Interval
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.schema import RecordError, Run
from spec_decode_bench.harness.report.console import make_console, print_tables
from spec_decode_bench.harness.report.table import Column, Table, number_column, text_rows
from spec_decode_bench.plots._axes import draw_intervals, style_changes
from spec_decode_bench.plots._style import LABEL_PT, environment_caption, finish, new_figure, save

registry.load((*bench.ROOMS.values(), *bench.REGISTRATIONS))

HEIGHT_IN = 3.4
#: What is drawn -> its colour, marker and shift, as a share of the distance between two groups.
LOOKS = {"measured in the server": ("#882255", "D", -0.12), "predicted by the loop": ("#0072B2", "o", 0.12)}


@dataclass(frozen=True)
class Prediction:
    """Change of ITL by an arm. server, loop: ITL of the first arm in either. model_step_us: of the loop. In µs."""

    arm: Arm
    predicted: Interval
    server: float
    loop: float
    model_step_us: float

    @property
    def measured(self) -> Interval:
        return self.arm.change


def predictions(engine: Run, loops: Run) -> list[Prediction]:
    """Of each arm but the first at each batch size that both records have."""
    arms, found = all_compared(blocks_of(engine)), []
    for batch in dict.fromkeys(arm.batch for arm in arms):
        first, *others = (arm for arm in arms if arm.batch == batch)
        stacks = _nearest(loops, first)
        for arm in others:
            if first.name in stacks and arm.name in stacks:
                reference, loop = stacks[first.name], stacks[arm.name]
                change = delta(reference, loop, "itl_us")
                if change is not None:
                    itl, step = value(reference, "itl_us"), loop.axes["model_step_us"]
                    found.append(Prediction(arm, change.us, first.itl.median, itl, step))
    return found


def _nearest(loops: Run, first: Arm) -> dict[str, Loop]:
    """Stack -> its line in the loop whose ITL with the first arm is nearest to the server's."""
    candidates: Sequence[dict[str, Loop]] = [
        {loop.stack: loop for loop in lines if is_measured(loop)}
        for lines in by_point(loops).values()
        if lines[0].axes["concurrency"] == first.batch
    ]
    candidates = [one for one in candidates if first.name in one]
    return min(candidates, key=lambda one: abs(value(one[first.name], "itl_us") - first.itl.median), default={})


def table(rows: Sequence[Prediction]) -> Table:
    heads = ("requests", "arm", "server's ITL, ms", "loop's, ms", "measured change, µs", "predicted change, µs")
    texts = (
        (
            str(row.arm.batch),
            row.arm.name,
            f"{row.server / 1000:.2f}",
            f"{row.loop / 1000:.2f}",
            interval_text(row.measured),
            interval_text(row.predicted),
        )
        for row in rows
    )
    columns = (number_column(heads[0]), Column(heads[1]), *map(number_column, heads[2:]))
    return Table("Change of ITL, measured and predicted", columns, text_rows(texts))


def figure(rows: Sequence[Prediction], runs: Sequence[Run]) -> Figure:
    """runs: those that the rows are of."""
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
    return finish(fig, handles, f"95 % intervals\n{environment_caption(runs)}", runs)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tools.predicted", description=__doc__.partition("\n")[0])
    parser.add_argument("records", type=Path, nargs="+", metavar="LOOP ENGINE")
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args(arguments)
    try:
        runs = [read_run(path) for path in options.records]
    except RecordError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if len(runs) % 2:
        parser.error("records come in pairs, a loop and a server")
    pairs = zip(runs[::2], runs[1::2], strict=True)
    if not (rows := [row for loops, engine in pairs for row in predictions(engine, loops)]):
        print("error: the loop has no stacks with the names of the server's arms at its batch sizes", file=sys.stderr)
        return 1
    print_tables(make_console(), [table(rows)])
    save(figure(rows, runs), options.out / "engine_predicted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
