"""`bench.py gate`: two revisions measured in turns, in fresh processes on one GPU, until the comparison is sure.

The first process of each revision verifies and audits every cell; the others time what it passed (``run
--verified-by``). Processes take turns (base head, head base, ...), so that a drift of the machine meets both sides
alike. After the first FIRST_PAIRS pairs only the cells without a confirmed verdict are measured again.

The folder of a gate holds one record for each process, ``base/run1.jsonl``, ``head/run1.jsonl`` and so on, which
``bench.py compare FOLDER/base FOLDER/head`` reads again, its settings in gate.json, and what each process printed in
``logs/``.
"""

from __future__ import annotations

import glob
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from harness.records.file import read_run
from harness.records.schema import RecordError, Run
from harness.runner.revisions import Revision, check_command_line, checked_out
from harness.wording import counted, printable

BASE, HEAD = "base", "head"
#: Pairs of processes before the first verdict.
FIRST_PAIRS = 4
#: Share of the gate's minutes that the samples of one process may take: FIRST_PAIRS pairs and as much for the rest.
SAMPLING_SHARE = 1 / 30
#: Seconds that an interrupted process gets to write down what it has.
EXIT_LIMIT_S = 60
STATE = "gate.json"


class GateError(Exception):
    """A side could not be measured, so that there is no verdict. Exit code 2."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate measures; gate.json. flags: of every process, beside its cells and its folder. commit and changes as
    in Revision.
    """

    config: str
    flags: tuple[str, ...]
    minutes: float
    base: str
    base_name: str | None
    head: str
    head_name: str | None
    head_changes: str | None

    @property
    def revisions(self) -> dict[str, Revision]:
        return {
            BASE: Revision(self.base, self.base_name),
            HEAD: Revision(self.head, self.head_name, self.head_changes),
        }


@dataclass(frozen=True)
class Verdict:
    """What the comparison of all processes so far says.

    slower:    keys of cells that are slower. unsure: keys of cells of which it cannot tell.
    """

    slower: frozenset[str]
    unsure: frozenset[str]


@dataclass
class Gate:
    """Measures both sides into a folder.

    judge:   the verdict on the runs of both sides.
    seconds: of every process of this call.
    """

    folder: Path
    settings: Settings
    judge: Callable[[Sequence[Run], Sequence[Run]], Verdict]
    console: Console
    seconds: list[float] = field(default_factory=list)

    def measure(self, minutes: float) -> None:
        """Measure pairs until every cell has a confirmed verdict, or the minutes are over. Raises GateError."""
        began = time.monotonic()
        with checked_out(self.settings.revisions) as suites:
            for side, revision in self.settings.revisions.items():
                check_command_line(f"--{side}", revision, suites[side])
            only, confirmed, pair = None, frozenset(), 0
            while True:
                if pair >= FIRST_PAIRS:
                    verdict = self._verdict(pair)
                    only, confirmed = sorted(verdict.unsure | (verdict.slower - confirmed)), verdict.slower
                    if not only:
                        return
                if not self._measured(pair):
                    if pair and time.monotonic() - began + self._pair_seconds > minutes * 60:
                        self._say(f"{minutes:g} minutes are over after {counted(pair, 'pair')}")
                        return
                    if pair == FIRST_PAIRS:
                        self._say(f"measuring {counted(len(only), 'cell')} again")
                    self._measure_pair(pair, suites, only)
                pair += 1

    def runs(self, pairs: int | None = None) -> tuple[list[Run], list[Run]]:
        """The runs of both sides, of the first ``pairs`` pairs."""
        base, head = ([read_run(path) for path in self._records(side)[:pairs]] for side in (BASE, HEAD))
        return base, head

    @property
    def pairs(self) -> int:
        """Complete pairs so far."""
        return min(len(self._records(side)) for side in (BASE, HEAD))

    def _verdict(self, pairs: int) -> Verdict:
        return self.judge(*self.runs(pairs))

    def _records(self, side: str) -> list[Path]:
        """In the order of the pairs."""
        paths = (
            self._record(side, number) for number in range(1, 1 + len(list((self.folder / side).glob("run*.jsonl"))))
        )
        return [path for path in paths if path.is_file()]

    def _record(self, side: str, number: int) -> Path:
        return self.folder / side / f"run{number}.jsonl"

    def _measured(self, pair: int) -> bool:
        return all(self._record(side, pair + 1).is_file() for side in (BASE, HEAD))

    @property
    def _pair_seconds(self) -> float:
        """Expected for the next pair: what the last process took, twice; nothing where this call measured none."""
        return 2 * self.seconds[-1] if self.seconds else 0.0

    def _measure_pair(self, pair: int, suites: dict[str, Path], only: Sequence[str] | None) -> None:
        texts = []
        for side in (BASE, HEAD) if pair % 2 == 0 else (HEAD, BASE):
            if not self._record(side, pair + 1).is_file():
                self._measure_side(side, pair + 1, suites[side], only)
                texts.append(f"{side} {self.seconds[-1]:.0f} s")
        self._say(f"pair {pair + 1}: {', '.join(texts)}")

    def _measure_side(self, side: str, number: int, suite: Path, only: Sequence[str] | None) -> None:
        """One process. Its record counts only when it is complete. Raises GateError and KeyboardInterrupt."""
        unfinished, log = self.folder / "unfinished", self.folder / "logs" / f"{side}{number}.txt"
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [
            sys.executable,
            "bench.py",
            "run",
            str((self.folder / "config.yaml").resolve()),
            *self.settings.flags,
        ]
        command += ["--no-plots", "--out", str(unfinished.resolve())]
        if number > 1:
            command += ["--verified-by", str(self._record(side, 1).resolve())]
        if only is not None:
            command += [f"--only={glob.escape(key)}" for key in only]
        began = time.monotonic()
        code = _run(command, suite, log)
        self.seconds.append(time.monotonic() - began)
        record = unfinished / "run.jsonl"
        if code not in (0, 1) or not _is_complete(record):
            raise GateError(
                f"process {number} of {side} ({self.settings.revisions[side]}) measured not all cells, "
                f"exit code {code}: {_error_in(log)}; all it printed is in {log}"
            )
        target = self._record(side, number)
        target.parent.mkdir(exist_ok=True)
        os.replace(record, target)
        shutil.rmtree(unfinished, ignore_errors=True)

    def _say(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)


def _run(command: Sequence[str], suite: Path, log: Path) -> int:
    """Run the command in the folder of a revision, which it imports from; the exit code. In a process group of its own,
    so that Ctrl-C reaches it once, from here. Raises KeyboardInterrupt once it has ended.
    """
    log.parent.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, cwd=suite, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0
        )
        try:
            return process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(EXIT_LIMIT_S)
            process.kill()
            process.wait()
            raise


def _is_complete(record: Path) -> bool:
    try:
        run = read_run(record)
    except RecordError:
        return False
    return not run.truncated and set(run.header.cells) == {cell.key for cell in run.cells}


def _error_in(log: Path) -> str:
    """The last error that a process printed, else its last line."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith(("error: ", "stopped: "))]
    return printable((errors or lines or ["it printed nothing"])[-1])


# --- the folder of a gate ---------------------------------------------------------------------------------------------


def begin(folder: Path, settings: Settings, config: bytes) -> None:
    """Make the folder. Raises RecordError where there is a gate in it, or it cannot be written."""
    if (folder / STATE).exists():
        raise RecordError(f"{folder} holds a gate already; complete it with --resume {folder}, or choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_bytes(config)
        (folder / STATE).write_bytes(msgspec.json.format(msgspec.json.encode(settings)) + b"\n")
    except OSError as error:
        raise RecordError(f"cannot write to {folder}: {error.strerror}; choose another folder with --out") from None


def settings_of(folder: Path) -> Settings:
    """Raises RecordError."""
    try:
        return msgspec.json.decode((folder / STATE).read_bytes(), type=Settings)
    except OSError:
        raise RecordError(f"--resume {folder}: no gate here ({STATE} is missing)") from None
    except msgspec.DecodeError as error:
        raise RecordError(f"{folder / STATE} cannot be read: {error}") from None
