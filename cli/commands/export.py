"""`bench.py export`: records as CSV."""

from __future__ import annotations

import argparse
from pathlib import Path

from spec_decode_bench.harness.command.handling import loading

NAME = "export"
HELP = "CSV for pandas: a row per metric and cell"
EXAMPLES = ("export results/mtp3 > cells.csv",)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="records, folders of runs, or folders of several records"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the table goes (default: stdout)")


def run(options: argparse.Namespace) -> int:
    with loading():
        import sys

        from spec_decode_bench.harness.command.planning import writing_to
        from spec_decode_bench.harness.command.reading import chosen_runs
        from spec_decode_bench.harness.errors import UsageError
        from spec_decode_bench.harness.exit_codes import OK
        from spec_decode_bench.harness.records.differences import check_sweeps
        from spec_decode_bench.harness.report.export import table, write_csv

    runs = chosen_runs(options.runs)
    check_sweeps(runs, "export")
    columns = table(runs)
    if options.out is None:
        write_csv(columns, sys.stdout)
        return OK
    with writing_to(options.out):
        if options.out.is_file() and options.out.read_bytes()[:1] == b"{":
            raise UsageError(f"{options.out} is a record or another JSON file, which --out does not overwrite")
        with open(options.out, "w", encoding="utf-8", newline="") as file:
            write_csv(columns, file)
    return OK
