"""What a run shows and draws when it has ended."""

from __future__ import annotations

import time
from pathlib import Path

from msgspec import structs
from rich.console import Console
from rich.text import Text

from spec_decode_bench.harness.analysis.seconds import seconds_of
from spec_decode_bench.harness.analysis.warnings import unknown_line_warnings
from spec_decode_bench.harness.discover import ROOT
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.schema import RecordError, Run
from spec_decode_bench.harness.registry import section_of
from spec_decode_bench.harness.report.console import (
    print_calibration_errors,
    print_compiled,
    print_counts,
    print_endings,
    print_environment,
    print_seconds,
    print_tables,
    saying,
    warn,
)
from spec_decode_bench.harness.report.table import Table, write_tables
from spec_decode_bench.harness.report.tables import result_tables

REFERENCE = ROOT / "results" / "reference"


def print_run(console: Console, run: Run) -> list[Table]:
    """The tables of a run, with what is to be known of it above and below them."""
    print_environment(console, run.header.environment)
    print_calibration_errors(console, run.uncalibrated)
    if section := section_of(run):
        return section.show(console, [run])
    tables = result_tables(run)
    print_tables(console, tables)
    console.print()
    print_compiled(console, run.header.compiled)
    print_counts(console, run.cells)
    print_endings(console, ((cell.variant_id, cell) for cell in run.cells if cell.status.is_bad), "point")
    return tables


def load_plots() -> None:
    """Matplotlib, which takes a second."""
    from spec_decode_bench.plots import _style  # noqa: F401


def report(console: Console, run: Run, folder: Path, command_began: float | None = None, *, no_plots: bool) -> None:
    """Tables on screen and in ``folder``/table.md, plots beside it. command_began: by time.monotonic(), of the one that
    measured all of the run.
    """
    began = time.monotonic()
    for sentence in unknown_line_warnings(run):
        warn(sentence)
    references, drawn_by = [], list
    if run.outcomes and not no_plots:
        from spec_decode_bench.plots import begin_drawing

        references = _references(run)
        drawn_by = begin_drawing([run], folder, beside=references)
    tables = print_run(console, run)
    write_tables(folder, tables)
    with saying("drawing the plots"):
        drawn = drawn_by()
    if seconds := seconds_of(run):
        now = time.monotonic()
        wall_s = None if command_began is None else now - command_began
        print_seconds(console, {**seconds, "report": now - began}, wall_s)
    plots = counted(len({path.stem for path in drawn}), "plot")
    text = f"record, table and {plots}: {folder}"
    if drawn and references:
        names: dict[str, list[str]] = {}
        for reference in references:
            names.setdefault(reference.header.environment.gpu, []).append(Path(reference.path).stem)
        shown = "; ".join(f"{gpu}: {', '.join(of_gpu)}" for gpu, of_gpu in names.items())
        text += f". For want of a GPU the plots also show records of {REFERENCE}: {shown}"
    console.print(Text(text))


def _references(run: Run) -> list[Run]:
    """For a sweep without a GPU: the recorded GPU runs, at the points and in the cache state of this run."""
    if run.header.environment.device == "cuda" or run.others:
        return []
    points = {cell.point_key for cell in run.cells}
    recorded = []
    for path in sorted(REFERENCE.glob("**/*.jsonl")):
        try:
            reference = read_run(path)
        except RecordError as error:
            warn(f"not drawn beside this run: {error}")
            continue
        cells = [cell for cell in reference.cells if cell.point_key in points]
        if cells and reference.cache == run.cache:
            recorded.append(structs.replace(reference, cells=cells))
    return recorded
