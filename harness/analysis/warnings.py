"""What a reader must know before relying on a run's metrics, in sentences that tables, comparisons and reports share.

A run may not be calibrated, no second estimator may confirm a cell, samples may have been taken on a throttled GPU,
cells may not have been audited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from spec_decode_bench.harness.analysis.estimators import doubt
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.records.schema import Cell, Run

#: Task that a sentence names; the others are counted.
MAX_NAMED = 8
#: Mark on every time of a variant with known failures.
KNOWN_FAILURES = "†"
THROTTLED = "throttled or below its clock"


def abbreviated(names: Sequence[str], more: str = "more") -> list[str]:
    """The first MAX_NAMED names, then "12 more" for the others."""
    return [*names[:MAX_NAMED], *([f"{len(names) - MAX_NAMED} {more}"] if len(names) > MAX_NAMED else [])]


def doubted_cells(run: Run, cells: Sequence[Cell]) -> dict[str, str]:
    """Key of each cell whose time is doubted -> the estimators' values in words."""
    texts = {cell.key: doubt(cell.metrics, run.calibration_of(cell)) for cell in cells}
    return {key: text for key, text in texts.items() if text is not None}


def calibration_warnings(run: Run) -> list[str]:
    """Each reason why a process of the run was not calibrated."""
    return [f"UNCALIBRATED: {reason}" for reason in run.uncalibrated]


def throttling_warnings(cells: Sequence[Cell]) -> list[str]:
    """How many samples were repeated because the GPU was throttled, and the cells that kept such samples."""
    repeated: Counter[str] = Counter()
    for cell in cells:
        repeated.update(cell.metrics.discarded if cell.metrics else {})
    sentences = []
    if repeated:
        reasons = ", ".join(f"{reason} {count}" for reason, count in repeated.items())
        sentences.append(f"{counted(repeated.total(), 'sample')} repeated because the GPU was {THROTTLED}: {reasons}")
    if text := disturbed_samples(cells):
        sentences.append(f"! {text}")
    return sentences


def disturbed_samples(cells: Sequence[Cell]) -> str | None:
    """How many samples were kept although the GPU was throttled, and in which cells."""
    kept = [(f"{cell.variant}/{cell.point}", cell.metrics.disturbed) for cell in cells if cell.metrics]
    if not (kept := [(name, count) for name, count in kept if count]):
        return None
    named = ", ".join(abbreviated([f"{name} ({count})" for name, count in kept]))
    return f"{counted(sum(count for _, count in kept), 'sample')} kept although the GPU was still {THROTTLED}: {named}"


def audit_warnings(cells: Sequence[Cell]) -> list[str]:
    """Each reason why cells were not audited by the second process, with their number."""
    reasons = Counter(cell.metrics.no_audit for cell in cells if cell.metrics and cell.metrics.no_audit)
    return [f"{counted(count, 'cell')} not audited: {reason}" for reason, count in reasons.items()]


def known_failure_warnings(cells: Sequence[Cell]) -> list[str]:
    """The known failures of variants with a time, a sentence for each variant."""
    limited = {cell.variant_id: cell.known_failures for cell in cells if cell.known_failures and cell.metrics}
    return [
        f"{KNOWN_FAILURES} {variant} does not support "
        + "; ".join(f"{glob!r} ({reason})" for glob, reason in known_failures.items())
        for variant, known_failures in limited.items()
    ]


def unknown_line_warnings(run: Run) -> list[str]:
    """Of lines that another version wrote, or a room that is missing here."""
    counts = Counter(line.kind for line in run.unknown)
    return [
        f"{run.path} holds {counted(count, 'line')} of kind {kind!r}, unknown here" for kind, count in counts.items()
    ]


def measurement_warnings(runs: Sequence[Run]) -> list[str]:
    """What must be known of how these runs were measured, one sentence each; empty where there is nothing."""
    cells = [cell for run in runs for cell in run.cells]
    sentences = list(dict.fromkeys(sentence for run in runs for sentence in calibration_warnings(run)))
    if doubted := list(dict.fromkeys(key for run in runs for key in doubted_cells(run, run.cells))):
        named = ", ".join(abbreviated(doubted))
        sentences.append(f"no second estimator confirms {counted(len(doubted), 'cell')}: {named}")
    return [*sentences, *throttling_warnings(cells), *audit_warnings(cells)]
