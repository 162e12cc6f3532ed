"""Rows of a speed-up table: ratios to the baseline where both were timed, a short word where there is none."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.results import stats
from harness.results.records import Cell
from harness.results.stats import is_timed
from plots._panels import Panel, Place

_WORDS = {"mismatch": "wrong", "failed": "failed", "skipped": "skip", "unavailable": "n/a"}
#: What the short words mean, for the caption.
MEANINGS = {
    "wrong": "rejected by verification",
    "failed": "raised, or could not be measured",
    "skip": "does not apply at this point",
    "n/a": "this machine lacks what it needs",
    "no graph": "cannot be captured in a CUDA graph",
    "untimed": "verified, not timed on this machine",
    "no chain": "the chain has no time here",
}


@dataclass(frozen=True)
class Row:
    """label: axis values, padded so that they stand in columns. baseline_us: its median time. ratios: variant -> baseline time
    over variant time, above 1 is faster; the baseline's own is 1 where it was timed. words: variant -> why it has no ratio."""

    label: str
    baseline_us: float | None
    ratios: dict[str, float]
    words: dict[str, str]


@dataclass(frozen=True)
class Table:
    """axes: what a row label lists, in this order. thinned: rows are geometric means over the points of one batch size."""

    panel: Panel
    axes: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[Row]
    thinned: bool


def table(panel: Panel, most_rows: int) -> Table:
    """A row per point; with more than ``most_rows`` of them, a row per batch size."""
    axes = panel.varying() or [panel.x_axis() or next(iter(panel.places[0].axes), "")]
    widths = [max(len(place.text(axis)) for place in panel.places) for axis in axes]
    labels = [" · ".join(place.text(axis).rjust(width) for axis, width in zip(axes, widths, strict=True)) for place in panel.places]
    rows = [_row(panel, place, label) for place, label in zip(panel.places, labels, strict=True)]
    x_axis = panel.x_axis()
    if len(rows) <= most_rows or x_axis is None:
        return Table(panel, axes, panel.variants(), rows, thinned=False)
    groups: dict[str, list[Row]] = {}
    for place, row in zip(panel.places, rows, strict=True):
        groups.setdefault(place.text(x_axis), []).append(row)
    return Table(panel, [x_axis], panel.variants(), [_mean(label, group) for label, group in groups.items()], thinned=True)


def _row(panel: Panel, place: Place, label: str) -> Row:
    medians = {
        name: median
        for name, cell in place.cells.items()
        if is_timed(cell, panel.figure) and (median := float(np.median(stats.samples(cell.metrics, panel.figure)))) > 0
    }
    baseline = medians.get(panel.baseline)
    ratios = {name: baseline / median for name, median in medians.items()} if baseline else {}
    words = {name: "no chain" if name in medians else _word(cell) for name, cell in place.cells.items() if name not in ratios}
    return Row(label, baseline, ratios, words)


def _word(cell: Cell) -> str:
    if cell.status != "passed":
        return _WORDS[cell.status]
    if cell.metrics is not None and cell.metrics.no_graph:
        return "no graph"
    return "untimed"


def _mean(label: str, rows: Sequence[Row]) -> Row:
    """Geometric means over the rows that have a ratio: ratios of different points have no meaningful arithmetic mean.
    A variant that is wrong or failed at one of the points has no mean: it would hide that."""
    ratios: dict[str, list[float]] = {}
    words: dict[str, Counter[str]] = {}
    for row in rows:
        for name, ratio in row.ratios.items():
            ratios.setdefault(name, []).append(ratio)
        for name, word in row.words.items():
            words.setdefault(name, Counter())[word] += 1
    broken = {name: word for name, count in words.items() for word in ("failed", "wrong") if word in count}
    for name in broken:
        ratios.pop(name, None)
    times = [row.baseline_us for row in rows if row.baseline_us is not None]
    return Row(
        label,
        _geometric_mean(times) if times else None,
        {name: _geometric_mean(values) for name, values in ratios.items()},
        {name: broken.get(name, count.most_common(1)[0][0]) for name, count in words.items() if name not in ratios},
    )


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
