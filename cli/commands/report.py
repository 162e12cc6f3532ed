"""`bench.py report`: the tables of a record, or GPU models side by side."""

from __future__ import annotations

import argparse
from pathlib import Path

from spec_decode_bench.harness.command import flags
from spec_decode_bench.harness.command.handling import loading

NAME = "report"
HELP = "the tables of a record; of several, GPU models or decode loops side by side"
EXAMPLES = (
    "report results/mtp3",
    "report h200/full.jsonl h100/full.jsonl",
    "report h200/full.jsonl h200/upstream.jsonl --point 'batch_size=128,context_len=uniform(4096;8192)'",
)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RECORD", help="records (run.jsonl) or folders of them")
    parser.add_argument(
        "--metric",
        choices=("gpu_us", "host_us", "eager_us"),
        help="of several records: the metric that GPUs are compared by (default gpu_us)",
    )
    parser.add_argument(
        "--point",
        metavar="GLOB",
        help="a row for each operator and point that matches, 'batch_size=128,*': the fastest kernel of an engine, the "
        "fastest PyTorch variant, and the fused kernels",
    )
    flags.add_only(parser)
    flags.add_by(parser)
    flags.add_out(parser, "where report.md and plots go (default: results/report)", default=Path("results/report"))
    flags.add_no_plots(parser)


def run(options: argparse.Namespace) -> int:
    with loading():
        from rich.text import Text

        from spec_decode_bench.cli.run_report import print_run
        from spec_decode_bench.harness.analysis.across_gpus import across_gpus
        from spec_decode_bench.harness.analysis.code_changes import code_changes, timed_variants
        from spec_decode_bench.harness.command.planning import writing_to
        from spec_decode_bench.harness.command.reading import chosen_runs
        from spec_decode_bench.harness.errors import UsageError
        from spec_decode_bench.harness.exit_codes import OK
        from spec_decode_bench.harness.numbers import counted
        from spec_decode_bench.harness.records.differences import check_sweeps
        from spec_decode_bench.harness.registry import section_of
        from spec_decode_bench.harness.report.across_gpus import operator_tables, summary_table
        from spec_decode_bench.harness.report.console import make_console, print_tables
        from spec_decode_bench.harness.report.overview import overview_table, rows_at
        from spec_decode_bench.harness.report.table import markdown
        from spec_decode_bench.plots import draw_all

    runs = chosen_runs(options.runs, options.only)
    if options.metric and (options.point is not None or len(runs) == 1):
        raise UsageError("--metric is for comparing records; give two or more, without --point")
    console = make_console()
    if options.point is not None:
        check_sweeps(runs, "report --point")
        print_tables(console, tables := [overview_table(rows_at(runs, options.point))])
    elif len(runs) == 1:
        tables = print_run(console, runs[0])
    elif (section := section_of(runs[0])) and all(section_of(run) is section for run in runs):
        tables = section.show(console, runs)
    else:
        check_sweeps(runs, "report of several records")
        across = across_gpus(runs, options.metric or "gpu_us")
        tables = [summary_table(across), *operator_tables(across)]
        print_tables(console, tables[:1])
    for sentence in code_changes(one for run in runs for one in timed_variants(run)):
        console.print(Text(sentence, style="dim"))
    with writing_to(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / "report.md"
        path.write_text(markdown(tables), encoding="utf-8")
        drawn = [] if options.no_plots else draw_all(runs, options.out, options.by)
    plots = counted(len({path.stem for path in drawn}), "plot")
    console.print(Text(f"\nevery cell: {path}; {plots} beside it", style="dim"))
    return OK
