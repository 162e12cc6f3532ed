"""`bench.py gate`: two revisions measured in turns, in fresh processes, until the comparison is sure.

Cells whose code is the same in both revisions are left out, but for a few, which show that the machine is
steady. First one process of each revision verifies and audits the cells; both run at the same time, and their times are
not used. Of the same code twice, one does. The others time what passed in it, whose record they trust
(``run --brief --trust``), one at a time and in turns (base head, head base, ...), so that a drift of the
machine meets both sides alike; on two GPUs a pair at a time, whose sides change places after every pair. The sides are
compared after LOOKS pairs; between two looks only the cells that the comparison cannot decide are measured. While a
process is timed, the next one loads torch and the suite, and waits (``run --hold``); it uses the GPU when the other has
ended.

The folder of a gate holds one record for each process: ``base/run1.jsonl``, ``head/run1.jsonl`` and so on, which
``bench.py compare FOLDER/base FOLDER/head`` reads again, and those of the processes that verify in ``verified/``, whose
cells without a time stand in the others as they are. Where a variant of head is wrong, its process ends before anything
is timed (``run --until-wrong``), and base verifies just that variant: where it is right there, the gate is over.
gate.json has its settings, ``logs/`` what each process printed.
"""

from __future__ import annotations

import argparse
import glob
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs
from rich.console import Console
from rich.text import Text

from spec_decode_bench.harness.analysis.warnings import abbreviated
from spec_decode_bench.harness.command.handling import program
from spec_decode_bench.harness.command.planning import plan_tasks, prepare, seed_of, writing_to
from spec_decode_bench.harness.command.recording import new_folder
from spec_decode_bench.harness.command.verdict import reasons_in_words
from spec_decode_bench.harness.config.load import ConfigError, LoadedConfig, Measure
from spec_decode_bench.harness.contract import COMPILER
from spec_decode_bench.harness.discover import ROOT, Catalog, DiscoveryError, unavailable
from spec_decode_bench.harness.exit_codes import BAD, OK, UNSURE, USAGE
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.records.differences import differences
from spec_decode_bench.harness.records.file import Writer, read_run
from spec_decode_bench.harness.records.schema import Cell, RecordError, Run, Status, split_key
from spec_decode_bench.harness.report.console import saying
from spec_decode_bench.harness.session.interrupt import end_groups
from spec_decode_bench.harness.session.worker import RunError
from spec_decode_bench.harness.timing.gpus import choose_gpus
from spec_decode_bench.regression.changed_cells import changed_cells, some_of
from spec_decode_bench.regression.comparing import rule_of
from spec_decode_bench.regression.comparison import CompareError, Comparison, Rule, Transition, compare
from spec_decode_bench.regression.gate_upstream import Upstream, discard, first_on_path, python_path, sides_of
from spec_decode_bench.regression.revisions import (
    END_FLAG,
    HOLD_FLAG,
    TRUST_FLAG,
    Revision,
    as_it_stands,
    changed_files,
    checked_out,
    flags_of,
    resolve,
    working_tree,
)

BASE, HEAD = "base", "head"
#: Pairs of processes after which the sides are compared. Each look may raise a false alarm, so a look gets its share of
#: the permitted rate (Bonferroni).
LOOKS = (4, 6, 9, 14, 20)
#: Rounds of a process that is compared. Few, because what differs between two processes is no smaller after many.
ROUNDS = 10
#: Rounds of a process that verifies: the fewest that a configuration may have. Their times are not used.
VERIFYING_ROUNDS = 3
#: Seconds that an interrupted process gets to write down what it has.
EXIT_LIMIT_S = 60
STATE, CONFIG = "gate.json", "config.yaml"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate measures; gate.json.

    only:     globs of its cells. flags: of every process, beside cells and folder.
    variants: files of --variants, as the processes get them.
    cells:    side -> globs of the cells that changed, and of some others; empty where all are measured.
    upstream: where the sides differ in a package; the suite of both is that of head.
    gpus:     two entries for CUDA_VISIBLE_DEVICES, or none.
    """

    only: tuple[str, ...]
    flags: tuple[str, ...]
    variants: tuple[str, ...] = ()
    cells: dict[str, tuple[str, ...]] = {}
    rule: Rule
    base: Revision
    head: Revision
    upstream: Upstream | None = None
    gpus: tuple[str, ...] = ()

    @property
    def revisions(self) -> dict[str, Revision]:
        return {BASE: self.base, HEAD: self.head}

    @property
    def same_code(self) -> bool:
        return self.upstream is None and self.base.commit == self.head.commit and self.head.changes is None

    def name(self, side: str) -> str:
        """What a side measures, in words."""
        return str(self.revisions[side]) if self.upstream is None else self.upstream.name(side)


@dataclass(frozen=True)
class _Process:
    """unfinished: where it writes its record, which then becomes ``record``. known: cells that it leaves out, and that
    the record gets nevertheless.
    """

    side: str
    running: subprocess.Popen
    log: Path
    unfinished: Path
    record: Path
    known: Sequence[Cell] = ()


@dataclass
class Gate:
    """Measures both sides into a folder, and compares them.

    config:  content of the configuration of a new gate; None for one that goes on.
    steady:  of a new gate, ids of the variants whose unchanged cells may be measured; None where all are.
    seconds: how long each compared process, or pair on two GPUs, took, in this call.
    can_trust: whether both revisions have TRUST_FLAG.
    _plans:  side -> keys of its cells, of a gate that begins.
    _held:   the next processes, which have loaded and wait for their turn.
    _running: every process that has not ended.
    """

    folder: Path
    settings: Settings
    config: bytes | None
    console: Console
    steady: Collection[str] | None = None
    seconds: list[float] = field(default_factory=list)
    can_trust: bool = False
    _plans: dict[str, list[str]] = field(default_factory=dict)
    _held: list[_Process] = field(default_factory=list)
    _running: list[_Process] = field(default_factory=list)

    @property
    def has_begun(self) -> bool:
        """Whether it can be resumed."""
        return (self.folder / STATE).exists()

    def measure(self, minutes: float) -> bool:
        """Measure pairs until the comparison is sure, or the minutes are over. False where the revisions differ in
        nothing that a cell depends on, and nothing was measured. Raises ConfigError, RunError.
        """
        began = time.monotonic()
        base, head = map(self.settings.name, (BASE, HEAD))
        same = ", the same code twice" if self.settings.same_code else ""
        self._say(f"base {base}, head {head}{same}")
        with self._suites() as suites:
            flags = set.intersection(
                *_both(lambda side: flags_of(f"--{side}", self.settings.revisions[side], suites[side]))
            )
            can_hold, self.can_trust = HOLD_FLAG in flags, TRUST_FLAG in flags
            if self.config is not None:
                if self.steady is not None and not self._leave_out_what_is_the_same(suites):
                    self._say("the code of every cell is the same in base and head: nothing is measured; --all does")
                    if self.settings.upstream is not None:
                        discard(self.folder)
                    return False
                with writing_to(self.folder):  # what ``resume`` needs
                    self.folder.mkdir(parents=True, exist_ok=True)
                    (self.folder / CONFIG).write_bytes(self.config)
                    (self.folder / STATE).write_bytes(msgspec.json.format(msgspec.json.encode(self.settings)) + b"\n")
            self._say(f"records in {self.folder}")
            try:
                self._verify(suites, END_FLAG in flags and bool(self._plans))
                if broken := self._broken():
                    names = dict.fromkeys("/".join(split_key(cell.key)[:2]) for cell in broken)
                    self._say(f"broken in head, so nothing is timed: {', '.join(abbreviated(list(names)))}")
                    return True
                for side in (BASE, HEAD):
                    verified = read_run(self._verified(side))
                    if not any(cell.was_timed for cell in verified.cells):
                        reasons = (cell.reason for cell in verified.cells if not cell.status.is_verdict)
                        why = reasons_in_words(reasons, "cell")
                        self._say(f"no cell of {side} passed, so nothing is timed{f': {why}' if why else ''}")
                        return True
                    can_hold &= _is_gpu(verified)
                self._measure_pairs(suites, began + minutes * 60, minutes, can_hold)
            finally:
                end_groups([process.running for process in self._running], EXIT_LIMIT_S)
        return True

    def _suites(self) -> AbstractContextManager[dict[str, Path]]:
        """Side -> folder of its suite: of an engine's gate this one, as it stands."""
        if self.settings.upstream is not None:
            return nullcontext(dict.fromkeys((BASE, HEAD), ROOT))
        return checked_out(self.settings.revisions, self.folder)

    def _leave_out_what_is_the_same(self, suites: dict[str, Path]) -> bool:
        """Keep the cells that differ, and some others. False where none differs."""
        upstream = self.settings.upstream
        if self.settings.same_code or (upstream is not None and not upstream.changed):
            return False
        with saying("planning both sides"):
            plans = dict(zip((BASE, HEAD), _both(lambda side: self._planned(suites[side])), strict=True))
        if None in plans.values():  # the process that verifies says why
            return True
        self._plans = plans
        keys = list(dict.fromkeys(itertools.chain(*plans.values())))
        named = re.findall(r"[^\s'\"{}\[\],=]+", f"{self.config.decode()} {' '.join(self.settings.flags)}")
        variants = [Path(file) for file in self.settings.variants]
        if upstream is not None:
            changed = upstream.changed_cells(keys)
        else:
            changed = changed_cells(keys, suites[BASE], suites[HEAD], variants, map(Path, named))
        same = [key for key in keys if key not in set(changed)]
        kept = some_of([key for key in same if "/".join(split_key(key)[:2]) in self.steady])
        wanted = {*changed, *kept}
        cells = {side: tuple(glob.escape(key) for key in plan if key in wanted) for side, plan in plans.items()}
        if changed and same and all(cells.values()):
            rule = replace(self.settings.rule, unchanged=tuple(map(glob.escape, kept)))
            self.settings = structs.replace(self.settings, cells=cells, rule=rule)
            beside = counted(len(kept), "cell")
            self._say(f"{len(changed)} of {counted(len(keys), 'cell')} changed; beside them {beside} of unchanged code")
        return bool(changed)

    def _planned(self, suite: Path) -> list[str] | None:
        """Keys of the cells of a revision; None where it cannot plan them."""
        with tempfile.NamedTemporaryFile(suffix=".yaml") as config:
            config.write(self.config)
            config.flush()
            command = [sys.executable, "bench.py", "run", config.name, *self.settings.flags, *self._only()]
            done = subprocess.run([*command, "--plan"], cwd=suite, env=_environment(), capture_output=True, text=True)
        return done.stdout.splitlines() if done.returncode == 0 else None

    def _measure_pairs(self, suites: dict[str, Path], end: float, minutes: float, can_hold: bool) -> None:
        only = None
        for pair in range(LOOKS[-1]):
            if pair in LOOKS:
                comparison = self.comparison(pair)
                undecided = sorted({cell.key for cell in comparison.undecided})
                if comparison.exit_code != UNSURE or not undecided:
                    return
                only = [*undecided, *(cell.key for cell in comparison.unchanged_cells)]
            if self._is_measured(pair):
                continue
            if self.seconds and time.monotonic() + (1 if self.settings.gpus else 2) * self.seconds[-1] > end:
                more = f"give more with {resume_command(self.folder)} --minutes N"
                self._say(f"{minutes:g} minutes are over after {counted(pair, 'pair')}; {more}")
                return
            if pair in LOOKS:
                about = f", about {comparison.enough} pairs in all" if comparison.enough else ""
                self._say(f"not sure of {counted(len(undecided), 'cell')}; measuring these again{about}")
            self._measure_pair(pair, suites, only, can_hold)

    def comparison(self, pairs: int | None = None) -> Comparison:
        """Of the first ``pairs`` pairs, or of all that are complete. Where there is none, of the processes that
        verified, which say what broke. Raises RecordError and CompareError.
        """
        if pairs is None:
            pairs = next(pair for pair in itertools.count() if not self._is_measured(pair))
        sides = ([self._record(side, i + 1) for i in range(pairs)] or [self._verified(side)] for side in (BASE, HEAD))
        base, head = ([read_run(path) for path in paths] for paths in sides)
        # Both read the same configuration; a default that head changes is a difference that the comment shows.
        differ = bool(differences(base[0], head[0], "compare"))
        rule = replace(self.settings.rule, rate=self.settings.rule.rate / len(LOOKS), any_config=differ)
        return compare(base, head, rule)

    def _broken(self) -> list[Transition]:
        """What the processes that verified say of head."""
        try:
            return self.comparison(0).broken
        except CompareError:  # nothing was timed on both sides
            return []

    def _record(self, side: str, number: int) -> Path:
        return self.folder / side / f"run{number}.jsonl"

    def _verified(self, side: str) -> Path:
        return self.folder / "verified" / f"{side}.jsonl"

    def _is_measured(self, pair: int) -> bool:
        return all(self._record(side, pair + 1).is_file() for side in (BASE, HEAD))

    def _verify(self, suites: dict[str, Path], can_end: bool) -> None:
        """The sides that are not verified yet. One of which a cell failed is verified once more, alone: the memory may
        not have been enough for two processes. can_end: whether both have END_FLAG.
        """
        began = time.monotonic()
        sides = (HEAD,) if self.settings.same_code else (BASE, HEAD)
        missing = alone = [side for side in sides if not self._verified(side).is_file()]
        if len(missing) > 1:
            of_base = self._verifying(BASE, suites[BASE])
            of_head = self._verifying(HEAD, suites[HEAD], *([END_FLAG] if can_end else []))
            self._complete([of_head] if can_end else [of_base, of_head])
            wrong = _wrong(read_run(self._verified(HEAD))) if can_end else []
            if known := [key for key in wrong if key in self._plans[BASE]]:
                end_groups([of_base.running], 0)
                self._running.remove(of_base)
                of_base = self._verifying(BASE, suites[BASE], "--brief", keys=known)
            if can_end:
                self._complete([of_base])
            if wrong and not self._broken():
                for side in missing:  # head broke none of them, so the others are compared
                    self._verified(side).unlink()
                self._complete([self._verifying(side, suites[side]) for side in missing])
            alone = [side for side in missing if _has_failed(read_run(self._verified(side)))]
        for side in alone:
            self._complete([self._verifying(side, suites[side])])
        if self.settings.same_code and not self._verified(BASE).is_file():
            shutil.copy(self._verified(HEAD), self._verified(BASE))
        if missing:
            self._say(f"verified {' and '.join(missing)}: {time.monotonic() - began:.0f} s")

    def _verifying(self, side: str, suite: Path, *more: str, keys: Sequence[str] | None = None) -> _Process:
        """more: flags. keys: of the cells, where these are not all."""
        flags = [*self._only(side, keys), *_rounds(VERIFYING_ROUNDS), *more]
        return self._start(side, "verified", suite, flags, self._verified(side))

    def _measure_pair(self, pair: int, suites: dict[str, Path], only: Sequence[str] | None, can_hold: bool) -> None:
        texts, todo = [], self._steps(pair)
        for i, sides in enumerate(todo):
            processes = self._released() or [self._timing(side, pair, suites, only) for side in sides]
            began = time.monotonic()
            if can_hold:
                self._hold(todo[i + 1 :], pair, suites, only)
            self._complete(processes)
            self.seconds.append(time.monotonic() - began)
            texts.append(f"{' and '.join(sides)} {self.seconds[-1]:.0f} s")
        self._say(f"pair {pair + 1}: {', '.join(texts)}")

    def _steps(self, pair: int) -> list[list[str]]:
        """The sides of a pair that are not measured, those that run at once together."""
        left = [side for side in _sides(pair) if not self._record(side, pair + 1).is_file()]
        return ([left] if left else []) if self.settings.gpus else [[side] for side in left]

    def _timing(
        self, side: str, pair: int, suites: dict[str, Path], only: Sequence[str] | None, hold: bool = False
    ) -> _Process:
        verified = read_run(self._verified(side)).in_order
        timed = [cell.key for cell in verified if cell.was_timed and (only is None or cell.key in only)]
        known = [structs.replace(cell, process=0) for cell in verified if not cell.was_timed] if only is None else []
        flags = [*self._only(side, timed), *_rounds(ROUNDS), "--brief"]
        if self.can_trust:
            flags += [TRUST_FLAG, str(self._verified(side).resolve())]
        return self._start(side, str(pair + 1), suites[side], flags, self._record(side, pair + 1), hold, known)

    def _hold(self, left: Sequence[list[str]], pair: int, suites: dict[str, Path], only: Sequence[str] | None) -> None:
        """Start what follows, unless the sides are compared before it. left: the rest of this pair."""
        if not left:
            pair += 1
            if pair in LOOKS or pair >= LOOKS[-1]:
                return
            left = self._steps(pair)
        if left:
            self._held = [self._timing(side, pair, suites, only, hold=True) for side in left[0]]

    def _released(self) -> list[_Process]:
        """The held processes, on their way; ``_hold`` started none but the next ones."""
        held, self._held = self._held, []
        for process in held:
            with suppress(BrokenPipeError):  # it has ended, and its log says why
                process.running.stdin.write(b"go\n")
                process.running.stdin.close()
        return held

    def _only(self, side: str | None = None, keys: Sequence[str] | None = None) -> list[str]:
        """Flags for these cells, or for all that the gate measures of a side."""
        patterns = self.settings.cells.get(side, self.settings.only) if keys is None else map(glob.escape, keys)
        return [f"--only={pattern}" for pattern in patterns]

    def _start(
        self,
        side: str,
        name: str,
        suite: Path,
        flags: Sequence[str],
        record: Path,
        hold: bool = False,
        known: Sequence[Cell] = (),
    ) -> _Process:
        """In the folder of its revision, which it imports from, and in a process group of its own, so that Ctrl-C
        reaches it once, from here. hold: it waits for a line before it uses the GPU.
        """
        unfinished, log = self.folder / "unfinished" / f"{side}-{name}", self.folder / "logs" / f"{side}-{name}.txt"
        command = [sys.executable, "bench.py", "run", str((self.folder / CONFIG).resolve()), *self.settings.flags]
        command += [*flags, "--no-plots", "--out", str(unfinished.resolve()), *([HOLD_FLAG] if hold else [])]
        environment = _environment()
        if self.settings.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.settings.gpus[self._gpu(side, name)]
        if self.settings.upstream is not None:
            environment["PYTHONPATH"] = python_path(self.folder, side)
        shutil.rmtree(unfinished, ignore_errors=True)
        log.parent.mkdir(exist_ok=True)
        with open(log, "w", encoding="utf-8") as output:
            running = subprocess.Popen(
                command,
                cwd=suite,
                env=environment,
                process_group=0,
                stdin=subprocess.PIPE if hold else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._running.append(process := _Process(side, running, log, unfinished / "run.jsonl", record, known))
        return process

    def _complete(self, processes: Sequence[_Process]) -> None:
        """Wait for them; a record counts only when it is complete. Raises RunError."""
        what = " and ".join(process.log.stem for process in processes)
        if not self.console.is_terminal:
            self._say(f"running {what}")
        with self.console.status(what) if self.console.is_terminal else nullcontext():
            codes = [process.running.wait() for process in processes]
        self._running = [process for process in self._running if process not in processes]
        incomplete = []
        for process, code in zip(processes, codes, strict=True):
            if not _is_complete(process.unfinished, code):
                incomplete.append((process, code))
                continue
            _append(process.unfinished, process.known)
            process.record.parent.mkdir(exist_ok=True)
            os.replace(process.unfinished, process.record)
            shutil.rmtree(process.unfinished.parent, ignore_errors=True)
        with suppress(OSError):  # a side that was interrupted is still in it
            (self.folder / "unfinished").rmdir()
        for process, code in incomplete:
            name = self.settings.name(process.side)
            raise RunError(
                f"a process of {process.side}, {name}, ended with exit code {code} before it had all cells: "
                f"{_error_in(process.log)}; its output is in {process.log}. Begin a new gate with other flags, or "
                f"continue with {resume_command(self.folder)} once the cause is fixed"
            )

    @staticmethod
    def _gpu(side: str, name: str) -> int:
        """The sides of a pair, a process of each, change places after every pair."""
        return (int(name) + (side == HEAD)) % 2 if name.isdecimal() else int(side == HEAD)

    def _say(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)


def _environment() -> dict[str, str]:
    """Of a process that imports from its working directory, and whose commit is that of its side."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "BENCH_COMMIT")}


def _both(ask: Callable[[str], Any]) -> list[Any]:
    """The answers of both sides, asked at the same time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(ask, (BASE, HEAD)))


def _sides(pair: int) -> tuple[str, str]:
    """In the order in which they are measured."""
    return (BASE, HEAD) if pair % 2 == 0 else (HEAD, BASE)


def _is_gpu(run: Run) -> bool:
    """On a CPU, a process that loads would slow down the one that is timed."""
    return run.header.environment.gpu is not None


def _wrong(run: Run) -> list[str]:
    """Keys of the cells of a process that ended with wrong variants (END_FLAG), else none."""
    wrong = {cell.variant_id for cell in run.cells if cell.status.is_bad}
    return [cell.key for cell in run.cells] if all(cell.variant_id in wrong for cell in run.cells) else []


def _has_failed(run: Run) -> bool:
    return any(cell.status == Status.FAILED for cell in run.cells)


def _is_complete(record: Path, code: int) -> bool:
    """Whether a process that ended with this exit code has recorded all cells. One that could verify none says so with
    its code.
    """
    try:
        run = read_run(record)
    except RecordError:
        return False
    good = code in (OK, BAD) or (code == USAGE and not any(cell.status.is_verdict for cell in run.cells))
    return good and not (run.truncated or run.missing)


def _append(record: Path, cells: Sequence[Cell]) -> None:
    """Raises RecordError."""
    if cells:
        writer = Writer(record, resume=True)
        for cell in cells:
            writer.write(cell)
        writer.close()


def _error_in(log: Path) -> str:
    """The last error that a process printed, else its last line."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith(("error: ", "stopped: "))]
    return (errors or lines or ["it printed nothing"])[-1]


# --- the folder of a gate ---------------------------------------------------------------------------------------------


def resume_command(folder: Path) -> str:
    return shlex.join([*program(), "gate", "--resume", str(folder)])


def begin(options: argparse.Namespace, source: LoadedConfig, console: Console) -> Gate:
    """A new gate, with the options of the command line. Raises ConfigError, DiscoveryError, RecordError and
    CompareError.
    """
    if source.section is not None:
        raise ConfigError(f"{options.config}: gate takes sweeps; a decode loop compares its stacks within one run")
    folder = options.out or new_folder(f"gate-{source.config.name}")
    if (folder / STATE).exists():
        raise RecordError(
            f"{folder} holds a gate already; continue with {resume_command(folder)}, or choose another --out"
        )
    rule, gpus = replace(rule_of(options), only=()), _two_gpus(options)
    device, catalog = prepare(options)
    if options.upstream is None:
        upstream, base = None, resolve("--base", options.base)
        head = working_tree(folder) if options.head is None else resolve("--head", options.head)
    else:
        base = head = as_it_stands(folder)
        with saying(f"taking the files of {options.upstream}"):
            upstream = sides_of(options, folder, catalog)
    try:
        with first_on_path(folder, HEAD) if upstream is not None else nullcontext():
            steady = _timed_here(options, source, device, catalog)
    except (ConfigError, DiscoveryError):
        if upstream is not None:
            discard(folder)
        raise
    settings = Settings(
        only=tuple(options.only),
        flags=_flags(options, source.config.measure),
        rule=rule,
        variants=_own_variants(options),
        base=base,
        head=head,
        upstream=upstream,
        gpus=gpus,
    )
    return Gate(folder, settings, Path(options.config).read_bytes(), console, None if options.all else steady)


def _two_gpus(options: argparse.Namespace) -> tuple[str, ...]:
    """Of --gpus, for CUDA_VISIBLE_DEVICES. Raises ConfigError."""
    if options.gpus is None:
        return ()
    if options.device == "cpu":
        raise ConfigError("--gpus and --device cpu exclude each other")
    try:
        chosen = choose_gpus(options.gpus)
    except RuntimeError as error:
        raise ConfigError(str(error)) from None
    if len(chosen) != 2:
        raise ConfigError(f"--gpus {options.gpus}: a pair of processes takes two GPUs, as --gpus 2 has them")
    return tuple(gpu.visible for gpu in chosen)


def _timed_here(options: argparse.Namespace, source: LoadedConfig, device: str, catalog: Catalog) -> set[str]:
    """Ids of the variants of this checkout that can be timed on this machine, without those of torch.compile, which are
    slow to prepare. Raises ConfigError where no variant can be timed.
    """
    variants = catalog.variants_of(plan_tasks(options, source, catalog))
    timed = [variant for variant in variants if unavailable(variant, device) is None and not variant.is_interpreted]
    if not timed:
        raise ConfigError(
            "no cell of this gate can be timed here: without a GPU Triton is interpreted and CUDA kernels do not run; "
            "run it on a machine with a GPU, or choose variants of PyTorch operators with --only"
        )
    return {variant.id for variant in timed if COMPILER not in variant.requires}


def resume(folder: Path, console: Console) -> Gate:
    """A gate that was begun. Raises RecordError; ConfigError where its head was a working tree that has changed."""
    try:
        settings = msgspec.json.decode((folder / STATE).read_bytes(), type=Settings)
    except OSError:
        raise RecordError(f"--resume {folder}: no gate here, {STATE} is missing") from None
    except msgspec.DecodeError as error:
        raise RecordError(f"{folder / STATE} cannot be read: {error}") from None
    if settings.head.name is None and (now := as_it_stands(folder)) != settings.head:
        files = ", ".join(abbreviated(changed_files(folder)))
        raise ConfigError(
            f"--resume {folder}: its head was the {settings.head}, which has changed to the {now}; begin a new gate. "
            f"Files that differ from the commit: {files or 'none'}"
        )
    return Gate(folder, settings, None, console)


def _flags(options: argparse.Namespace, measure: Measure) -> tuple[str, ...]:
    """The flags of every process: those of the command, and one seed for all.

    A file of --variants in the repository is each revision's own; any other is the same for both.
    """
    given = [f"--set={text}" for text in options.set]
    given += [f"--variants={file}" for file in _own_variants(options)]
    return (*given, f"--device={options.device}", f"--seed={seed_of(measure)}")


def _own_variants(options: argparse.Namespace) -> tuple[str, ...]:
    paths = [Path(file).resolve() for file in options.variants]
    return tuple(str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path) for path in paths)


def _rounds(number: int) -> list[str]:
    return [f"--set=measure.{bound}_rounds={number}" for bound in ("min", "max")]
