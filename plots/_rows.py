"""Rows of a speed-up table: ratios to the baseline where both were timed, a time where only the variant was, else a
short word.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.stats import is_timed
from harness.records.schema import Cell
from plots._panels import Panel, Place, median_us

_WORDS = {"mismatch": "wrong", "failed": "failed", "skipped": "skip", "unavailable": "n/a"}
#: What the short words mean, for the caption.
MEANINGS = {
    "wrong": "rejected by verification",
    "failed": "raised, or could not be measured",
    "skip": "does not apply at this point",
    "n/a": "this machine lacks what it needs",
    "no graph": "cannot be captured in a CUDA graph",
    "untimed": "verified, not timed on this machine",
    "no time": "its samples give no time that can be drawn",
    "not run": "not part of the run that this row is from",
}


@dataclass(frozen=True)
class Row:
    """label: axis values, padded so that they stand in columns. baseline_us: its median time. ratios: variant -> baseline time
    over variant time, above 1 is faster; the baseline's own is 1 where it was timed. times: variant -> its median time where the
    baseline has none. words: variant -> why it has neither.
    """

    label: str
    baseline_us: float | None
    ratios: dict[str, float]
    times: dict[str, float]
    words: dict[str, str]


@dataclass(frozen=True)
class Table:
    """axes: what a row label lists, in this order. mean: over which points a row is a geometric mean; empty where it
    is one point.
    """

    panel: Panel
    axes: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[Row]
    mean: str = ""


def table(panel: Panel, most_rows: int) -> Table:
    """A row per point; with more than ``most_rows`` of them, a row per batch size."""
    axes = panel.varying() or [panel.x_axis() or next(iter(panel.places[0].axes), "")]
    widths = [max(len(place.text(axis)) for place in panel.places) for axis in axes]
    labels = [
        " · ".join(place.text(axis).rjust(width) for axis, width in zip(axes, widths, strict=True))
        for place in panel.places
    ]
    rows = [_row(panel, place, label) for place, label in zip(panel.places, labels, strict=True)]
    x_axis = panel.x_axis()
    if len(rows) <= most_rows or x_axis is None:
        return Table(panel, axes, panel.variants(), rows)
    groups: dict[str, list[Row]] = {}
    for place, row in zip(panel.places, rows, strict=True):
        groups.setdefault(place.text(x_axis), []).append(row)
    shared = {label: _shared(group) for label, group in groups.items()}
    means = [_mean(label, shared[label] or group, group) for label, group in groups.items()]
    return Table(panel, [x_axis], panel.variants(), means, _mean_of(x_axis, groups, shared))


def _shared(rows: Sequence[Row]) -> list[Row]:
    """Those in which every variant has a ratio that has one in any: over them the means of a row can be set against
    each other.
    """
    timed = {name for row in rows for name in row.ratios} - set(_broken(rows))
    return [row for row in rows if row.ratios and timed <= set(row.ratios)]


def _mean_of(x_axis: str, groups: Mapping[str, Sequence[Row]], shared: Mapping[str, Sequence[Row]]) -> str:
    apart = [label for label, rows in groups.items() if not shared[label] and any(row.ratios for row in rows)]
    if all(len(shared[label]) == sum(bool(row.ratios) for row in rows) for label, rows in groups.items()):
        return f"geometric mean over all points of a {x_axis}"
    text = f"geometric mean over those points of a {x_axis} at which all variants of the row are timed"
    return text + (f"; at {', '.join(apart)} there is none: each over its own points" if apart else "")


def _row(panel: Panel, place: Place, label: str) -> Row:
    medians = {
        name: median for name, cell in place.cells.items() if (median := median_us(cell, panel.figure)) is not None
    }
    baseline = medians.get(panel.baseline)
    words = {name: _word(place.cells.get(name), panel.figure) for name in panel.variants() if name not in medians}
    if not baseline:
        return Row(label, None, {}, medians, words)
    return Row(label, baseline, {name: baseline / median for name, median in medians.items()}, {}, words)


def _word(cell: Cell | None, figure: str) -> str:
    if cell is None:
        return "not run"
    if cell.status != "passed":
        return _WORDS[cell.status]
    if cell.metrics is not None and cell.metrics.no_graph:
        return "no graph"
    return "no time" if is_timed(cell, figure) else "untimed"


def _broken(rows: Iterable[Row]) -> dict[str, str]:
    """Variants that are wrong or failed in one of the rows, with that word."""
    found = {name: word for row in rows for name, word in row.words.items() if word in ("failed", "wrong")}
    return found | {name: "wrong" for row in rows for name, word in row.words.items() if word == "wrong"}


def _mean(label: str, rows: Sequence[Row], group: Sequence[Row]) -> Row:
    """Geometric means over ``rows``, of the rows of its batch size: ratios of different points have no meaningful
    arithmetic mean. A variant that is wrong or failed at one point of the ``group`` has no mean: it would hide that.
    """
    broken = _broken(group)
    ratios = _means((row.ratios for row in rows), broken)
    times = _means((row.times for row in rows), {*broken, *ratios})
    words: dict[str, Counter[str]] = {}
    for row in group:
        for name, word in row.words.items():
            words.setdefault(name, Counter())[word] += 1
    baseline = [row.baseline_us for row in rows if row.baseline_us is not None]
    reasons = {
        name: broken.get(name, count.most_common(1)[0][0])
        for name, count in words.items()
        if name not in (*ratios, *times)
    }
    return Row(label, _geometric_mean(baseline) if baseline else None, ratios, times, reasons)


def _means(rows: Iterable[Mapping[str, float]], without: Collection[str]) -> dict[str, float]:
    """Variant -> geometric mean of its values."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in without:
                values.setdefault(name, []).append(value)
    return {name: _geometric_mean(those) for name, those in values.items()}


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
