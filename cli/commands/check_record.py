"""`bench.py check-record`: may a record be committed?"""

from __future__ import annotations

import argparse

from spec_decode_bench.harness.command.handling import loading

NAME = "check-record"
HELP = "is this record fit to be committed?"
EXAMPLES = ("check-record results/mtp3",)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="FILE", help="a record (run.jsonl) or the folder of a run")


def run(options: argparse.Namespace) -> int:
    with loading():
        from rich.text import Text

        from spec_decode_bench.harness.analysis.record_check import problems
        from spec_decode_bench.harness.exit_codes import BAD, OK
        from spec_decode_bench.harness.numbers import counted
        from spec_decode_bench.harness.records.file import read_run, record_path
        from spec_decode_bench.harness.report.console import make_console, print_to_stderr

    record, console = read_run(record_path(options.run)), make_console()
    outcomes = problems(record)
    environment = record.header.environment
    console.print(Text(f"{record.path}: {record.header.name} on {environment.gpu or environment.processor}"))
    for name, problem in outcomes.items():
        console.print(Text(f"  {name}: {problem or 'yes'}", style="red" if problem else "green"), soft_wrap=True)
    if wrong := sum(problem is not None for problem in outcomes.values()):
        print_to_stderr(f"{counted(wrong, 'reason')} not to commit this record; see docs/contribute-a-record.md")
        return BAD
    return OK
