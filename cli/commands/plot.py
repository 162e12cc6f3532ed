"""`bench.py plot`: draw records, and what rooms draw beside them."""

from __future__ import annotations

import argparse
from pathlib import Path

from spec_decode_bench.harness import registry
from spec_decode_bench.harness.command import flags
from spec_decode_bench.harness.command.handling import loading

NAME = "plot"
HELP = "draw all plots of records"
EXAMPLES = ("plot results/mtp3",)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="records (run.jsonl), folders of one or several, profiles (profile.json)"
    )
    flags.add_baseline(parser)
    flags.add_only(parser)
    flags.add_by(parser)
    flags.add_out(parser, "where the plots go (default: results/plots)", default=Path("results/plots"))


def run(options: argparse.Namespace) -> int:
    with loading():
        import sys

        from spec_decode_bench.harness.command.planning import writing_to
        from spec_decode_bench.harness.command.reading import chosen_runs
        from spec_decode_bench.harness.exit_codes import OK
        from spec_decode_bench.harness.printable import printable
        from spec_decode_bench.harness.records.differences import check_together, mixed_states
        from spec_decode_bench.harness.records.select import with_baseline
        from spec_decode_bench.harness.report.console import print_to_stderr, saying
        from spec_decode_bench.harness.session.interrupt import exit_on_interrupt
        from spec_decode_bench.plots import draw_all

    drawers = {path: _drawer(Path(path)) for path in options.runs}
    others = [draw for draw in drawers.values() if draw is not None]
    runs = chosen_runs([path for path, draw in drawers.items() if draw is None], options.only)
    if options.baseline is not None:
        runs = with_baseline(runs, options.baseline)
    check_together(runs)
    for sentence in mixed_states(runs):
        print_to_stderr(f"note: {sentence}")
    with saying("drawing"), writing_to(options.out), exit_on_interrupt():  # matplotlib's callbacks swallow exceptions
        drawn = draw_all(runs, options.out, options.by)
        for number, draw in enumerate(others, 1):
            drawn += draw(options.out, str(number) if len(others) > 1 else "")
    for path in drawn:
        print(printable(str(path)))
    if not drawn:
        print("nothing to draw: no cell of these records was timed", file=sys.stderr)
    return OK


def _drawer(path: Path) -> registry.Drawer | None:
    """Of the room that knows this kind of file; None for a record."""
    return next((drawer for find in registry.DRAWERS if (drawer := find(path)) is not None), None)
