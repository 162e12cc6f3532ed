"""The recording of a planned run: every cell is written at once, then tables are shown and plots drawn."""

from __future__ import annotations

import itertools
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs
from rich.console import Console

from spec_decode_bench.harness.command.handling import program
from spec_decode_bench.harness.command.verdict import exit_code
from spec_decode_bench.harness.config.load import LoadedConfig
from spec_decode_bench.harness.config.work_items import Planned, Task, keys_of, with_keys
from spec_decode_bench.harness.contract import Point, Variant
from spec_decode_bench.harness.discover import Catalog, unavailable
from spec_decode_bench.harness.exit_codes import BAD, INTERRUPTED
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.records.differences import changed_source
from spec_decode_bench.harness.records.file import Line, Writer, read_run
from spec_decode_bench.harness.records.schema import (
    Cell,
    Environment,
    Finding,
    Header,
    Proof,
    RecordError,
    Run,
    Segment,
    rounded,
)
from spec_decode_bench.harness.records.sentences import of_finding
from spec_decode_bench.harness.report.console import print_to_stderr, progress_bar, saying
from spec_decode_bench.harness.report.table import refuse_foreign_table
from spec_decode_bench.harness.session.messages import Job, Ready
from spec_decode_bench.harness.session.resume import check_same_machine, check_same_sources, trusted_of
from spec_decode_bench.harness.session.session import Session, header, segment, utc_now
from spec_decode_bench.harness.session.sources import source_hashes
from spec_decode_bench.harness.session.worker import RunError

if TYPE_CHECKING:
    from spec_decode_bench.harness.session.several_gpus import SeveralGpus


@dataclass(frozen=True)
class Plan:
    """A run to measure: a sweep, or what a section of a room plans.

    items:    what is measured.
    tasks:    what it depends on: the items of a sweep; else points of operators, with their variants.
    sources:  hashes of the files that the cells depend on, of when they were planned.
    repeat:   the command that verifies a variant at one place: (key, seed) -> text.
    out:      folder of the record; None for a new one in results/.
    report:   shows the record and writes its tables and plots: (console, run, folder, when the command began that
              measured all of it).
    preload:  loads what ``report`` needs, in a thread, while the processes start.
    shard:    "2/8" where this is one part of a sweep.
    resumed:  the record to complete.
    trusted:  a record whose variants, if they passed in it, do not run their edge cases again.
    until_wrong: whether all new variants are verified before anything is timed; if some are wrong, their cells are the
              run.
    began:    when the command, or what it does for this plan, began, by time.monotonic().
    """

    source: LoadedConfig
    job: Job
    catalog: Catalog | None
    items: Sequence[Planned]
    tasks: Sequence[Task]
    sources: dict[str, str]
    repeat: Callable[[str, int], str]
    out: Path | None
    report: Callable[[Console, Run, Path, float | None], None]
    preload: Callable[[], None]
    shard: str | None = None
    resumed: Run | None = None
    trusted: Run | None = None
    until_wrong: bool = False
    began: float = field(default_factory=time.monotonic)

    @cached_property
    def path(self) -> Path:
        """Of the record."""
        if self.resumed:
            return Path(self.resumed.path)
        return (self.out or default_folder(self.source.config.name, self.job.device, self.shard)) / "run.jsonl"

    @cached_property
    def missing(self) -> Sequence[Planned]:
        """The items with what ``resumed`` lacks."""
        return with_keys(self.items, set(self.resumed.missing)) if self.resumed else self.items

    @property
    def first_process(self) -> int:
        """The number of the first process that measures now."""
        return 1 + max((segment.process for segment in self.resumed.segments), default=0) if self.resumed else 0

    @property
    def decisive(self) -> Set[str]:
        """Variants ("operator/variant") of which a wrong one makes timing needless."""
        return {item.id_of(name) for item in self.tasks for name in item.variants} if self.until_wrong else frozenset()

    def proven(self, environment: Environment) -> dict[str, Proof]:
        """ "operator/variant" -> where it passed its edge cases. Raises RecordError where this is not the machine of
        ``trusted``, or a file is another one.
        """
        return trusted_of(self.trusted, self.sources, environment) if self.trusted else {}

    def that_run(self, items: Sequence[Planned]) -> Sequence[Planned]:
        """Points with the variants that are available and take them, as far as this process can tell; all of them where
        a wrong one ends the run, and on a CPU, which verifies none first.
        """
        if self.catalog is None or self.decisive or self.job.device == "cpu":
            return items

        def runs(variant: Variant, point: Point) -> bool:
            with suppress(Exception):  # a variant may raise anything; a worker says what
                return unavailable(variant, self.job.device) is None and not variant.skip(point)
            return True

        return [
            item.of([name for name in item.variants if runs(self.catalog.find(item.operator, name), Point(item.axes))])
            for item in items
            if isinstance(item, Task)
        ]

    def first_line(self, ready: Ready) -> Header | Segment:
        """Of what is measured now. Raises RecordError where this is not the machine of ``resumed``."""
        if self.resumed:
            check_same_machine(self.resumed, ready.environment)
            return segment(ready, "resumed", self.job.measure.cache, self.first_process)
        return header(
            ready,
            self.source.recorded,
            seed=self.job.seed,
            shard=self.shard,
            cells=tuple(keys_of(self.items)),
            command=command_line(),
            variants=tuple(dict.fromkeys(item.id_of(name) for item in self.tasks for name in item.variants)),
            sources=self.sources,
        )

    def check_sources(self) -> None:
        """Raises RunError where a file differs from when the cells were planned."""
        if changed := changed_source(self.sources, source_hashes(self.tasks, self.catalog, self.job.variant_files)):
            raise RunError(f"{changed} was changed during the run, whose cells must all come from one version")


@dataclass
class Ending:
    """How the measuring of a run ended.

    interrupted: by Ctrl-C.
    error:       why the run could not go on.
    """

    interrupted: bool = False
    error: str | None = None


def record(console: Console, plan: Plan, session: Session | SeveralGpus) -> int:
    """Measure what is left of a plan into its record, show and draw the record; the exit code.

    Ctrl-C keeps and reports what there is.
    """
    resumed, path = plan.resumed, plan.path
    plan.check_sources()
    if resumed and plan.missing:
        check_same_sources(resumed, plan.sources)
    left = plan.missing
    if not resumed:
        refuse_foreign_table(path.parent)
    writer = Writer(path, resume=resumed is not None)
    try:
        ending = measured(console, plan, left, writer.write, session) if left else Ending()
        run = read_run(path)  # what is on disk counts
    finally:
        writer.close()
    try:
        plan.report(console, run, path.parent, None if resumed else plan.began)
    except KeyboardInterrupt:
        ending.interrupted = True
    except OSError as error:
        what = error.filename or f"to {path.parent}"
        raise RecordError(f"cannot write {what}: {error.strerror}; the record {path} is complete") from None
    if not ending.interrupted and ending.error is None:
        ending.error = _unplanned(run)
    if not ending.interrupted and ending.error is None:
        return exit_code(run)
    ended = "interrupted" if ending.interrupted else f"stopped: {ending.error}"
    present, cells = len(run.outcomes), "lines" if plan.source.section else "cells"
    if run.missing:
        kept = f"{present} of {len(run.header.cells)} {cells} are kept in {path}"
        remedy = f"complete them with --resume {shlex.quote(str(path))}"
    else:
        kept = f"the record {path} is complete"
        folder = str(path.parent)
        remedy = f"draw its plots with {shlex.join([*program(), 'plot', folder, '--out', folder])}"
    print_to_stderr(f"{ended}: {kept}; {remedy}")
    return INTERRUPTED if ending.interrupted else BAD


def measured(
    console: Console,
    plan: Plan,
    left: Sequence[Planned],
    keep: Callable[[Line], None],
    session: Session | SeveralGpus,
) -> Ending:
    """Keep the first line, and a line for everything that is ``left``, however the run ends. Raises RunError and
    KeyboardInterrupt where it cannot begin.
    """
    ending, begun, planning_s = Ending(), False, time.monotonic() - plan.began
    told: set[str] = set()

    def tell(variant: str, finding: Finding) -> None:
        """What is wrong with a variant, once, as soon as it is known, and how to see it again without timing."""
        if variant in told:
            return
        told.add(variant)
        print_to_stderr(f"{variant}: {of_finding(finding)}")
        if finding.name and finding.when is None:
            print_to_stderr(f"this one alone: {plan.repeat(f'{variant}/{finding.name}', plan.job.seed)}")

    with progress_bar(console, len(keys_of(left))) as update, ThreadPoolExecutor(1) as thread:
        with suppress(RuntimeError):  # the system starts no thread; the session, which needs some, says so
            thread.submit(plan.preload)  # while the processes start
        try:
            with session:
                early: list[Segment] = []
                session.on_process = early.append
                with saying("starting the processes, verifying new variants, calibrating"):
                    plan.check_sources()  # the processes have imported them
                    items = left
                    if proven := plan.proven(session.environment):
                        items = [item.trusting(proven) if isinstance(item, Task) else item for item in left]
                    for checked in session.verify_first(plan.that_run(items), plan.decisive):
                        tell(checked.variant_id, checked.finding)
                    if wrong := plan.decisive & told:
                        items = [item.of(names) for item in items if (names := _of(item, wrong))]
                        plan = replace(plan, items=items)
                    ready = session.ready
                    start_s = ready.seconds.get("start", 0.0) + planning_s
                    seconds = rounded(ready.seconds | {"start": start_s})
                    keep(plan.first_line(structs.replace(ready, seconds=seconds)))
                begun = True

                def replaced(process: Segment) -> None:
                    plan.check_sources()
                    keep(structs.replace(process, process=plan.first_process + process.process))

                for process in early:
                    replaced(process)
                session.on_process = replaced
                session.on_progress = lambda done, total, doing: update(done, doing)
                for outcome in session.run(items):
                    if isinstance(outcome, Cell) and outcome.finding is not None:
                        tell(outcome.variant_id, outcome.finding)
                    keep(structs.replace(outcome, process=plan.first_process + outcome.process))
        except KeyboardInterrupt:
            if not begun:
                raise
            ending.interrupted = True
        except RunError as error:
            if not begun:
                raise
            ending.error = str(error)
    return ending


def _of(item: Planned, ids: Collection[str]) -> list[str]:
    return [name for name in item.variants if item.id_of(name) in ids]


def _unplanned(run: Run) -> str | None:
    """What the cells of a finished run are not as planned; None where each planned one is there once."""
    if missing := run.missing:
        return f"{counted(len(missing), 'planned cell')} not measured, the first is {missing[0]}"
    written = Counter(line.key for line in run.outcomes)
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
    return next(folder for candidate in names if not (folder := Path("results") / candidate).exists())
