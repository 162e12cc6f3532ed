"""What a run shows and draws when it has ended, and its exit code."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from msgspec import structs
from rich.console import Console
from rich.text import Text

from spec_decode_bench.harness.analysis.seconds import seconds_of
from spec_decode_bench.harness.analysis.warnings import unknown_line_warnings
from spec_decode_bench.harness.command.verdict import verified_nothing
from spec_decode_bench.harness.discover import ROOT
from spec_decode_bench.harness.exit_codes import BAD, OK
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.schema import RecordError, Run, sources_compile
from spec_decode_bench.harness.registry import section_of
from spec_decode_bench.harness.report.console import (
    print_calibration_errors,
    print_compiled,
    print_counts,
    print_endings,
    print_environment,
    print_seconds,
    print_tables,
    warn,
)
from spec_decode_bench.harness.report.table import Table, markdown
from spec_decode_bench.harness.report.tables import result_tables
from spec_decode_bench.harness.wording import counted

REFERENCE = ROOT / "results" / "reference"
#: The tables of a run, beside its record, and the line by which a later run knows that they are not the user's.
TABLE, OURS = "table.md", "<!-- written by bench.py, and drawn again from run.jsonl -->"


def exit_code(run: Run) -> int:
    """1 where a CUDA source does not compile, or a cell or a stack is a mismatch or failed; 2 where all of them are
    skipped or unavailable, which stderr then says.
    """
    lines = run.outcomes
    if not sources_compile(run.header.compiled) or any(line.status.is_bad for line in lines):
        return BAD
    if not lines or any(line.status.is_verdict for line in lines):
        return OK
    noun = "line" if run.others else "cell"
    return verified_nothing((line.reason for line in lines), noun, compiled=bool(run.header.compiled))


def refuse_foreign_table(folder: Path) -> None:
    """Raises RecordError where a new run would overwrite a table.md that none of this suite's runs wrote."""
    path = folder / TABLE
    with suppress(OSError):
        if path.exists() and not path.read_bytes().startswith(OURS.encode()):
            raise RecordError(
                f"{path} was not written by a run and would be overwritten; choose another folder with --out"
            )


def print_run(console: Console, run: Run) -> list[Table]:
    """The tables of a run, with what is to be known of it above and below them."""
    print_environment(console, run.header.environment)
    print_calibration_errors(console, run.uncalibrated)
    for sentence in unknown_line_warnings(run):
        warn(sentence)
    if section := section_of(run):
        return section.show(console, run)
    tables = result_tables(run)
    print_tables(console, tables)
    console.print()
    print_compiled(console, run.header.compiled)
    print_counts(console, run.cells)
    print_endings(console, ((cell.variant_id, cell) for cell in run.cells if cell.status.is_bad), "point")
    return tables


def report(console: Console, run: Run, folder: Path, no_plots: bool) -> None:
    """Tables on screen and in ``folder``/table.md, plots beside it."""
    began = time.monotonic()
    tables = print_run(console, run)
    print_seconds(console, seconds_of(run))
    (folder / TABLE).write_text(f"{OURS}\n\n{markdown(tables)}", encoding="utf-8")
    drawn, references = [], []
    if run.outcomes and not no_plots:
        from spec_decode_bench.plots import draw_all

        references = _references(run)
        drawn = draw_all([run], folder, beside=references)
    plots = counted(len({path.stem for path in drawn}), "plot")
    text = f"record, table and {plots}, made in {time.monotonic() - began:.1f} s: {folder}"
    if drawn and references:
        text += f", which also show {', '.join(f'{r.path} ({r.header.environment.gpu})' for r in references)}"
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
