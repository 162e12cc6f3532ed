"""Tables with a column per GPU: a summary with a row per variant, and for each operator a row per cell."""

from __future__ import annotations

from spec_decode_bench.harness.analysis.across_gpus import AcrossGpus, GpuRow
from spec_decode_bench.harness.analysis.stats import geometric_mean
from spec_decode_bench.harness.numbers import significant
from spec_decode_bench.harness.report.table import Entry, Table, variant_table
from spec_decode_bench.harness.report.tables import NBSP, NOTHING, point_columns

METRIC_NAMES = {"gpu_us": "GPU µs", "host_us": "host µs", "eager_us": "eager µs"}


def summary_table(across: AcrossGpus) -> Table:
    """Geometric means over the points that all GPUs have."""
    rows = []
    variants = dict.fromkeys((row.cell.operator, row.cell.variant) for row in across.rows)
    operators = list(dict.fromkeys(operator for operator, _ in variants))
    # Together, although a later record may have a variant that the first one lacks.
    for operator, variant in sorted(variants, key=lambda variant: operators.index(variant[0])):
        if common := across.common(operator, variant):
            times = {gpu: geometric_mean([row.us[gpu] for row in common]) for gpu in across.gpus}
            rows.append(((operator, variant, str(len(common))), _entries(across, times)))
    mean = "geometric mean over the points that all have" if rows else "no point was timed on all of these GPUs"
    title = f"{_what(across)}: {mean}"
    return variant_table(title, ("operator", "variant", "points"), across.gpus, rows, _notes(across), kind="summary")


def operator_tables(across: AcrossGpus) -> list[Table]:
    """A row for each cell, of each operator a table."""
    tables = []
    for operator in dict.fromkeys(row.cell.operator for row in across.rows):
        of_operator = _by_point([row for row in across.rows if row.cell.operator == operator])
        axes, labels, shared = point_columns([row.cell for row in of_operator])
        rows = [((*labels[row.cell.point], row.cell.variant), _entries(across, row.us)) for row in of_operator]
        notes = (f"unless a row says otherwise: {shared}",) if shared else ()
        title = f"{operator}: {_what(across)}"
        tables.append(variant_table(title, (*axes, "variant"), across.gpus, rows, notes, kind="operator"))
    return tables


def _by_point(rows: list[GpuRow]) -> list[GpuRow]:
    """Together, in the order of their first row: records are merged cell by cell."""
    points = list(dict.fromkeys(row.cell.point for row in rows))
    return sorted(rows, key=lambda row: points.index(row.cell.point))


def _what(across: AcrossGpus) -> str:
    cache = "" if across.cache == "hot" else f", {across.cache} cache"
    beside = f" (times faster than {across.gpus[0]})" if len(across.gpus) > 1 else ""
    return f"{METRIC_NAMES[across.metric]}{cache}{beside}"


def _entries(across: AcrossGpus, us: dict[str, float]) -> tuple[Entry, ...]:
    first, entries = us.get(across.gpus[0]), []
    for gpu in across.gpus:
        if gpu not in us:
            entries.append(NOTHING)
            continue
        beside = f"{NBSP}{first / us[gpu]:.2f}×" if first is not None and gpu != across.gpus[0] else ""
        entries.append(Entry(f"{significant(us[gpu])}{beside}"))
    return tuple(entries)


def _notes(across: AcrossGpus) -> tuple[str, ...]:
    """What each column was measured with."""
    notes = []
    for gpu in across.gpus:
        for run in across.runs:
            environment = run.header.environment
            if environment.gpu == gpu:
                warning = f"; UNCALIBRATED: {run.uncalibrated[0]}" if run.uncalibrated else ""
                notes.append(
                    f"{gpu}: record {run.header.name}, driver {environment.driver}, torch {environment.torch}, Triton "
                    f"{environment.triton}, commit {environment.commit}{'+' if environment.dirty else ''}{warning}"
                )
    return tuple(dict.fromkeys(notes))
