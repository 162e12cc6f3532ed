"""`bench.py run CONFIG --watch`: after every save, a fresh worker verifies and times the variants, and the tables are
shown again.

The process of the next save waits with the suite imported, its device up and its timer calibrated while the author
edits. Only then it imports the author's files and plans the sweep; this process never does. It ends with the save, so
nothing of an earlier edit is left, and the calibration of a record is that of the process which timed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from os.path import relpath
from pathlib import Path

from msgspec import structs
from rich.console import Console
from rich.text import Text

from spec_decode_bench.harness.analysis.cache_states import HOT
from spec_decode_bench.harness.command.planning import device_of, make_job, operators_of, point_command
from spec_decode_bench.harness.command.recording import Plan, default_folder, measured
from spec_decode_bench.harness.config.load import LoadedConfig
from spec_decode_bench.harness.discover import ROOT, DiscoveryError
from spec_decode_bench.harness.exit_codes import BAD, INTERRUPTED
from spec_decode_bench.harness.import_by_content import PACKAGES
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.records.differences import changed_source
from spec_decode_bench.harness.records.file import Line, Writer, read_run
from spec_decode_bench.harness.records.schema import Environment, Header, Proof, Run, Save, Segment, Status
from spec_decode_bench.harness.report.changes import changes_tables, others_of
from spec_decode_bench.harness.report.console import (
    make_console,
    print_calibration_errors,
    print_compiled,
    print_counts,
    print_environment,
    print_tables,
    print_to_stderr,
    warn,
)
from spec_decode_bench.harness.report.table import refuse_foreign_table, write_tables
from spec_decode_bench.harness.report.tables import result_tables
from spec_decode_bench.harness.session.messages import Job, Loaded, Ready, Sweep
from spec_decode_bench.harness.session.resume import passed_in
from spec_decode_bench.harness.session.saved_files import SavedFiles
from spec_decode_bench.harness.session.session import Session, segment
from spec_decode_bench.harness.session.sources import ENGINE
from spec_decode_bench.harness.session.worker import Outdated, RunError, Worker, WorkerDied

#: Seconds of sampling after a save, where the configuration allows more.
TIME_BUDGET_S = 3.0


def watch(options: argparse.Namespace, source: LoadedConfig) -> int:
    """Until Ctrl-C. Raises DiscoveryError where the files cannot be used at the beginning, and RunError where no
    worker can start.
    """
    device, measure = device_of(options), source.config.measure
    measure = structs.replace(
        measure,
        time_budget_s=min(measure.time_budget_s, TIME_BUDGET_S),
        cache=measure.cache if device == "cuda" else HOT.name,
    )
    source = replace(source, config=structs.replace(source.config, measure=measure))
    job = make_job(options, measure, device, timed=True)
    job = replace(job, variant_files=(), operators=operators_of([source]), sweep=Sweep(source, tuple(options.only)))
    folder = options.out or default_folder(source.config.name, device)
    refuse_foreign_table(folder)
    watched = _Watch(options, source, job, folder, make_console(), SavedFiles(options.variants))
    try:
        watched.run()
    except (KeyboardInterrupt, RunError) as error:
        if watched.writer is None:
            raise
        interrupted = isinstance(error, KeyboardInterrupt)
        watched.end("interrupted" if interrupted else f"stopped: {error}")
        return INTERRUPTED if interrupted else BAD


@dataclass(frozen=True, kw_only=True)
class _Saved(Plan):
    """What is measured after a save. number: of the save. processes: how many there were before. passed: variants that
    passed after one of them, and whose files are the same now.
    """

    loaded: Loaded
    files: SavedFiles
    number: int
    processes: int
    passed: Mapping[str, Proof]

    @property
    def first_process(self) -> int:
        return self.processes

    @property
    def decisive(self) -> Set[str]:
        return set(self.loaded.own) or super().decisive

    def proven(self, environment: Environment) -> dict[str, Proof]:
        return {name: proof for name, proof in self.passed.items() if name not in self.loaded.own}

    def check_sources(self) -> None:
        """Raises Outdated."""
        self.files.check()

    def first_line(self, ready: Ready) -> Header | Segment:
        first = super().first_line(ready)
        if self.first_process == 0:
            return first
        save = Save(cells=first.cells, variants=first.variants, sources=self.sources, compiled=ready.compiled)
        line = segment(ready, f"save {self.number}", self.job.measure.cache, self.first_process)
        return structs.replace(line, save=save)


@dataclass
class _Watch:
    """folder: of the record. writer: once there is a first line. first: what was loaded first. saves, processes: how
    many there were.

    others: variants that the edited ones are compared with. Once they are known, they alone are timed beside them.
    passed: (variant, hash of its files) -> after which save it passed.
    """

    options: argparse.Namespace
    source: LoadedConfig
    job: Job
    folder: Path
    console: Console
    files: SavedFiles
    writer: Writer | None = None
    first: Loaded | None = None
    others: set[str] | None = None
    saves: int = 0
    processes: int = 0
    passed: dict[tuple[str, str], Proof] = field(default_factory=dict)

    def run(self) -> None:
        """Raises KeyboardInterrupt, DiscoveryError, RecordError and RunError."""
        began, changed = self.options.began, ()
        while True:
            with self._session() as session:
                if self.saves:
                    _ = session.ready  # while the author edits
                    began, changed = self.files.wait()
                    names = sorted(set(map(relpath, changed)))
                    self.console.rule(Text(f"save {self.saves + 1}: {', '.join(names)}"))
                if not any(map(_is_of_suite, changed)):
                    self._measure(session, began)
                    continue
            with self._session() as session:  # the one that waited has imported what has changed
                self._measure(session, began)

    @contextmanager
    def _session(self) -> Iterator[Session]:
        """Its processes are ended at once. Raises RunError."""
        session = Session(self.job, partial(Worker, poll=self.files.check)).start()
        try:
            yield session
        finally:
            session.close(0)

    def _measure(self, session: Session, began: float) -> None:
        """The files as they are now. What is wrong with them is said, and kept; at the beginning it is raised."""
        self.saves += 1
        process, problem = self.processes, "saved again before anything was measured"
        try:
            plan = self._planned(session, began)
            ending = measured(self.console, plan, plan.items, self._keep, session)
            if ending.interrupted:
                raise KeyboardInterrupt
            if ending.error is not None:
                raise RunError(ending.error)
            plan.report(self.console, read_run(plan.path), plan.path.parent, began)
        except Outdated:
            print_to_stderr("saved again: starting over")
        except DiscoveryError as error:
            if self.writer is None:
                raise
            problem = str(error)
            print_to_stderr(problem)
            self._print_waiting(began)
        if self.writer is not None and self.processes == process:
            line = segment(session.ready, f"save {self.saves}: {problem}", self.job.measure.cache, process)
            self._keep(structs.replace(line, save=Save()))

    def _planned(self, session: Session, began: float) -> _Saved:
        """Raises DiscoveryError, Outdated, and RunError where code changed that no new worker imports."""
        files, read_ns = tuple(self.options.variants), time.time_ns()
        try:
            loaded = session.load(files)
        except WorkerDied as death:
            raise DiscoveryError(f"--variants {' '.join(files)}: cannot be imported: {death}") from None
        of_suite = [str(ROOT / name) for name in loaded.sources if (ROOT / name).is_file()]
        self.files.add([*loaded.files, *of_suite], read_ns)
        if loaded.error is not None:
            raise DiscoveryError(loaded.error)
        if self.first is None:
            self.first = loaded
            print_environment(self.console, session.environment)
            for sentence in loaded.warnings:
                warn(sentence)
        items = loaded.items
        if self.others is not None:
            wanted = {*loaded.own, *self.others}
            items = [item.of([name for name in item.variants if item.id_of(name) in wanted]) for item in items]
            items = [item for item in items if item.variants]
        fixed = {name: digest for name, digest in self.first.sources.items() if name.startswith((ENGINE, "baselines/"))}
        if changed := changed_source(fixed, loaded.sources):
            raise RunError(f"{changed} was changed, which all processes have imported; start --watch again")
        return _Saved(
            source=self.source,
            job=self.job,
            catalog=None,
            items=items,
            tasks=items,
            sources=loaded.sources,
            repeat=point_command(self.options, self.source.path),
            out=self.folder,
            report=partial(self._show, loaded),
            preload=_load_statistics,
            until_wrong=True,
            began=began,
            loaded=loaded,
            files=self.files,
            number=self.saves,
            processes=self.processes,
            passed={name: self.passed[name, code] for name, code in loaded.code.items() if (name, code) in self.passed},
        )

    def _keep(self, line: Line) -> None:
        if self.writer is None:
            self.writer = Writer(self.folder / "run.jsonl")
        self.writer.write(line)
        self.processes = max(self.processes, getattr(line, "process", 0) + 1)

    def _show(self, loaded: Loaded, console: Console, run: Run, folder: Path, began: float) -> None:
        self.passed |= {(name, loaded.code[name]): proof for name, proof in passed_in(run).items()}
        print_calibration_errors(console, run.uncalibrated)
        before = self.first.code
        edited = loaded.own or [name for name, code in loaded.code.items() if before.get(name, code) != code]
        tables = [table for table in result_tables(run) if table.kind == "measured"] + changes_tables(run, edited)
        if any(cell.status is Status.PASSED and cell.variant_id in loaded.own for cell in run.cells):
            compared = others_of(run, edited).items()
            self.others = {f"{name.partition('/')[0]}/{other}" for name, other in compared}
        if any(cell.status is Status.PASSED for cell in run.cells):
            print_tables(console, tables)
            console.print()
        write_tables(folder, tables)
        print_compiled(console, run.header.compiled)
        print_counts(console, run.cells)
        self._print_waiting(began)

    def _print_waiting(self, began: float) -> None:
        waiting = f"{time.monotonic() - began:.1f} s; waiting for the next save, Ctrl-C ends"
        self.console.print(Text(waiting, style="dim"))

    def end(self, how: str) -> None:
        path, saves = self.writer.path, counted(self.saves, "save")
        self.writer.close()
        print_to_stderr(f"{how}: {path} holds {saves}; report, plot and compare take the last one with cells")


def _load_statistics() -> None:
    """scipy.special, which takes long."""
    import scipy

    _ = scipy.special


def _is_of_suite(file: str) -> bool:
    return any(Path(file).resolve().is_relative_to(ROOT / package) for package in PACKAGES)
