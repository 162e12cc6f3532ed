"""`bench.py run`: measure a plan, write every cell at once, then show tables and draw figures."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs
from rich.console import Console
from rich.text import Text

from harness.config.load import Source
from harness.config.sweep import Group, cell_keys
from harness.discover import ROOT
from harness.exit_codes import BAD, INTERRUPTED, OK
from harness.records.file import Writer, lines_of, read_run, run_of
from harness.records.schema import Cell, Header, RecordError, RecordGone, Run, Segment, sources_compile
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
from harness.report.tables import Table, markdown, result_tables
from harness.runner.protocol import Job, Ready
from harness.runner.resume import check_same_machine, check_same_sources, missing_groups
from harness.runner.run import Progress, RunError, Runner, WallTime, header, segment, utc_now
from harness.runner.several_gpus import Gpu, SeveralGpus
from harness.runner.sources import changed_source, source_hashes
from harness.runner.verified_by import check_proof_of_machine, check_same_code, record_hash, split
from harness.runner.worker import Worker
from harness.wording import counted

if TYPE_CHECKING:
    from harness.runner.loop_run import LoopRunner

REFERENCE = ROOT / "results" / "reference"
#: The tables of a run, beside its record, and the line by which a later run knows that they are not the user's.
TABLE, OURS = "table.md", "<!-- written by bench.py, and drawn again from run.jsonl -->"


@dataclass
class Outcome:
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
    sources: dict[str, str],
    out: Path | None,
    no_plots: bool,
    shard: str | None = None,
    resumed: Run | None = None,
    proof: Run | None = None,
    gpus: Callable[[Job], Sequence[Gpu]] | None = None,
    start: Callable[[Job], Worker] | None = None,
) -> int:
    """Measure all groups into ``out``/run.jsonl, or what ``resumed`` lacks of them into its file; the exit code.

    sources: hashes of the files that the cells depend on, of when they were planned.
    proof: the run that has verified them; cells that it did not pass and time are taken from it as they are.
    gpus:  the GPUs that share the work, from the job; None for a run on one.
    start: as in Runner.

    Ctrl-C keeps and reports what there is.
    """
    folder = Path(resumed.path).parent if resumed else out or default_folder(source.config.name, job.device, shard)
    missing = missing_groups(groups, resumed.cells) if resumed else list(groups)
    check_sources_unchanged(sources, groups, job)
    if resumed and missing:
        check_same_sources(resumed, sources)
        if not resumed.header.sources:
            warn(f"{resumed.path} has no source hashes: whether code or traces changed since is not checked")
    known: list[Cell] = []
    if proof:
        missing, known = split(groups, proof)
        check_same_code(proof, sources)

    def first_line(ready: Ready) -> Header | Segment:
        if proof:
            check_proof_of_machine(proof, ready.environment)
        if resumed is None:
            return _header(source, job, groups, ready, shard, sources, proof)
        check_same_machine(resumed, ready.environment)
        return segment(ready, "resumed", job.measure.cache)

    path = Path(resumed.path) if resumed else folder / "run.jsonl"
    if resumed is None:
        refuse_foreign_table(folder)
    writer = Writer(path, resume=resumed is not None)
    lines = lines_of(resumed) if resumed else []

    def keep(line: Header | Segment | Cell) -> None:
        if isinstance(line, Segment):
            check_sources_unchanged(sources, groups, job)
        lines.append(line)
        writer.write(line)

    try:
        total = len(cell_keys(missing))

        def make_runner(seen: Callable[[Progress], None]) -> Runner | SeveralGpus:
            if gpus is None:
                return Runner(job, keep, seen, start, missing[0])
            return SeveralGpus(gpus(job), keep, seen, warn, job.measure.time_budget_s, job.measure.cache)

        outcome = measured(console, total, keep, first_line, make_runner, missing, known)
        writer.check_place()
        run = read_run(path)  # what is on disk counts
    except RecordGone as error:
        print_run(console, run_of(path, lines))
        raise RecordError(f"{error}; the measured times are only in the tables above") from None
    finally:
        writer.close()
    try:
        report(console, run, folder, no_plots, outcome.wall_time)
    except KeyboardInterrupt:
        outcome.interrupted = True
    except OSError as error:
        what = error.filename or f"to {folder}"
        raise RecordError(f"cannot write {what}: {error.strerror}; the record {path} is complete") from None
    if not outcome.interrupted and outcome.error is None:
        if (unplanned := _unplanned(run)) is not None:
            outcome.error = unplanned
        else:
            return exit_code(run)
    return ended_early(outcome, f"{len(run.cells)} of {len(cell_keys(groups))} cells are kept in {path}", path)


def check_sources_unchanged(sources: dict[str, str], groups: Sequence[Group], job: Job) -> None:
    """Raises RunError where a file differs from when the cells were planned."""
    if changed := changed_source(sources, source_hashes(groups, job.variant_files)):
        raise RunError(f"{changed} was changed during the run, whose cells must all come from one version")


def ended_early(outcome: Outcome, kept: str, path: Path) -> int:
    """Say on stderr why a run is not complete and what is kept of it; the exit code."""
    ended = "interrupted" if outcome.interrupted else f"stopped: {outcome.error}"
    text = f"{ended}: {kept}; complete them with --resume {path}"
    make_console(stderr=True).print(Text(text), soft_wrap=True)
    return INTERRUPTED if outcome.interrupted else BAD


def measured(
    console: Console,
    total: int,
    keep: Callable[[Any], None],
    first_line: Callable[[Ready], Header | Segment],
    make_runner: Callable[[Callable[[Progress], None]], Runner | SeveralGpus | LoopRunner],
    groups: Sequence[Any],
    known: Sequence[Cell] = (),
) -> Outcome:
    """Keep the first line and a line for everything that is measured, however the run ends. Raises RunError and
    KeyboardInterrupt where it cannot begin.

    total: lines to come. make_runner: from what is told of progress. groups: what it has to run. known: cells that need
    no measuring.
    """
    outcome, runner = Outcome(), None
    finished = False
    if not groups:
        return Outcome(begun=True)
    with progress_bar(console, total) as update:
        try:
            runner = make_runner(lambda progress: update(progress.done, progress.doing))
            keep(first_line(runner.ready))
            outcome.begun = True
            for cell in known:
                keep(cell)
            runner.run(groups)
            finished = True
        except KeyboardInterrupt:
            if not outcome.begun:
                raise
            outcome.interrupted = True
        except RunError as error:
            if not outcome.begun:
                raise
            outcome.error = str(error)
        finally:
            if runner is not None:
                outcome.wall_time = runner.wall_time
                runner.close(wait_s=30 if finished else 0)
    return outcome


def _unplanned(run: Run) -> str | None:
    """What the cells of a finished run are not as planned; None where each planned one is there once."""
    if missing := run.missing:
        return f"{counted(len(missing), 'planned cell')} not measured, the first is {missing[0]}"
    written = Counter(cell.key for cell in run.cells)
    twice = next((key for key, count in written.items() if count > 1), None)
    return None if twice is None else f"{twice} was written more than once"


def exit_code(run: Run) -> int:
    """1 where a CUDA source does not compile, or a cell is a mismatch or failed."""
    fine = sources_compile(run.header.compiled) and not any(cell.status.is_bad for cell in run.cells)
    return OK if fine else BAD


def default_folder(name: str, device: str, shard: str | None = None) -> Path:
    return new_folder(f"{name}-{device}", f"-{shard.replace('/', 'of')}" if shard else "")


def new_folder(name: str, piece: str = "") -> Path:
    """A new folder: two array tasks may begin in the same second."""
    stem = f"{name}-{utc_now():%Y%m%dT%H%M%S}{piece}"
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(folder for one in names if not (folder := Path("results") / one).exists())


def _header(
    source: Source,
    job: Job,
    groups: Sequence[Group],
    ready: Ready,
    shard: str | None,
    sources: dict[str, str],
    proof: Run | None,
) -> Header:
    return header(
        ready,
        msgspec.to_builtins(source.config),
        seed=job.seed,
        shard=shard,
        cells=cell_keys(groups),
        command=shlex.join(["python", "bench.py", *sys.argv[1:]]),
        variants=tuple(dict.fromkeys(variant.id for group in groups for variant in group.variants)),
        sources=sources,
        verified_by=record_hash(proof) if proof else None,
    )


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
    tables = result_tables(run)
    print_environment(console, run.header.environment)
    print_calibration_errors(console, run.uncalibrated)
    print_tables(console, tables)
    console.print()
    print_compiled(console, run.header.compiled)
    print_counts(console, run.cells)
    return tables


def report(console: Console, run: Run, folder: Path, no_plots: bool, wall_time: WallTime | None = None) -> None:
    """Tables on screen and in ``folder``/table.md, plots beside it. wall_time: None where nothing was measured now."""
    tables = print_run(console, run)
    if wall_time is not None:
        print_wall_time(console, wall_time.by_activity())
    (folder / TABLE).write_text(f"{OURS}\n\n{markdown(tables)}", encoding="utf-8")
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


def warn(text: str) -> None:
    make_console(stderr=True).print(Text(f"warning: {text}"), soft_wrap=True)


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
            warn(f"not drawn beside this run: {error}")
    return [part for r in recorded if r.cache == run.cache and (part := _only(r, points)).cells]


def _only(run: Run, points: Set[tuple[str, str]]) -> Run:
    """A run without its cells at other points."""
    kept = [cell.point_key in points for cell in run.cells]
    return structs.replace(
        run,
        cells=list(itertools.compress(run.cells, kept)),
        segments=[(sum(kept[:start]), one) for start, one in run.segments],
    )
