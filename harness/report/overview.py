"""A row for each operator and point: the fastest kernel of an engine, the fastest PyTorch variant, and ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from spec_decode_bench.harness.analysis.code_changes import files_of_variants
from spec_decode_bench.harness.analysis.stats import COPY_BOUND, median_us
from spec_decode_bench.harness.analysis.warnings import doubted_cells, known_failure_warnings
from spec_decode_bench.harness.numbers import significant
from spec_decode_bench.harness.packages import project
from spec_decode_bench.harness.records.schema import Cell, RecordError, Run
from spec_decode_bench.harness.records.select import every_axis
from spec_decode_bench.harness.report.table import Column, Entry, Table, number_column
from spec_decode_bench.harness.report.tables import NBSP, NOTHING, copy_bound_entry, host_and_launches, marks, ratio

Choice = Callable[[Cell], bool]
#: Begins the names of engines' variants.
_ENGINES = ("deep_gemm", "flash_mla", "sglang", "vllm")


class AtPoint(NamedTuple):
    """A row. cells: of the operator at one point of the run. what: the point, or what sets it apart."""

    operator: str
    what: str
    run: Run
    cells: list[Cell]

    @property
    def head(self) -> Entry:
        """Of the row in a table."""
        return Entry(self.operator, self.what, "code")


def is_engine(cell: Cell) -> bool:
    """Whether it is an engine's own kernel."""
    return _folder(cell) == "upstream"


def is_pytorch(cell: Cell) -> bool:
    """Whether it is made of PyTorch operators."""
    return _folder(cell) == "baselines"


def _folder(cell: Cell) -> str:
    return files_of_variants()[cell.variant_id].parts[0] if cell.variant_id in files_of_variants() else ""


def named(*variants: str) -> Choice:
    """Whether it is one of these variants."""
    return lambda cell: cell.variant in variants


#: Head of a column -> what it shows the fastest of.
COLUMNS: dict[str, Choice] = {
    "engine": is_engine,
    "PyTorch": is_pytorch,
    "Triton": named("triton_fused"),
    "CUDA C++": named("cuda_fused"),
}


def fastest(cells: Iterable[Cell], choice: Choice) -> Cell | None:
    """By GPU time; None where none was timed."""
    times = [(time, cell) for cell in cells if choice(cell) and (time := median_us(cell, "gpu_us"))]
    return min(times, key=lambda timed: timed[0])[1] if times else None


def rows_at(runs: Iterable[Run], glob: str, operator: str | None = None) -> list[AtPoint]:
    """All points whose label ``glob`` matches, with or without the axes at their defaults, of one operator or all.

    Raises RecordError where there is none.
    """
    rows: dict[tuple[str, str], AtPoint] = {}
    for run in runs:
        for cell in run.in_order:
            if operator not in (None, cell.operator):
                continue
            if fnmatchcase(cell.point, glob) or fnmatchcase(every_axis(cell), glob):
                row = AtPoint(cell.operator, cell.point, run, [])
                rows.setdefault((run.path, cell.point_key), row).cells.append(cell)
    if not rows:
        paths = ", ".join(run.path for run in runs)
        raise RecordError(
            f"no point{f' of {operator}' if operator else ''} matches {glob!r} in {paths}; axes stand in the order of "
            "`bench.py list OPERATOR`, and those at their defaults may be left out"
        )
    return list(rows.values())


def overview_table(rows: Sequence[AtPoint], columns: Mapping[str, Choice] = COLUMNS) -> Table:
    """GPU times, host times and launches."""
    entries = tuple((row.head, *_entries(row, columns.values())) for row in rows)
    heads = (Column("operator"), *map(number_column, (*columns, "copy bound")))
    limits = known_failure_warnings([cell for row in rows for cell in shown(row, columns)])
    notes = (f"* fastest of its row. {COPY_BOUND}.", *limits)
    return Table("GPU µs; below: host µs · launches", heads, entries, notes, kind="overview")


def shown(row: AtPoint, columns: Mapping[str, Choice] = COLUMNS) -> list[Cell]:
    """The cells that have an entry."""
    return [cell for choice in columns.values() if (cell := fastest(row.cells, choice))]


def _entries(row: AtPoint, choices: Iterable[Choice]) -> list[Entry]:
    found = [fastest(row.cells, choice) for choice in choices]
    doubted, best = doubted_cells(row.run, row.cells), fastest(filter(None, found), lambda cell: True)
    entries = []
    for cell in found:
        if cell is None:
            entries.append(NOTHING)
            continue
        name = "" if cell.variant.endswith("_fused") else f"{cell.variant}{NBSP}"
        text = f"{name}{significant(median_us(cell, 'gpu_us'))}{marks(cell, cell is best, doubted)}"
        entries.append(Entry(text, host_and_launches(cell), "best" if cell is best else ""))
    return [*entries, copy_bound_entry(row.run, row.cells)]


def before_and_fused(row: AtPoint) -> tuple[Cell, Cell]:
    """(the fastest kernel of an engine, or where none was timed the fastest PyTorch variant; the faster fused kernel)

    Raises RecordError where one of them was not timed.
    """
    before = fastest(row.cells, is_engine) or fastest(row.cells, is_pytorch)
    fused = fastest(row.cells, named("triton_fused", "cuda_fused"))
    if before is None or fused is None:
        raise RecordError(f"{row.run.path} has no times to compare of {row.operator} at {row.what}")
    return before, fused


def speedup_table(rows: Sequence[AtPoint]) -> Table:
    """Before and fused."""
    entries = []
    for row in rows:
        before, _ = both = before_and_fused(row)
        engine = next((name for name in _ENGINES if before.variant.startswith(name)), None)
        whose = project(engine) if engine else f"PyTorch {before.variant}"
        us, doubted = [median_us(cell, "gpu_us") for cell in both], doubted_cells(row.run, both)
        times = [f"{significant(time)}{'?' * (cell.key in doubted)}" for time, cell in zip(us, both, strict=True)]
        launches = " → ".join(str(cell.metrics.launches) for cell in both)
        texts = (f"{whose} {times[0]}", times[1], ratio(us[0] / us[1]), launches)
        entries.append((row.head, *map(Entry, texts)))
    heads = map(number_column, ("before, µs", "fused, µs", "speed-up", "launches"))
    return Table("", (Column("operator"), *heads), tuple(entries), kind="speed-up")
