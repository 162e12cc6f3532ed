"""`bench.py run`: drive the worker over a plan, write every cell at once, then show tables and draw figures."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import msgspec
from msgspec import structs
from rich.console import Console
from rich.text import Text

from harness.config.load import Source
from harness.config.sweep import Group
from harness.discover import ROOT
from harness.exit_codes import BAD, INTERRUPTED, OK
from harness.records.file import Writer, read_run
from harness.records.schema import Header, RecordError, Run, sources_compile
from harness.report.console import (
    make_console,
    print_calibration_errors,
    print_compiled,
    print_counts,
    print_environment,
    print_spent,
    print_tables,
    progress_bar,
)
from harness.report.tables import markdown, result_tables
from harness.runner.protocol import Job, Ready
from harness.runner.resume import cell_keys, check_same_machine, lacking
from harness.runner.run import RunError, Runner, header, segment, utc_now
from harness.wording import counted

REFERENCE = ROOT / "results" / "reference"


def record(
    console: Console,
    job: Job,
    source: Source,
    groups: Sequence[Group],
    out: Path | None,
    no_plots: bool,
    shard: str | None = None,
    resumed: Run | None = None,
) -> int:
    """Measure all groups into ``out``/run.jsonl, or what ``resumed`` lacks of them into its file; the exit code.

    Ctrl-C keeps what is there and reports it.
    """
    folder = Path(resumed.path).parent if resumed else out or _default_folder(source.config.name, job.device, shard)
    missing = list(lacking(groups, resumed.cells)) if resumed else list(groups)
    writer = Writer(Path(resumed.path) if resumed else folder / "run.jsonl", resume=resumed is not None)
    total = sum(len(group.variants) for group in missing)
    begun, interrupted, stopped = resumed is not None and not missing, False, None
    runner: Runner | None = None

    try:
        with progress_bar(console, total) as update:
            finished = False
            try:
                if missing:
                    runner = Runner(job, writer.write, lambda progress: update(progress.done, progress.doing))
                    if resumed:
                        check_same_machine(resumed, runner.ready.environment)
                        writer.write(segment(runner.ready, "resumed", job.measure.cache))
                    else:
                        writer.write(_header(source, job, groups, runner.ready, shard))
                    begun = True
                    runner.run(missing)
                finished = True
            except KeyboardInterrupt:
                interrupted = True
            except RunError as error:
                if not begun:
                    raise
                stopped = str(error)
            finally:
                if runner is not None:
                    runner.close(wait_s=30 if finished else 0)
    finally:
        writer.close()
    if not begun:
        raise KeyboardInterrupt
    # What is on disk counts, not what was about to be noted when Ctrl-C came.
    run = read_run(writer.path)
    try:
        report(console, run, folder, no_plots, runner.spent_s if runner else None)
    except KeyboardInterrupt:
        interrupted = True
    except OSError as error:
        what = error.filename or f"to {folder}"
        raise RecordError(f"cannot write {what}: {error.strerror}; the record {writer.path} is complete") from None
    planned = sum(len(group.variants) for group in groups)
    if interrupted or stopped:
        kept = (
            f"{len(run.cells)} of {planned} cells are kept in {writer.path}; complete them with --resume {writer.path}"
        )
        make_console(stderr=True).print(
            Text(f"{'interrupted' if interrupted else f'stopped: {stopped}'}: {kept}"), soft_wrap=True
        )
        return INTERRUPTED if interrupted else BAD
    return exit_code(run)


def exit_code(run: Run) -> int:
    """1 where a CUDA source does not compile, or a cell is a mismatch or failed."""
    return (
        BAD
        if not sources_compile(run.header.compiled) or any(cell.status in ("mismatch", "failed") for cell in run.cells)
        else OK
    )


def _default_folder(name: str, device: str, shard: str | None) -> Path:
    """One that is not there yet: array tasks begin in the same second."""
    piece = f"-{shard.replace('/', 'of')}" if shard else ""
    stem = f"{name}-{device}-{utc_now():%Y%m%dT%H%M%S}{piece}"
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(folder for one in names if not (folder := Path("results") / one).exists())


def _header(source: Source, job: Job, groups: Sequence[Group], ready: Ready, shard: str | None) -> Header:
    return header(
        ready,
        msgspec.to_builtins(source.config),
        seed=job.seed,
        shard=shard,
        cells=cell_keys(groups),
        command=shlex.join(["python", "bench.py", *sys.argv[1:]]),
        variants=tuple(dict.fromkeys(variant.id for group in groups for variant in group.variants)),
    )


def report(
    console: Console, run: Run, folder: Path, no_plots: bool, spent_s: Mapping[str, float] | None = None
) -> None:
    """Tables on screen and in ``folder``/table.md, plots beside them. spent_s: see Runner; None where nothing was
    measured now.
    """
    tables = result_tables(run)
    print_environment(console, run.header.environment)
    print_calibration_errors(console, run.uncalibrated)
    print_tables(console, tables)
    console.print()
    print_compiled(console, run.header.compiled)
    print_counts(console, run.cells)
    print_spent(console, spent_s or {})
    (folder / "table.md").write_text(markdown(tables), encoding="utf-8")
    drawn, beside = [], []
    if run.cells and not no_plots:
        from plots import draw_all

        beside = _references(run)
        drawn = draw_all([run, *beside], folder)
    figures = counted(len({path.stem for path in drawn}), "figure")
    recorded = (
        f", which also show {', '.join(f'{one.path} ({one.header.environment.gpu})' for one in beside)}"
        if beside and drawn
        else ""
    )
    console.print(Text(f"record, table and {figures}: {folder}{recorded}"))


def _references(run: Run) -> list[Run]:
    """What was recorded on GPUs at the points and in the cache state of this run, drawn beside a run that has no GPU
    of its own.
    """
    if run.header.environment.device == "cuda":
        return []
    points = {cell.point_key for cell in run.cells}
    recorded = []
    for path in sorted(REFERENCE.glob("**/*.jsonl")):
        try:
            recorded.append(read_run(path))
        except RecordError as error:
            make_console(stderr=True).print(Text(f"warning: not drawn beside this run: {error}"), soft_wrap=True)
    return [part for r in recorded if r.cache == run.cache and (part := _only(r, points)).cells]


def _only(run: Run, points: Set[tuple[str, str]]) -> Run:
    """A run less its cells at other points."""
    kept = [cell.point_key in points for cell in run.cells]
    return structs.replace(
        run,
        cells=list(itertools.compress(run.cells, kept)),
        segments=[(sum(kept[:start]), one) for start, one in run.segments],
    )
