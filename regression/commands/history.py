"""`bench.py history`: times over commits."""

from __future__ import annotations

import argparse
from pathlib import Path

from spec_decode_bench.harness.command import flags
from spec_decode_bench.harness.command.handling import loading

NAME = "history"
HELP = "where times changed over many commits"
EXAMPLES = ("history results/nightly --only '*_fused'",)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", metavar="RECORD", help="records, folders of runs, or folders of several records"
    )
    parser.add_argument("--metric", metavar="NAME", help="gpu_us (default on a GPU), host_us, eager_us or cpu_us")
    parser.add_argument(
        "--threshold", type=float, default=0.02, metavar="SHARE", help="relative change that matters (default 0.02)"
    )
    flags.add_only(parser)
    flags.add_out(
        parser, "where history.md and the plot go (default: results/history)", default=Path("results/history")
    )


def run(options: argparse.Namespace) -> int:
    with loading():
        from rich.text import Text

        from spec_decode_bench.harness.command.planning import writing_to
        from spec_decode_bench.harness.command.reading import chosen_runs
        from spec_decode_bench.harness.exit_codes import OK
        from spec_decode_bench.harness.records.differences import check_sweeps
        from spec_decode_bench.harness.report.console import make_console
        from spec_decode_bench.regression.history import history
        from spec_decode_bench.regression.history_report import history_console, history_markdown
        from spec_decode_bench.regression.plots.history import draw

    runs = chosen_runs(options.runs, options.only)
    check_sweeps(runs, "history")
    history_of_runs = history(runs, options.metric, options.threshold)
    with writing_to(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
        drawn = draw(history_of_runs, options.out / "history")
        text = history_markdown(history_of_runs, drawn[0].name)
        (options.out / "history.md").write_text(text, encoding="utf-8")
    console = make_console()
    history_console(history_of_runs, console)
    console.print(Text(f"written: {', '.join(str(path) for path in [options.out / 'history.md', *drawn])}"))
    return OK
