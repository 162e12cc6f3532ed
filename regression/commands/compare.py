"""`bench.py compare`: two sides of records."""

from __future__ import annotations

import argparse

from spec_decode_bench.harness.command import flags
from spec_decode_bench.harness.command.handling import loading
from spec_decode_bench.regression.commands.rule_flags import add_rule

NAME = "compare"
HELP = "faster or slower? two revisions, or two variants, from records"
EXAMPLES = ("compare base/ head/", "compare results/mine --variants mine cuda_fused")


def add(parser: argparse.ArgumentParser) -> None:
    side = "a record (run.jsonl), the folder of a run, or a folder of several: one for each process"
    parser.add_argument("base", metavar="BASE", help=f"the older revision: {side}")
    other = parser.add_mutually_exclusive_group(required=True)
    other.add_argument("head", metavar="HEAD", nargs="?", help="the newer revision, likewise")
    other.add_argument(
        "--variants", nargs=2, metavar=("A", "B"), help="is variant A slower than B in the records of BASE?"
    )
    add_rule(parser)
    flags.add_only(parser)
    parser.add_argument(
        "--any-config", action="store_true", help="allow different configurations; compare the cells that both have"
    )
    parser.add_argument(
        "--unchanged",
        action="append",
        default=[],
        metavar="GLOB",
        help="cells whose code is the same on both sides: they show whether the machine was steady, and decide nothing",
    )
    parser.add_argument("--html", action="store_true", help="write comparison.html: the terminal's text and the plot")
    parser.add_argument("--json", action="store_true", help="write comparison.json")
    parser.add_argument(
        "--sort", choices=("change", "name", "time"), default="change", help="order of cells with the same verdict"
    )
    flags.add_out(parser, "where comparison.md and the plot go (default: beside HEAD)")


def run(options: argparse.Namespace) -> int:
    with loading():
        from dataclasses import replace
        from pathlib import Path

        from spec_decode_bench.harness.command.planning import writing_to
        from spec_decode_bench.harness.config.load import ConfigError
        from spec_decode_bench.harness.records.differences import check_sweeps
        from spec_decode_bench.harness.records.select import read_side
        from spec_decode_bench.harness.report.console import make_console, saying
        from spec_decode_bench.regression.comparing import publish, rule_of
        from spec_decode_bench.regression.comparison import compare, compare_variants, identity

    rule = replace(rule_of(options), any_config=options.any_config, unchanged=tuple(options.unchanged))
    with saying("reading the records"):
        base, head = read_side(options.base), read_side(options.head) if options.head is not None else ()
    check_sweeps([*base, *head], "compare")
    of_base = {identity(run) for run in base}
    if copy := next((run for run in head if identity(run) in of_base), None):
        raise ConfigError(
            f"{copy.path}, or a copy of it, is on both sides; compare two revisions, or two variants of one record "
            "with --variants A B"
        )
    with saying("comparing the records"):
        if options.variants:
            first, second = options.variants
            comparison = compare_variants(base, first, second, rule)
        else:
            comparison = compare(base, head, rule)
    newest = Path(options.head or options.base)
    folder = options.out or (newest if newest.is_dir() else newest.parent)
    with writing_to(folder):
        return publish(make_console(), comparison, folder, options.html, options.json, options.sort)
