#!/usr/bin/env python3
"""The command line, gathered from the rooms: each has ``COMMANDS``, modules with name, help, flags and what runs.

Exit codes: 0 fine, 1 a mismatch, a failed cell or a regression, 2 bad usage, configuration, device or file, or nothing
that could be verified, 3 unsure, 130 interrupted, with everything measured so far kept. docs/configuration.md lists the
causes of each.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spec_decode_bench.harness.command.handling import Command

#: Commands in the order of the help.
ORDER = (
    *("run", "verify", "compare", "gate", "merge", "plot", "report"),
    *("check-record", "export", "history", "list", "profile", "doctor"),
)
#: Modules with which rooms add to the instrument (harness/registry.py): by the key of their section, and others.
ROOMS = {room: f"spec_decode_bench.{room}.registration" for room in ("decode_loop", "engine_plugin")}
REGISTRATIONS = ("spec_decode_bench.profiler.registration",)


def commands() -> dict[str, Command]:
    """Of all rooms, by name."""
    from spec_decode_bench import cli, profiler, regression

    found = {command.NAME: command for room in (cli, regression, profiler) for command in room.COMMANDS}
    return dict(sorted(found.items(), key=lambda item: ORDER.index(item[0])))


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """only: the command that is given, whose flags are enough; None for those of all commands."""
    from spec_decode_bench.harness import __version__
    from spec_decode_bench.harness.command.handling import Parser, program

    me = " ".join(program())
    top = Parser(
        prog=me,
        usage=f"{me} CONFIG.yaml [flags]\n       {me} COMMAND ...",
        description="Microbenchmarks of the metadata kernels of speculative decoding.",
        epilog=f"{me} COMMAND --help shows examples and flags of a command.",
        allow_abbrev=False,
    )
    top.add_argument(
        "--version", action="version", version=f"spec-decode-bench {__version__}", help="print the version"
    )
    subparsers = top.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True, prog=me)
    for name, command in commands().items():
        examples = [f"  {me} {arguments}" for arguments in command.EXAMPLES]
        of_command = subparsers.add_parser(
            name,
            help=command.HELP,
            description="\n".join([command.HELP, "", *examples]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if only in (None, name):
            command.add(of_command)
    return top


def main(arguments: list[str] | None = None) -> int:
    from spec_decode_bench.harness.command.handling import guarded

    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    from spec_decode_bench.harness import registry
    from spec_decode_bench.harness.command import flags
    from spec_decode_bench.harness.command.handling import interruptible, loading

    if arguments and arguments[0] not in ORDER and arguments[0] not in ("-h", "--help", "--version"):
        near = difflib.get_close_matches(arguments[0], ORDER, n=1)
        if near and not Path(flags.config(arguments[0])).exists():
            print(f"error: no command and no file {arguments[0]!r}; did you mean {near[0]}?", file=sys.stderr)
            return 2
        arguments.insert(0, "run")
    began, top = time.monotonic(), parser(next(iter(arguments), None))
    options, unknown = top.parse_known_args(arguments)
    options.began = began
    if unknown:
        top.prog = f"{top.prog} {options.command}"  # whose help has the flags
        top.error(f"unrecognized arguments: {' '.join(unknown)}")
    with loading():
        registry.ROOMS.update(ROOMS)
        registry.load(REGISTRATIONS)
    return interruptible(commands()[options.command].run, options)


if __name__ == "__main__":
    sys.path.insert(0, folder := str(Path(__file__).resolve().parent))  # python -P and -I leave it out
    import spec_decode_bench  # noqa: F401

    sys.path[:] = [entry for entry in sys.path if entry != folder]  # where an engine's `import kernels` would end up
    sys.exit(main())
