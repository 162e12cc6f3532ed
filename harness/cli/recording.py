"""`bench.py run`: measure a plan, write every cell at once, then show tables and draw figures."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import structs
from rich.console import Console
from rich.text import Text

from harness.config.load import Source
from harness.config.sweep import Group, cell_keys
from harness.discover import ROOT
from harness.exit_codes import BAD, INTERRUPTED, OK
from harness.records.file import Writer, read_run
from harness.records.schema import Header, RecordError, Run, Segment, sources_compile
from harness.report.console import (
    make_console,
    print_calibration_errors,
    print_compiled,
    print_counts,
    print_environment,
    print_tables,
    print_wall_time,
    progress_bar,
)
from harness.report.tables import markdown, result_tables
from harness.runner.protocol import Job, Ready
from harness.runner.resume import check_same_machine, missing_groups
from harness.runner.run import RunError, Runner, WallTime, header, segment, utc_now
from harness.runner.worker import Worker
from harness.wording import counted

REFERENCE = ROOT / "results" / "reference"


@dataclass
class _Outcome:
    """How the measuring of a run ended.

    begun:       whether the record has a header, so that there is something to report and to complete.
    interrupted: by Ctrl-C.
    error:       why the run could not go on.
    wall_time:   None where nothing was left to measure.
    """

    begun: bool = False
    interrupted: bool = False
    error: str | None = None
    wall_time: WallTime | None = None


def record(
    console: Console,
    job: Job,
    source: Source,
    groups: Sequence[Group],
    out: Path | None,
    no_plots: bool,
    shard: str | None = None,
    resumed: Run | None = None,
    start: Callable[[Job], Worker] | None = None,
) -> int:
    """Measure all groups into ``out``/run.jsonl, or what ``resumed`` lacks of them into its file; the exit code.

    Ctrl-C keeps and reports what there is.
    """
    folder = Path(resumed.path).parent if resumed else out or _default_folder(source.config.name, job.device, shard)
    missing = missing_groups(groups, resumed.cells) if resumed else list(groups)

    def first_line(ready: Ready) -> Header | Segment:
        if resumed is None:
            return _header(source, job, groups, ready, shard)
        check_same_machine(resumed, ready.environment)
        return segment(ready, "resumed", job.measure.cache)

    writer = Writer(Path(resumed.path) if resumed else folder / "run.jsonl", resume=resumed is not None)
    try:
        outcome = _measure(console, job, missing, writer, first_line, start) if missing else _Outcome(begun=True)
    finally:
        writer.close()
    if not outcome.begun:
        raise KeyboardInterrupt

    run = read_run(writer.path)  # what is on disk counts
    try:
        report(console, run, folder, no_plots, outcome.wall_time)
    except KeyboardInterrupt:
        outcome.interrupted = True
    except OSError as error:
        what = error.filename or f"to {folder}"
        raise RecordError(f"cannot write {what}: {error.strerror}; the record {writer.path} is complete") from None
    if not outcome.interrupted and outcome.error is None:
        return exit_code(run)
    ended = "interrupted" if outcome.interrupted else f"stopped: {outcome.error}"
    kept = f"{len(run.cells)} of {len(cell_keys(groups))} cells are kept in {writer.path}"
    text = f"{ended}: {kept}; complete them with --resume {writer.path}"
    make_console(stderr=True).print(Text(text), soft_wrap=True)
    return INTERRUPTED if outcome.interrupted else BAD


def _measure(
    console: Console,
    job: Job,
    groups: Sequence[Group],
    writer: Writer,
    first_line: Callable[[Ready], Header | Segment],
    start: Callable[[Job], Worker] | None,
) -> _Outcome:
    """Write the first line and a line for every cell, however the run ends. Raises RunError where it cannot begin."""
    outcome, runner = _Outcome(), None
    finished = False
    with progress_bar(console, len(cell_keys(groups))) as update:
        try:
            runner = Runner(job, writer.write, lambda progress: update(progress.done, progress.doing), start)
            outcome.wall_time = runner.wall_time
            writer.write(first_line(runner.ready))
            outcome.begun = True
            runner.run(groups)
            finished = True
        except KeyboardInterrupt:
            outcome.interrupted = True
        except RunError as error:
            if not outcome.begun:
                raise
            outcome.error = str(error)
        finally:
            if runner is not None:
                runner.close(wait_s=30 if finished else 0)
    return outcome


def exit_code(run: Run) -> int:
    """1 where a CUDA source does not compile, or a cell is a mismatch or failed."""
    fine = sources_compile(run.header.compiled) and not any(cell.status.is_bad for cell in run.cells)
    return OK if fine else BAD


def _default_folder(name: str, device: str, shard: str | None) -> Path:
    """A new folder: two array tasks may begin in the same second."""
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


def report(console: Console, run: Run, folder: Path, no_plots: bool, wall_time: WallTime | None = None) -> None:
    """Tables on screen and in ``folder``/table.md, plots beside it. wall_time: None where nothing was measured now."""
    tables = result_tables(run)
    print_environment(console, run.header.environment)
    print_calibration_errors(console, run.uncalibrated)
    print_tables(console, tables)
    console.print()
    print_compiled(console, run.header.compiled)
    print_counts(console, run.cells)
    if wall_time is not None:
        print_wall_time(console, wall_time.by_activity())
    (folder / "table.md").write_text(markdown(tables), encoding="utf-8")
    drawn, references = [], []
    if run.cells and not no_plots:
        from plots import draw_all

        references = _references(run)
        drawn = draw_all([run, *references], folder)
    figures = counted(len({path.stem for path in drawn}), "figure")
    text = f"record, table and {figures}: {folder}"
    if drawn and references:
        text += f", which also show {', '.join(f'{r.path} ({r.header.environment.gpu})' for r in references)}"
    console.print(Text(text))


def _references(run: Run) -> list[Run]:
    """For a run without a GPU: the recorded GPU runs, at the points and in the cache state of this run."""
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
    """A run without its cells at other points."""
    kept = [cell.point_key in points for cell in run.cells]
    return structs.replace(
        run,
        cells=list(itertools.compress(run.cells, kept)),
        segments=[(sum(kept[:start]), one) for start, one in run.segments],
    )
