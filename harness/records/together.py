"""Which records may be drawn and tabled together. Never imports torch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from harness.records.schema import RecordError, Run


def check_together(runs: Sequence[Run]) -> None:
    """Raises RecordError for GPU runs whose cells must not stand in one panel: of other seeds, which are other inputs,
    and two runs of one configuration on one GPU model, of which one would hide the other.
    """
    for a, b in itertools.combinations([run for run in runs if run.header.environment.device == "cuda"], 2):
        shared = {cell.operator for cell in a.cells} & {cell.operator for cell in b.cells}
        if not shared or a.cache != b.cache:
            continue
        if a.header.seed != b.header.seed:
            raise RecordError(
                f"{a.path} has seed {a.header.seed}, {b.path} has {b.header.seed}: other inputs, which must not be in "
                "one picture or table; give records of one seed"
            )
        same_gpu = a.header.environment.gpu == b.header.environment.gpu
        if same_gpu and a.header.name == b.header.name and {c.key for c in a.cells} & {c.key for c in b.cells}:
            raise RecordError(
                f"{a.path} and {b.path} are both runs of {a.header.name} on {a.header.environment.gpu}; give one of "
                "them, or judge them with bench.py compare"
            )


def refuse_loops(runs: Sequence[Run], command: str) -> None:
    """Raises RecordError for a record of decode loops, which ``command`` has no table for."""
    for run in runs:
        if run.loops:
            raise RecordError(f"{run.path} holds decode loops, and {command} takes sweeps; bench.py plot draws loops")


def mixed_states(runs: Sequence[Run]) -> list[str]:
    """A sentence for each record whose cache state is not that of the first one, since its times are others."""
    return [
        f"{run.path} was measured with a {run.cache} cache, {runs[0].path} with a {runs[0].cache} one: their GPU times "
        "are shown apart, and ITL and TPOT of the hot one only"
        for run in runs[1:]
        if run.cells and runs[0].cells and run.cache != runs[0].cache
    ]
