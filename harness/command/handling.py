"""A command as a process: its line of flags, streams, signals, errors and exit code. Light until a command runs."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, Protocol, TextIO

from spec_decode_bench.harness.errors import UsageError
from spec_decode_bench.harness.exit_codes import INTERRUPTED, USAGE


class Command(Protocol):
    """What a module of a room's ``COMMANDS`` has. It imports nothing heavy before ``run``, and there under ``loading``.

    HELP: one line. EXAMPLES: arguments of bench.py, each on a line of the command's own help.
    """

    NAME: str
    HELP: str
    EXAMPLES: tuple[str, ...]

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Add its flags."""

    def run(self, options: argparse.Namespace) -> int:
        """Do it; the exit code. Raises UsageError."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence, as for every other error; argparse prints the whole usage before it."""
        from spec_decode_bench.harness.printable import printable

        self.exit(USAGE, printable(f"error: {message}; see {self.prog} --help") + "\n")


@contextmanager
def loading() -> Iterator[None]:
    """Imports of a command: they do not wait for torch, and an interrupt ends the process at once."""
    from spec_decode_bench.harness.session.interrupt import exit_on_interrupt

    with exit_on_interrupt():
        from spec_decode_bench.harness.lazy_torch import lazy_torch

        with lazy_torch():
            yield


def start_workers_early(device: str) -> None:
    """Start the process that workers are forked from: it loads torch while the command plans. device: of --device."""
    from spec_decode_bench.harness.session.interrupt import exit_on_interrupt

    with exit_on_interrupt():
        from spec_decode_bench.harness.session import fork_server
        from spec_decode_bench.harness.timing.gpus import choose_device

        with suppress(OSError, RuntimeError):  # reported where a worker is started, or the device is chosen
            fork_server.start(choose_device(device))


def interruptible(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a command, which SIGTERM and SIGHUP interrupt as Ctrl-C does. An expected error is one sentence on stderr,
    exit code 2.
    """
    from spec_decode_bench.harness.session.interrupt import signals_interrupt

    with signals_interrupt():
        try:
            return run(options)
        except UsageError as error:
            from spec_decode_bench.harness.report.console import print_to_stderr

            print_to_stderr(f"error: {error}")
            return USAGE


def guarded(body: Callable[[], int]) -> int:
    """Call ``body`` between streams that survive a closed pipe; the exit code, also of an interrupt, and of what the
    system refuses: a file, memory, a module, room on the disk under standard output.
    """
    before = sys.stdout, sys.stderr
    try:
        _prepare_streams()
        try:
            return body()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ImportError, MemoryError) as error:
        from spec_decode_bench.harness.errors import first_line

        print(f"error: {first_line(error)}; is requirements.txt installed, and enough memory left?", file=sys.stderr)
        return USAGE
    except OSError as error:
        if error.filename == STANDARD_OUTPUT:  # e.g. `> /full/disk`
            sys.stdout.drop()
            print(f"error: cannot write to {STANDARD_OUTPUT}: {error.strerror}", file=sys.stderr)
        elif error.filename is None:  # no file: out of descriptors, or of processes
            print(f"error: {error.strerror}; see the limits of this system with ulimit -a", file=sys.stderr)
        else:  # a path that may not be looked at, or is too long; the commands handle other errors of files
            from spec_decode_bench.harness.printable import printable

            print(printable(f"error: {error.filename} cannot be used: {error.strerror}"), file=sys.stderr)
        return USAGE
    finally:
        sys.stdout, sys.stderr = before


#: The command that `pip install .` adds.
INSTALLED = "spec-decode-bench"


def program() -> list[str]:
    """The words that this program was called by: those of a clone, or the installed command."""
    if Path(sys.argv[0]).stem == INSTALLED:
        return [INSTALLED if shutil.which(INSTALLED) else sys.argv[0]]
    words = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    return words if Path(words[-1]).name == "bench.py" else ["python", "bench.py"]


#: The file name in an OSError of standard output.
STANDARD_OUTPUT = "standard output"


class Output:
    """A text stream whose reader may go away, as in `| head -1`: the rest of the output is dropped, and the command
    runs to its end and its own exit code. Any other OSError is raised with STANDARD_OUTPUT as its file.

    forgiven: errors after which nothing more is written. For standard error every OSError, since there is nowhere left
    to report it.
    """

    def __init__(self, stream: TextIO, forgiven: type[OSError] = BrokenPipeError) -> None:
        self._stream, self._forgiven = stream, forgiven

    def write(self, text: str) -> int:
        return self._try(self._stream.write, text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, act: Any, *arguments: Any) -> Any:
        try:
            return act(*arguments)
        except self._forgiven:
            self.drop()
        except OSError as error:
            raise OSError(error.errno, error.strerror, STANDARD_OUTPUT) from None

    def drop(self) -> None:
        """Discard everything from now on, also what is buffered, which would fail again when the interpreter exits."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _prepare_streams() -> None:
    """Replace both streams by Output, in UTF-8: not every locale has the characters of the tables (µ, ×, ·), and a
    wrong character on screen is better than no table.
    """
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - a parent may have closed it, e.g. `>&-`
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # escapes for a path that is no UTF-8
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.stdout, sys.stderr = Output(sys.stdout), Output(sys.stderr, OSError)
