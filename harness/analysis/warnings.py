"""What a reader must know of a run before its figures: a ruler out of order, cells in doubt, a GPU that held back.

Tables, comparisons and reports say it in these sentences. Never imports torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.analysis.estimators import untrusted
from harness.records.schema import Cell, Run

#: Cells that a sentence names; the others are counted.
SHOWN = 8


def shortened(names: Sequence[str], more: str = "more") -> list[str]:
    """The first SHOWN of them, then how many ``more`` there are."""
    return [*names[:SHOWN], *([f"{len(names) - SHOWN} {more}"] if len(names) > SHOWN else [])]


def untrusted_cells(run: Run, cells: Sequence[Cell]) -> dict[str, str]:
    """Key of each cell whose estimators disagree -> their values in words."""
    return {cell.key: why for cell in cells if (why := untrusted(cell.metrics, run.calibration_of(cell)))}


def held_back(cells: Sequence[Cell]) -> list[str]:
    """How many samples were taken again because the GPU held back, why, and which cells kept such samples
    nevertheless.
    """
    discarded: Counter[str] = Counter()
    for cell in cells:
        discarded.update(cell.metrics.discarded if cell.metrics else {})
    disturbed = {cell.key: cell.metrics.disturbed for cell in cells if cell.metrics and cell.metrics.disturbed}
    found = []
    if discarded:
        reasons = ", ".join(f"{reason} {count}" for reason, count in discarded.items())
        found.append(f"{discarded.total()} samples were taken again, the GPU held back: {reasons}")
    if disturbed:
        named = shortened([f"{key.partition('/')[2]} ({count})" for key, count in disturbed.items()])
        found.append(
            f"! {sum(disturbed.values())} samples were kept although the GPU still held back: {', '.join(named)}"
        )
    return found


def not_audited(cells: Sequence[Cell]) -> list[str]:
    """Each reason why cells were not audited by the second process, with their number."""
    reasons = Counter(cell.metrics.no_audit for cell in cells if cell.metrics and cell.metrics.no_audit)
    return [f"{count} cells were not audited: {reason}" for reason, count in reasons.items()]


def uncalibrated(run: Run) -> list[str]:
    """Each reason why a ruler of the run missed its tolerances."""
    return [f"UNCALIBRATED: {reason}" for reason in run.uncalibrated]


def warnings(run: Run) -> list[str]:
    """One sentence each, for the whole run; empty where every figure may be believed."""
    found = uncalibrated(run)
    if doubted := untrusted_cells(run, run.cells):
        found.append(
            f"{len(doubted)} untrusted cells, their estimators disagree: {', '.join(shortened(list(doubted)))}"
        )
    return [*found, *held_back(run.cells), *not_audited(run.cells)]
