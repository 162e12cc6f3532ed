"""What the decode loop predicts of a server, beside what was measured in it: ``python -m tools.predicted LOOP ENGINE``.

LOOP, ENGINE: their records. The loop has a stack for each arm, with its name. Of the loops at a batch size the one
counts in which the first arm's ITL is nearest to the server's, so that the change itself decides nothing. Prints a line
for each arm, and draws engine_predicted.png into --out.
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
from spec_decode_bench.plots._axes import draw_intervals, style_changes
from spec_decode_bench.plots._style import LABEL_PT, environment_caption, finish, new_figure

registry.load(bench.REGISTRATIONS)

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


def figure(engine: Run, loops: Run) -> Figure | None:
    """None where the loop has no stacks with the names of the server's arms at a batch size of it."""
    if not (rows := predictions(engine, loops)):
        return None
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
    return finish(fig, handles, f"95 % intervals\n{environment_caption([engine, loops])}", [engine, loops])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tools.predicted", description=__doc__.partition(": ")[0])
    parser.add_argument("loop", type=Path)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args(arguments)
    try:
        engine, loops = read_run(options.engine), read_run(options.loop)
    except RecordError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for one in predictions(engine, loops):
        print(
            f"{one.arm.batch} requests, {one.arm.name}: measured {interval_text(one.measured)} us of {one.server:.0f}, "
            f"predicted {interval_text(one.predicted)} us of {one.loop:.0f} at a model step of {one.model_step_us:g}"
        )
    if (drawn := figure(engine, loops)) is None:
        print("error: the loop has no stacks with the names of the server's arms at its batch sizes", file=sys.stderr)
        return 1
    drawn.savefig(options.out / "engine_predicted.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
