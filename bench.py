#!/usr/bin/env python3
"""The command line: flags and exit codes. What a command does stands in harness/cli/commands.py.

Exit codes: 0 fine, 1 a mismatch, a failed cell or a regression, 2 bad usage, configuration, device or file, 3 unsure,
130 interrupted with what was measured kept. All their causes stand in the README.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from typing import NoReturn

COMMANDS = ("run", "verify", "compare", "merge", "plot", "list", "doctor")
USAGE = """\
  python bench.py configs/mtp3.yaml            verify, measure, table, record, plots
  python bench.py verify configs/mtp3.yaml     hard points, sequences, contracts, historic defects; no timing
  python bench.py verify --defects             the mutation table: which check rejects which historic defect
  python bench.py compare BASE HEAD            two runs: verdicts, markdown, plot
  python bench.py merge RUN RUN ... --out DIR  the shards of a sweep as one run
  python bench.py plot RUN [RUN ...]           all figures from records
  python bench.py list                         operators, variants, availability
  python bench.py doctor                       how far the ruler can be trusted on this machine
"""


class Parser(argparse.ArgumentParser):
    """Bad usage is one sentence with the remedy, as every other error; argparse would print the whole usage before
    it.
    """

    def parse_known_args(self, args=None, namespace=None):
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            near = difflib.get_close_matches(unknown[0].partition("=")[0], self._option_string_actions, n=1)
            self.error(f"unknown argument {unknown[0]!r}" + (f"; did you mean {near[0]}?" if near else ""))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message.replace(chr(10), ' ')}; see python {self.prog} --help\n")


def parser() -> Parser:
    top = Parser(
        prog="bench.py",
        usage=USAGE,
        description="Microbenchmarks of the metadata kernels of speculative decoding.",
        allow_abbrev=False,
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, prog="bench.py")

    run = commands.add_parser(
        "run", help="verify, measure, table, record, plots (the default command)", allow_abbrev=False
    )
    _add_sweep_options(run, config_required=True)
    run.add_argument("--plan", action="store_true", help="list the cells and stop; touches no GPU")
    run.add_argument(
        "--out",
        type=_folder,
        metavar="FOLDER",
        help="where the record and the plots go (default: results/NAME-DEVICE-TIME)",
    )
    run.add_argument("--no-plots", action="store_true", help="write the record and the tables only")
    run.add_argument("--resume", metavar="RUN", help="complete a run that was broken off: its folder or record")
    run.add_argument(
        "--shard", metavar="I/N", help="measure the I-th of N parts of the sweep, e.g. one on each GPU; see merge"
    )

    verify = commands.add_parser("verify", help="correctness alone", allow_abbrev=False)
    _add_sweep_options(verify, config_required=False)
    verify.add_argument(
        "--defects",
        action="store_true",
        help="which check rejects which historic defect, of CONFIG's operators or of all",
    )

    compare = commands.add_parser("compare", help="two recorded runs", allow_abbrev=False)
    compare.add_argument("base", metavar="BASE", help="record (run.jsonl) or folder of the older run")
    compare.add_argument("head", metavar="HEAD", help="record (run.jsonl) or folder of the newer run")
    compare.add_argument(
        "--threshold", type=float, default=0.02, metavar="SHARE", help="relative change that matters (default 0.02)"
    )
    compare.add_argument(
        "--figure", action="append", metavar="NAME", help="gate on this figure: gpu_us, host_us, eager_us or cpu_us"
    )
    compare.add_argument(
        "--out", type=_folder, metavar="FOLDER", help="where comparison.md and the plot go (default: beside HEAD)"
    )

    merge = commands.add_parser("merge", help="shards of one sweep", allow_abbrev=False)
    merge.add_argument("runs", nargs="+", metavar="RUN", help="records (run.jsonl) or folders of the shards")
    merge.add_argument(
        "--out", type=_folder, required=True, metavar="FOLDER", help="where the merged record, its table and plots go"
    )
    merge.add_argument("--no-plots", action="store_true", help="write the record and the tables only")

    plot = commands.add_parser("plot", help="figures from records", allow_abbrev=False)
    plot.add_argument("runs", nargs="+", metavar="RUN", help="records (run.jsonl) or folders of runs")
    plot.add_argument(
        "--out", type=_folder, default=Path("results/plots"), metavar="FOLDER", help="default: results/plots"
    )

    listing = commands.add_parser("list", help="operators, variants, availability", allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="for programs")
    _add_variants(listing)
    _add_device(listing)

    doctor = commands.add_parser("doctor", help="calibrate, and say what is wrong", allow_abbrev=False)
    doctor.add_argument(
        "--out", type=_folder, metavar="FOLDER", help="where the record and the calibration plot go (default: nowhere)"
    )
    _add_device(doctor)
    return top


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) > 2**53:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 2**53")
    return int(text)


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("names no folder")
    return Path(text)


def _add_variants(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--variants", action="append", default=[], metavar="FILE", help="a Python file with more variants; repeatable"
    )


def _add_device(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: a GPU where there is one"
    )


def _add_sweep_options(command: argparse.ArgumentParser, config_required: bool) -> None:
    command.add_argument(
        "config", metavar="CONFIG", nargs=None if config_required else "?", help="a YAML file, see configs/"
    )
    cells = "cells to keep, 'decode_flatten/triton*', or to leave out, '!*/compiled*'; repeatable"
    command.add_argument("--only", action="append", default=[], metavar="GLOB", help=cells)
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an axis in every grid, or a key: measure.seed=1",
    )
    command.add_argument(
        "--seed", type=_seed, metavar="N", help="of the random inputs (default: a fresh one, recorded)"
    )
    _add_variants(command)
    _add_device(command)


def main(arguments: list[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    before = sys.stdout, sys.stderr
    try:
        from harness.cli import streams

        streams.prepare()
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    except KeyboardInterrupt:
        from harness.exit_codes import INTERRUPTED

        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if error.filename == streams.NAME:  # e.g. `> /full/disk`
            sys.stdout.drop()
            print(f"error: cannot write to {streams.NAME}: {error.strerror}", file=sys.stderr)
        else:  # a path at which nobody may even look, or one that is too long; other files are the commands' own affair
            print(f"error: {error.filename} cannot be used: {error.strerror}", file=sys.stderr)
        return 2
    finally:
        sys.stdout, sys.stderr = before


def _run(arguments: list[str]) -> int:
    if arguments and arguments[0] not in COMMANDS and arguments[0] not in ("-h", "--help"):
        near = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
        if near and not Path(arguments[0]).exists():
            print(f"error: no command and no file {arguments[0]!r}; did you mean {near[0]}?", file=sys.stderr)
            return 2
        arguments.insert(0, "run")
    options = parser().parse_args(arguments)
    from harness.runner.interrupt import leave_on_ctrl_c

    with leave_on_ctrl_c():
        from harness.cli import commands
    return commands.execute(options)


if __name__ == "__main__":
    sys.exit(main())
