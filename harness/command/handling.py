"""A command as a process: its line of flags, streams, signals, errors and exit code. Light until a command runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn, Protocol

from spec_decode_bench.harness.command import streams
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
        streams.prepare()
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
        if error.filename == streams.NAME:  # e.g. `> /full/disk`
            sys.stdout.drop()
            print(f"error: cannot write to {streams.NAME}: {error.strerror}", file=sys.stderr)
        elif error.filename is None:  # no file: out of descriptors, or of processes
            print(f"error: {error.strerror}; see the limits of this system with ulimit -a", file=sys.stderr)
        else:  # a path that may not be looked at, or is too long; the commands handle other errors of files
            from spec_decode_bench.harness.printable import printable

            print(printable(f"error: {error.filename} cannot be used: {error.strerror}"), file=sys.stderr)
        return USAGE
    finally:
        sys.stdout, sys.stderr = before
