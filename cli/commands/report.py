"""`bench.py report`: GPU models side by side."""

from __future__ import annotations

import argparse
from pathlib import Path

from spec_decode_bench.harness.command import flags
from spec_decode_bench.harness.command.handling import loading

NAME = "report"
HELP = "GPU models side by side: a column and a panel for each"
EXAMPLES = ("report h200/full.jsonl h100/full.jsonl",)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", metavar="RECORD", help="records (run.jsonl) or folders of them, of several GPU models"
    )
    parser.add_argument(
        "--metric",
        choices=("gpu_us", "host_us", "eager_us"),
        default="gpu_us",
        help="the metric to show (default gpu_us)",
    )
    flags.add_only(parser)
    flags.add_by(parser)
    flags.add_out(parser, "where report.md and plots go (default: results/report)", default=Path("results/report"))
    flags.add_no_plots(parser)


def run(options: argparse.Namespace) -> int:
    with loading():
        from rich.text import Text

        from spec_decode_bench.harness.analysis.across_gpus import across_gpus
        from spec_decode_bench.harness.command.planning import writing_to
        from spec_decode_bench.harness.command.reading import chosen_runs
        from spec_decode_bench.harness.exit_codes import OK
        from spec_decode_bench.harness.records.differences import check_sweeps
        from spec_decode_bench.harness.report.across_gpus import operator_tables, summary_table
        from spec_decode_bench.harness.report.console import make_console, print_tables
        from spec_decode_bench.harness.report.table import markdown
        from spec_decode_bench.harness.wording import counted
        from spec_decode_bench.plots import draw_all

    runs = chosen_runs(options.runs, options.only)
    check_sweeps(runs, "report")
    across = across_gpus(runs, options.metric)
    console, summary = make_console(), summary_table(across)
    print_tables(console, [summary])
    with writing_to(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / "report.md"
        path.write_text(markdown([summary, *operator_tables(across)]), encoding="utf-8")
        drawn = [] if options.no_plots else draw_all(runs, options.out, options.by)
    plots = counted(len({path.stem for path in drawn}), "plot")
    console.print(Text(f"\nevery cell: {path}; {plots} beside it", style="dim"))
    return OK
