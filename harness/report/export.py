"""The cells of records as one flat table for other programs."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from spec_decode_bench.harness.analysis.stats import METRICS, interval, is_timed, samples
from spec_decode_bench.harness.printable import printable
from spec_decode_bench.harness.records.schema import Cell, Run, axis_texts
from spec_decode_bench.harness.records.sentences import ending

#: Columns before and after those of the axes.
OF_RUN = ("record", "name", "started", "commit", "dirty", "device", "gpu", "cache", "seed")
OF_CELL = ("operator", "variant", "baseline", "point")
OUTCOME = (
    "status",
    "reason",
    "check",
    "tensor",
    "index",
    "launches",
    "bytes_moved",
    "metric",
    "median_us",
    "low_us",
    "high_us",
    "samples",
)


def table(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Column -> values, one for each metric of each cell; a cell without a time has one row, without a metric.

    median_us, low_us, high_us: the median of the samples and its 95 % bootstrap interval, microseconds. The axes have
    columns of their own: numbers where all values are numbers, else texts; None where an operator lacks the axis.
    """
    rows = [row for run in runs for cell in run.in_order for row in _rows(run, cell)]
    columns = {name: [left[name] for left, _, _, _ in rows] for name in (*OF_RUN, *OF_CELL)}
    for axis in dict.fromkeys(axis for _, axes, _, _ in rows for axis in axes):
        values = [axes.get(axis) for _, axes, _, _ in rows]
        if not all(value is None or isinstance(value, int | float) for value in values):
            values = [texts.get(axis) for _, _, texts, _ in rows]
        columns[f"axis_{axis}" if axis in (*columns, *OUTCOME) else axis] = values
    return columns | {name: [right.get(name) for _, _, _, right in rows] for name in OUTCOME}


def _rows(run: Run, cell: Cell) -> Iterator[tuple[dict[str, Any], ...]]:
    """(columns of run and cell, axes, axes as texts, outcome)."""
    environment = run.header.environment
    of_run = (
        printable(run.path),
        run.header.name,
        run.header.started,
        environment.commit,
        environment.dirty,
        environment.device,
        environment.gpu,
        run.cache,
        run.header.seed,
    )
    left = dict(zip(OF_RUN, of_run, strict=True)) | {name: getattr(cell, name) for name in OF_CELL}
    outcome: dict[str, Any] = {"status": str(cell.status), "reason": ending(cell)}
    if cell.finding:
        outcome["check"] = cell.finding.check
        if (difference := cell.finding.difference) is not None:
            outcome |= {"tensor": difference.tensor, "index": " ".join(map(str, difference.index)) or None}
    if cell.metrics:
        outcome |= {"launches": cell.metrics.launches, "bytes_moved": cell.metrics.bytes_moved}
    texts = axis_texts(cell.point, cell.axes)
    timed = [metric for metric in METRICS if is_timed(cell, metric)]
    for metric in timed:
        time = interval(cell, metric)
        times = {"metric": metric, "median_us": time.median, "low_us": time.low, "high_us": time.high}
        times["samples"] = len(samples(cell.metrics, metric))
        yield left, cell.axes, texts, outcome | times
    if not timed:
        yield left, cell.axes, texts, outcome


def write_csv(columns: dict[str, list[Any]], file: TextIO) -> None:
    """With a header line; None is an empty field."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
