"""How a variant that is being edited compares with another one, and with what it was at the last save."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from spec_decode_bench.harness.analysis import stats, verdicts
from spec_decode_bench.harness.analysis.moderated import Difference
from spec_decode_bench.harness.analysis.stats import Interval
from spec_decode_bench.harness.numbers import percent
from spec_decode_bench.harness.records.schema import Cell, Run
from spec_decode_bench.harness.report.table import Column, Entry, Table, number_column
from spec_decode_bench.harness.report.tables import NOTHING, point_columns

NOTE = (
    "[interval, which holds for all points together], by rounds in which both variants took turns. Since the last "
    "save: of the ratio to {other}. Each save is one process, and processes differ, too; compare records of several "
    "before you rely on a small change."
)

#: Microseconds of two variants, by round.
Pair = tuple[np.ndarray, np.ndarray]


def change_text(ratio: Interval) -> str:
    """``+15.3 [+13.5, +16.8]``."""
    bounds = "no interval" if math.isnan(ratio.low) else f"{percent(ratio.low)}, {percent(ratio.high)}"
    return f"{percent(ratio.median)} [{bounds}]"


def changes_tables(run: Run, edited: Collection[str]) -> list[Table]:
    """A table for each edited variant ("operator/variant") that was timed beside another one."""
    return [_table(run, name, other) for name, other in others_of(run, edited).items()]


def others_of(run: Run, edited: Collection[str]) -> dict[str, str]:
    """Edited variant -> the name of the one that it is compared with: the fastest that is not edited."""
    timed = [cell for cell in run.in_order if stats.median_us(cell, _metric(run)) is not None]
    found = {}
    for name in dict.fromkeys(cell.variant_id for cell in timed if cell.variant_id in edited):
        own = [cell for cell in timed if cell.variant_id == name]
        found[name] = _fastest([cell for cell in timed if cell.variant_id not in edited], own, _metric(run))
    return {name: other for name, other in found.items() if other is not None}


def _metric(run: Run) -> str:
    (metric,) = verdicts.GATING[run.header.environment.device]
    return metric


def _fastest(others: Sequence[Cell], own: Sequence[Cell], metric: str) -> str | None:
    """The variant with the least geometric mean at the points of ``own``, of those timed at the most of them."""
    points = {cell.point_key for cell in own}
    times: dict[str, list[float]] = {}
    for cell in others:
        if cell.point_key in points:
            times.setdefault(cell.variant, []).append(stats.median_us(cell, metric))
    return min(times, key=lambda name: (-len(times[name]), stats.geometric_mean(times[name])), default=None)


def _pairs(run: Run, variant: str, other: str, metric: str) -> dict[str, Pair]:
    """Point -> the rounds of ``other`` and of the variant ("operator/variant")."""
    operator, _, name = variant.partition("/")
    cells = {(cell.variant, cell.point): cell for cell in run.in_order if cell.operator == operator}
    found = {
        point: verdicts.rounds_of_both(cells[other, point], cell, metric)
        for (own, point), cell in cells.items()
        if own == name and (other, point) in cells
    }
    return {point: pair for point, pair in found.items() if pair is not None}


def _table(run: Run, variant: str, other: str) -> Table:
    metric = _metric(run)
    now = _pairs(run, variant, other, metric)
    earlier = (_pairs(save, variant, other, metric) for save in reversed(run.earlier))
    before = next(filter(None, earlier), {})
    axes, labels, _ = point_columns([cell for cell in run.in_order if cell.variant_id == variant])
    both = {point: pair for point, pair in now.items() if point in before}
    judged = [
        _judged({point: verdicts.paired(base, head) for point, (base, head) in _with_all(now).items()}, now),
        _judged(_since(_with_all({point: before[point] for point in both}), _with_all(both)), both),
    ]
    texts = labels | {"": ("all", *[""] * (len(axes) - 1))}
    points = [*now, ""] if len(now) > 1 and axes else list(now)
    heads = [number_column(f"against {other}"), number_column("since the last save")][: 2 if both else 1]
    rows = tuple(
        (*map(Entry, texts[point]), *(column.get(point, NOTHING) for column, _ in zip(judged, heads, strict=False)))
        for point in points
    )
    columns = (*(Column(axis.replace("_", " "), "right") for axis in axes), *heads)
    title = f"{variant}: change of {metric} in per cent"
    return Table(title, columns, rows, (NOTE.format(other=other),), row_heads=len(axes), kind="changes")


def _with_all(pairs: Mapping[str, Pair]) -> dict[str, Pair]:
    """With the geometric means of all points, by round, under an empty name."""
    count = min((len(base) for base, _ in pairs.values()), default=0)
    sides = zip(*((base[:count], head[:count]) for base, head in pairs.values()), strict=True)
    means = [np.exp(np.mean(np.log(side), axis=0)) for side in sides]
    return {**pairs, "": (means[0], means[1])} if means else {}


def _since(before: Mapping[str, Pair], now: Mapping[str, Pair]) -> dict[str, Difference]:
    return {
        point: verdicts.since(verdicts.paired(before[point][0], before[point][1]), verdicts.paired(base, head))
        for point, (base, head) in now.items()
    }


def _judged(differences: Mapping[str, Difference], pairs: Mapping[str, Pair]) -> dict[str, Entry]:
    """Point -> verdict and change. All points, under an empty name, are judged by themselves; their change is the
    geometric mean of the ratios, as in ``compare``.
    """
    if not pairs:
        return {}
    levels = {point: float(np.log(base).mean()) for point, (base, _) in _with_all(pairs).items()}
    of_points = verdicts.judged(
        [differences[one] for one in pairs], [levels[one] for one in pairs], [True] * len(pairs)
    )
    (of_all,) = verdicts.judged([differences[""]], [levels[""]], [True])
    mean = stats.geometric_mean([found.ratio.median for found in of_points])
    scale = mean / of_all.ratio.median
    ratio = Interval(mean, scale * of_all.ratio.low, scale * of_all.ratio.high)
    entries = {point: _entry(found.verdict, found.ratio) for point, found in zip(pairs, of_points, strict=True)}
    return {**entries, "": _entry(of_all.verdict, ratio)}


def _entry(verdict: verdicts.Verdict, ratio: Interval) -> Entry:
    return Entry(f"{verdict} {change_text(ratio)}", style=verdict)
