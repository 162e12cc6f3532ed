"""`bench.py run`: drive the worker over a plan, write every cell at once, then show tables and draw figures."""

from __future__ import annotations

import datetime
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from harness.config import Source
from harness.console import make_console, print_compiled, print_counts, print_environment, print_tables, progress_bar
from harness.discover import ROOT
from harness.exits import BAD, INTERRUPTED, OK
from harness.protocol import Job, Ready
from harness.records import SCHEMA_VERSION, Header, RecordError, Run, Writer, read_run, sources_compile
from harness.run import RunError, Runner
from harness.sweep import Group
from harness.tables import markdown, result_tables

REFERENCE = ROOT / "results" / "reference"


def record(console: Console, job: Job, source: Source, groups: Sequence[Group], out: Path | None, no_plots: bool) -> int:
    """Measure all groups into ``out``/run.jsonl; the exit code. Ctrl-C keeps what is there and reports it."""
    folder = out or Path("results") / f"{source.config.name}-{job.device}-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}"
    writer = Writer(folder / "run.jsonl")
    total = sum(len(group.variants) for group in groups)
    header, interrupted, stopped = None, False, None

    try:
        with progress_bar(console, total) as update:
            runner = None
            try:
                runner = Runner(job, writer.cell, lambda progress: update(progress.done, progress.doing))
                header = _header(source, job, groups, runner.ready)
                writer.header(header)
                runner.run(groups)
            except KeyboardInterrupt:
                interrupted = True
            except RunError as error:
                if header is None:
                    raise
                stopped = str(error)
            finally:
                if runner is not None:
                    runner.close(wait_s=0 if interrupted else 30)
    finally:
        writer.close()
    if header is None:
        raise KeyboardInterrupt
    # What is on disk counts, not what was about to be noted when Ctrl-C came.
    cells = read_run(writer.path).cells
    try:
        _report(console, Run(str(writer.path), header, cells), folder, no_plots)
    except OSError as error:
        raise RecordError(f"cannot write {error.filename}: {error.strerror}; the record {writer.path} is complete") from None
    if interrupted:
        make_console(stderr=True).print(Text(f"interrupted: {len(cells)} of {total} cells are kept in {writer.path}"))
        return INTERRUPTED
    if stopped:
        make_console(stderr=True).print(Text(f"stopped: {stopped}; {len(cells)} of {total} cells are kept in {writer.path}"))
        return BAD
    return BAD if not sources_compile(header.compiled) or any(cell.status in ("mismatch", "failed") for cell in cells) else OK


def _header(source: Source, job: Job, groups: Sequence[Group], ready: Ready) -> Header:
    return Header(
        schema=SCHEMA_VERSION,
        name=source.config.name,
        command=shlex.join(["python", "bench.py", *sys.argv[1:]]),
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seed=job.seed,
        variants=tuple(dict.fromkeys(variant.id for group in groups for variant in group.variants)),
        config=msgspec.to_builtins(source.config),
        environment=ready.environment,
        calibration=ready.calibration,
        compiled=ready.compiled,
    )


def _report(console: Console, run: Run, folder: Path, no_plots: bool) -> None:
    tables = result_tables(run.header, run.cells)
    print_environment(console, run.header.environment)
    print_tables(console, tables)
    console.print()
    print_compiled(console, run.header.compiled)
    print_counts(console, run.cells)
    (folder / "table.md").write_text(markdown(tables), encoding="utf-8")
    drawn = []
    if run.cells and not no_plots:
        from plots import draw_all

        drawn = draw_all([run, *_references(run)], folder)
    console.print(Text(f"record, table and {len(drawn)} plots: {folder}"))


def _references(run: Run) -> list[Run]:
    """Recorded GPU runs of the same points, drawn beside a run that has no GPU of its own."""
    if run.header.environment.device == "cuda":
        return []
    points = {cell.point_key for cell in run.cells}
    recorded = []
    for path in sorted(REFERENCE.glob("**/*.jsonl")):
        try:
            recorded.append(read_run(path))
        except RecordError as error:
            make_console(stderr=True).print(Text(f"warning: not drawn beside this run: {error}"))
    return [r for r in recorded if points & {cell.point_key for cell in r.cells}]
