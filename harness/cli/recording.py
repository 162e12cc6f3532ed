"""The recording of a planned run: every cell is written at once, then tables are shown and figures drawn."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
from rich.console import Console

from harness.cli.run_report import exit_code, print_run, refuse_foreign_table, report, report_loops
from harness.config.load import Source
from harness.config.loops import LoopGroup
from harness.config.sweep import Group, cell_keys, with_cells
from harness.exit_codes import BAD, INTERRUPTED
from harness.records.file import Line, Writer, lines_of, read_run, run_of
from harness.records.schema import Cell, Header, RecordError, RecordGone, Run, Segment
from harness.report.console import print_tables, print_to_stderr, progress_bar, warn
from harness.report.decode_loop import loop_tables
from harness.runner.loop_run import LoopRunner
from harness.runner.protocol import Job, Ready
from harness.runner.resume import check_same_machine, check_same_sources
from harness.runner.run import Progress, RunError, Runner, WallTime, header, segment, utc_now
from harness.runner.several_gpus import SeveralGpus
from harness.runner.sources import changed_source, source_hashes
from harness.runner.verified_by import check_proof_of_machine, check_same_code, record_hash, split
from harness.wording import counted


@dataclass(frozen=True)
class Plan:
    """A run to measure: a sweep, or decode loops.

    groups:    what is measured.
    operators: what its cells depend on: the groups of a sweep; the operators of a loop's stacks, with their variants.
    sources:   hashes of the files that the cells depend on, of when they were planned.
    out:       folder of the record; None for a new one in results/.
    shard:     "2/8" where this is one part of a sweep.
    resumed:   the record to complete.
    proof:     the run that has verified the cells; those that it did not pass and time are taken from it as they are.
    """

    source: Source
    job: Job
    groups: Sequence[Group] | Sequence[LoopGroup]
    operators: Sequence[Group]
    sources: dict[str, str]
    out: Path | None
    no_plots: bool
    shard: str | None = None
    resumed: Run | None = None
    proof: Run | None = None

    @property
    def loops(self) -> bool:
        return self.source.config.decode_loop is not None

    @cached_property
    def path(self) -> Path:
        """Of the record."""
        if self.resumed:
            return Path(self.resumed.path)
        return (self.out or default_folder(self.source.config.name, self.job.device, self.shard)) / "run.jsonl"

    @cached_property
    def missing(self) -> Sequence[Group] | Sequence[LoopGroup]:
        """The groups with what ``resumed`` lacks."""
        return with_cells(self.groups, set(self.resumed.missing)) if self.resumed else self.groups

    def check_sources(self) -> None:
        """Raises RunError where a file differs from when the cells were planned."""
        if changed := changed_source(self.sources, source_hashes(self.operators, self.job.variant_files)):
            raise RunError(f"{changed} was changed during the run, whose cells must all come from one version")


#: From what to call with each line, and with progress.
MakeRunner = Callable[[Callable[[Line], None], Callable[[Progress], None]], Runner | SeveralGpus | LoopRunner]


@dataclass
class Outcome:
    """How the measuring of a run ended.

    interrupted: by Ctrl-C.
    error:       why the run could not go on.
    wall_time:   None where nothing was left to measure.
    """

    interrupted: bool = False
    error: str | None = None
    wall_time: WallTime | None = None


def record(console: Console, plan: Plan, make_runner: MakeRunner) -> int:
    """Measure what is left of a plan into its record, show and draw the record; the exit code.

    Ctrl-C keeps and reports what there is.
    """
    resumed, proof, path = plan.resumed, plan.proof, plan.path
    plan.check_sources()
    if resumed and plan.missing:
        check_same_sources(resumed, plan.sources)
        if not resumed.header.sources:
            warn(f"{resumed.path} has no source hashes: whether code or traces changed since is not checked")
    left, known = plan.missing, []
    if proof:
        left, known = split(plan.groups, proof)
        check_same_code(proof, plan.sources)
    if not resumed:
        refuse_foreign_table(path.parent)
    writer = Writer(path, resume=resumed is not None)
    lines = lines_of(resumed) if resumed else []

    def keep(line: Line) -> None:
        if isinstance(line, Segment):
            plan.check_sources()
        lines.append(line)
        writer.write(line)

    try:
        outcome = _measured(console, plan, left, known, keep, make_runner)
        writer.check_place()
        run = read_run(path)  # what is on disk counts
    except RecordGone as error:
        run = run_of(path, lines)
        if plan.loops:
            print_tables(console, loop_tables(run))
        else:
            print_run(console, run)
        raise RecordError(f"{error}; the measured times are only in the tables above") from None
    finally:
        writer.close()
    try:
        show = report_loops if plan.loops else report
        show(console, run, path.parent, plan.no_plots, outcome.wall_time)
    except KeyboardInterrupt:
        outcome.interrupted = True
    except OSError as error:
        what = error.filename or f"to {path.parent}"
        raise RecordError(f"cannot write {what}: {error.strerror}; the record {path} is complete") from None
    if not outcome.interrupted and outcome.error is None:
        outcome.error = _unplanned(run)
    if not outcome.interrupted and outcome.error is None:
        return exit_code(run)
    ended = "interrupted" if outcome.interrupted else f"stopped: {outcome.error}"
    present, cells = len(run.cells) + len(run.loops), "lines" if plan.loops else "cells"
    kept = f"{present} of {len(run.header.cells)} {cells} are kept in {path}"
    print_to_stderr(f"{ended}: {kept}; complete them with --resume {path}")
    return INTERRUPTED if outcome.interrupted else BAD


def _measured(
    console: Console,
    plan: Plan,
    left: Sequence[Group] | Sequence[LoopGroup],
    known: Sequence[Cell],
    keep: Callable[[Line], None],
    make_runner: MakeRunner,
) -> Outcome:
    """Keep the first line, the ``known`` cells, and a line for everything that is ``left``, however the run ends.
    Raises RunError and KeyboardInterrupt where it cannot begin.
    """
    outcome, runner = Outcome(), None
    begun = finished = False
    if not left:
        return outcome
    with progress_bar(console, len(cell_keys(left))) as update:
        try:
            runner = make_runner(keep, lambda progress: update(progress.done, progress.doing))
            keep(_first_line(plan, runner.ready))
            begun = True
            for cell in known:
                keep(cell)
            runner.run(left)
            finished = True
        except KeyboardInterrupt:
            if not begun:
                raise
            outcome.interrupted = True
        except RunError as error:
            if not begun:
                raise
            outcome.error = str(error)
        finally:
            if runner is not None:
                outcome.wall_time = runner.wall_time
                runner.close(wait_s=30 if finished else 0)
    return outcome


def _first_line(plan: Plan, ready: Ready) -> Header | Segment:
    """Raises RecordError where this is not the machine of ``resumed`` or ``proof``."""
    if plan.proof:
        check_proof_of_machine(plan.proof, ready.environment)
    if plan.resumed:
        check_same_machine(plan.resumed, ready.environment)
        return segment(ready, "resumed", plan.job.measure.cache)
    return header(
        ready,
        msgspec.to_builtins(plan.source.config),
        seed=plan.job.seed,
        shard=plan.shard,
        cells=cell_keys(plan.groups),
        command=command_line(),
        variants=tuple(dict.fromkeys(variant.id for group in plan.operators for variant in group.variants)),
        sources=plan.sources,
        verified_by=record_hash(plan.proof) if plan.proof else None,
    )


def _unplanned(run: Run) -> str | None:
    """What the cells of a finished run are not as planned; None where each planned one is there once."""
    if missing := run.missing:
        return f"{counted(len(missing), 'planned cell')} not measured, the first is {missing[0]}"
    written = Counter(cell.key for cell in run.cells)
    twice = next((key for key, count in written.items() if count > 1), None)
    return None if twice is None else f"{twice} was written more than once"


def command_line() -> str:
    """As records have it."""
    return shlex.join(["python", "bench.py", *sys.argv[1:]])


def default_folder(name: str, device: str, shard: str | None = None) -> Path:
    return new_folder(f"{name}-{device}", f"-{shard.replace('/', 'of')}" if shard else "")


def new_folder(name: str, piece: str = "") -> Path:
    """A new folder: two array tasks may begin in the same second."""
    stem = f"{name}-{utc_now():%Y%m%dT%H%M%S}{piece}"
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(folder for one in names if not (folder := Path("results") / one).exists())
