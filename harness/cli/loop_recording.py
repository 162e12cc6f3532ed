"""`bench.py run` of a configuration with decode loops: measure, write every line at once, show tables and figures."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from harness.cli.recording import (
    OURS,
    TABLE,
    check_sources_unchanged,
    default_folder,
    ended_early,
    measured,
    refuse_foreign_table,
)
from harness.config.load import Source
from harness.config.loops import LoopGroup
from harness.config.sweep import Group
from harness.exit_codes import BAD, OK
from harness.records.decode_loop import Loop
from harness.records.file import Writer, lines_of, read_run, run_of
from harness.records.schema import Header, RecordError, RecordGone, Run, Segment
from harness.report.console import (
    print_calibration_errors,
    print_environment,
    print_tables,
    print_wall_time,
)
from harness.report.decode_loop import PERCENTILE, loop_tables, print_endings
from harness.report.tables import markdown
from harness.runner.loop_run import LoopRunner
from harness.runner.protocol import Job, Ready
from harness.runner.resume import check_same_machine, check_same_sources
from harness.runner.run import WallTime, header, segment
from harness.wording import counted


def loop_keys(groups: Sequence[LoopGroup]) -> tuple[str, ...]:
    return tuple(key for group in groups for key in group.keys)


def missing_loops(groups: Sequence[LoopGroup], loops: Sequence[Loop]) -> list[LoopGroup]:
    """The loops with the stacks that have no line yet."""
    present = {loop.key for loop in loops}
    missing = [
        replace(group, stacks=tuple(one for one in group.stacks if group.key(one.name) not in present))
        for group in groups
    ]
    return [group for group in missing if group.stacks]


def record_loops(
    console: Console,
    job: Job,
    source: Source,
    groups: Sequence[LoopGroup],
    operators: Sequence[Group],
    sources: dict[str, str],
    out: Path | None,
    no_plots: bool,
    resumed: Run | None = None,
) -> int:
    """Measure all loops into ``out``/run.jsonl, or what ``resumed`` lacks of them into its file; the exit code.

    operators: the operators of the stacks with their variants; sources: theirs, of when they were imported.
    """
    folder = Path(resumed.path).parent if resumed else out or default_folder(source.config.name, job.device)
    missing = missing_loops(groups, resumed.loops) if resumed else list(groups)
    check_sources_unchanged(sources, operators, job)
    if resumed and missing:
        check_same_sources(resumed, sources)
    if resumed is None:
        refuse_foreign_table(folder)
    path = folder / "run.jsonl"
    writer = Writer(path, resume=resumed is not None)

    def first_line(ready: Ready) -> Header | Segment:
        if resumed is None:
            return header(
                ready,
                msgspec.to_builtins(source.config),
                seed=job.seed,
                cells=loop_keys(groups),
                command=shlex.join(["python", "bench.py", *sys.argv[1:]]),
                variants=tuple(dict.fromkeys(v.id for group in operators for v in group.variants)),
                sources=sources,
            )
        check_same_machine(resumed, ready.environment)
        return segment(ready, "resumed", job.measure.cache)

    lines = lines_of(resumed) if resumed else []

    def keep(line: Header | Segment | Loop) -> None:
        if isinstance(line, Segment):
            check_sources_unchanged(sources, operators, job)
        lines.append(line)
        writer.write(line)

    try:
        outcome = measured(
            console, len(loop_keys(missing)), keep, first_line, lambda seen: LoopRunner(job, keep, seen), missing
        )
        writer.check_place()
        run = read_run(path)
    except RecordGone as error:
        print_tables(console, loop_tables(run_of(path, lines)))
        raise RecordError(f"{error}; the measured times are only in the tables above") from None
    finally:
        writer.close()
    try:
        report_loops(console, run, folder, no_plots, outcome.wall_time)
    except OSError as error:
        what = error.filename or f"to {folder}"
        raise RecordError(f"cannot write {what}: {error.strerror}; the record {path} is complete") from None
    if not outcome.interrupted and outcome.error is None:
        return loops_exit_code(run)
    kept = f"{len(run.loops)} of {counted(len(loop_keys(groups)), 'line')} are kept in {path}"
    return ended_early(outcome, kept, path)


def loops_exit_code(run: Run) -> int:
    """1 where a stack is a mismatch or failed."""
    return BAD if any(loop.status.is_bad for loop in run.loops) else OK


def report_loops(console: Console, run: Run, folder: Path, no_plots: bool, wall_time: WallTime | None = None) -> None:
    """Tables on screen and in ``folder``/table.md, plots beside it."""
    tables = loop_tables(run)
    print_environment(console, run.header.environment)
    print_calibration_errors(console, run.uncalibrated)
    print_tables(console, [table for table in tables if PERCENTILE not in table.axes])
    console.print(Text(f"\npercentiles of ITL and TPOT: {folder / TABLE}", style="dim"))
    print_endings(console, run.loops)
    if wall_time is not None:
        print_wall_time(console, wall_time.by_activity())
    (folder / TABLE).write_text(f"{OURS}\n\n{markdown(tables)}", encoding="utf-8")
    drawn = []
    if run.loops and not no_plots:
        from plots import draw_all

        drawn = draw_all([run], folder)
    figures = counted(len({path.stem for path in drawn}), "figure")
    console.print(Text(f"record, table and {figures}: {folder}"))
