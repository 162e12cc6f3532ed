"""Another baseline for the ratios of recorded runs. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from harness.records.schema import RecordError, Run
from harness.wording import did_you_mean


def with_baseline(runs: Sequence[Run], name: str) -> list[Run]:
    """The runs with ratios to the variant ``name``, for the operators that have it; the others keep their baseline.

    Raises RecordError where no run has such a variant.
    """
    known = {cell.variant for run in runs for cell in run.cells}
    if name not in known:
        raise RecordError(
            f"--baseline {name}: no variant of these records has this name{did_you_mean(name, sorted(known))}"
        )
    operators = {cell.operator for run in runs for cell in run.cells if cell.variant == name}
    return [
        structs.replace(
            run,
            cells=[structs.replace(c, baseline=name) if c.operator in operators else c for c in run.cells],
        )
        for run in runs
    ]
