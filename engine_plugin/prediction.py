"""What the decode loop predicts of a server, beside what was measured in it.

The loop has a stack for each arm, with its name. Of the loops at a batch size the one counts in which the first arm's
ITL is nearest to the server's, so that the change itself decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spec_decode_bench.decode_loop.analysis import by_point, delta, is_measured, value
from spec_decode_bench.decode_loop.records import Loop
from spec_decode_bench.engine_plugin.analysis import Arm, all_compared
from spec_decode_bench.engine_plugin.records import blocks_of
from spec_decode_bench.harness.analysis.stats import Interval
from spec_decode_bench.harness.records.schema import Run


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
