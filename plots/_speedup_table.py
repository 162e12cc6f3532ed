"""The table behind the speed-up figure: for each point and variant a ratio to the baseline, a time, or a short reason.

A box holds a ratio where both were timed, a time where only the variant was, and else a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from spec_decode_bench.harness.analysis.stats import geometric_mean, is_timed, median_us
from spec_decode_bench.harness.records.schema import Cell, Status
from spec_decode_bench.plots._panels import Panel, PointCells

#: Status of a cell -> reason in its box.
STATUS_REASONS = {
    Status.MISMATCH: "wrong",
    Status.FAILED: "failed",
    Status.SKIPPED: "skip",
    Status.UNAVAILABLE: "n/a",
}
#: A column with nothing but these is left out.
NOT_THERE = {STATUS_REASONS[Status.SKIPPED], STATUS_REASONS[Status.UNAVAILABLE]}
#: Reason in a box -> what it means, for the caption.
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
class SpeedupRow:
    """One point, or the mean over several.

    label:       axis values, padded to columns of equal width.
    baseline_us: median time of the baseline; None where it was not timed.
    ratios:      variant -> baseline time / variant time, so above 1 is faster; 1 for the baseline itself.
    times:       variant -> median time, where the baseline has none.
    reasons:     variant -> why it has neither.
    """

    label: str
    baseline_us: float | None
    ratios: dict[str, float]
    times: dict[str, float]
    reasons: dict[str, str]


@dataclass(frozen=True)
class SpeedupTable:
    """axes: what a row label lists, in this order. mean: what a row is a geometric mean of; empty if one point."""

    panel: Panel
    axes: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[SpeedupRow]
    mean: str = ""


def speedup_table(panel: Panel, max_rows: int) -> SpeedupTable:
    """A row per point, or, where these are more than ``max_rows``, a row per batch size. Without redundant points, and
    without variants that run at none of the others.
    """
    points = [point for point in panel.points if not _is_redundant(point)]  # not empty: a panel has a timed cell
    axes = panel.varying() or [panel.x_axis() or next(iter(panel.points[0].axes), "")]
    widths = [max(len(point.text(axis)) for point in points) for axis in axes]
    labels = [
        " · ".join(point.text(axis).rjust(width) for axis, width in zip(axes, widths, strict=True)) for point in points
    ]
    rows = [_row(panel, point, label) for point, label in zip(points, labels, strict=True)]
    columns = [name for name in panel.variants() if any(row.reasons.get(name) not in NOT_THERE for row in rows)]
    x_axis = panel.x_axis()
    if len(rows) <= max_rows or x_axis is None:
        return SpeedupTable(panel, axes, columns, rows)
    groups: dict[str, list[SpeedupRow]] = {}
    for point, row in zip(points, rows, strict=True):
        groups.setdefault(point.text(x_axis), []).append(row)
    complete = {label: _complete_rows(group) for label, group in groups.items()}
    means = [_mean_row(label, complete[label] or group, group) for label, group in groups.items()]
    return SpeedupTable(panel, [x_axis], columns, means, _mean_in_words(x_axis, groups, complete))


def _is_redundant(point: PointCells) -> bool:
    """Whether all variants that are available skip it, as they do a point that measures the same as another one."""
    statuses = {cell.status for cell in point.cells.values()} - {Status.UNAVAILABLE}
    return statuses == {Status.SKIPPED}


def _row(panel: Panel, point: PointCells, label: str) -> SpeedupRow:
    medians = {
        name: median for name, cell in point.cells.items() if (median := median_us(cell, panel.metric)) is not None
    }
    reasons = {name: _reason(point.cells.get(name), panel.metric) for name in panel.variants() if name not in medians}
    baseline = medians.get(panel.baseline)
    if baseline is None:
        return SpeedupRow(label, None, {}, medians, reasons)
    return SpeedupRow(label, baseline, {name: baseline / median for name, median in medians.items()}, {}, reasons)


def _reason(cell: Cell | None, metric: str) -> str:
    if cell is None:
        return "not run"
    if cell.status != Status.PASSED:
        return STATUS_REASONS[cell.status]
    if cell.metrics is not None and cell.metrics.no_graph:
        return "no graph"
    return "no time" if is_timed(cell, metric) else "untimed"


# --- a row per batch size ---------------------------------------------------------------------------------------------


def _complete_rows(rows: Sequence[SpeedupRow]) -> list[SpeedupRow]:
    """The rows in which all variants have a ratio that have one in any row. Only over the same points can the means of
    different variants be compared.
    """
    timed = {name for row in rows for name in row.ratios} - set(_bad_variants(rows))
    return [row for row in rows if row.ratios and timed <= set(row.ratios)]


def _bad_variants(rows: Iterable[SpeedupRow]) -> dict[str, str]:
    """Variants that are wrong or failed in one of the rows -> "wrong" or "failed"."""
    reasons = [(name, reason) for row in rows for name, reason in row.reasons.items()]
    failed = {name: reason for name, reason in reasons if reason == "failed"}
    return failed | {name: reason for name, reason in reasons if reason == "wrong"}


def _mean_row(label: str, rows: Sequence[SpeedupRow], group: Sequence[SpeedupRow]) -> SpeedupRow:
    """Geometric means over ``rows``, which are of the ``group`` of one batch size.

    A variant that is wrong or failed at any point of the group has no mean, which would hide that.
    """
    bad = _bad_variants(group)
    ratios = _geometric_means((row.ratios for row in rows), without=bad)
    times = _geometric_means((row.times for row in rows), without={*bad, *ratios})
    counts: dict[str, Counter[str]] = {}
    for row in group:
        for name, reason in row.reasons.items():
            counts.setdefault(name, Counter())[reason] += 1
    reasons = {
        name: bad.get(name, count.most_common(1)[0][0])
        for name, count in counts.items()
        if name not in (*ratios, *times)
    }
    baseline = [row.baseline_us for row in rows if row.baseline_us is not None]
    return SpeedupRow(label, geometric_mean(baseline) if baseline else None, ratios, times, reasons)


def _mean_in_words(
    x_axis: str, groups: Mapping[str, Sequence[SpeedupRow]], complete: Mapping[str, Sequence[SpeedupRow]]
) -> str:
    if all(len(complete[label]) == sum(bool(row.ratios) for row in rows) for label, rows in groups.items()):
        return f"geometric mean over all points of a {x_axis}"
    text = f"geometric mean over the points of a {x_axis} that all variants of the row have"
    without = [label for label, rows in groups.items() if not complete[label] and any(row.ratios for row in rows)]
    return text + (f"; at {', '.join(without)} they share none: each over its own" if without else "")


def _geometric_means(rows: Iterable[Mapping[str, float]], without: Collection[str]) -> dict[str, float]:
    """Variant -> geometric mean of its values, since ratios of different points have no meaningful arithmetic mean."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in without:
                values.setdefault(name, []).append(value)
    return {name: geometric_mean(of_variant) for name, of_variant in values.items()}
