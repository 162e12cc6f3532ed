"""`bench.py doctor`: does the timer read known times on this machine?"""

from __future__ import annotations

import argparse

from spec_decode_bench.harness.command import flags
from spec_decode_bench.harness.command.handling import loading

NAME = "doctor"
HELP = "is this GPU fit to measure? calibrates the timer and looks for profilers"
EXAMPLES = ("doctor",)


def add(parser: argparse.ArgumentParser) -> None:
    flags.add_out(parser, "where the record and the calibration plot go (default: not written)")
    flags.add_device(parser)


def run(options: argparse.Namespace) -> int:
    with loading():
        from spec_decode_bench.cli.doctor import examine
        from spec_decode_bench.harness.command.planning import device_of
        from spec_decode_bench.harness.exit_codes import BAD, OK
        from spec_decode_bench.harness.report.console import make_console

    return OK if examine(make_console(), device_of(options), options.out) else BAD
