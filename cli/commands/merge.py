"""`bench.py merge`: join shards."""

from __future__ import annotations

import argparse

from spec_decode_bench.harness.command import flags
from spec_decode_bench.harness.command.handling import loading

NAME = "merge"
HELP = "join the shards of a sweep into one run"
EXAMPLES = ("merge a/ b/ --out all/",)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="records (run.jsonl) or folders of the shards")
    flags.add_out(parser, "where the merged record, its table and plots go", required=True)
    flags.add_no_plots(parser)


def run(options: argparse.Namespace) -> int:
    with loading():
        import shlex

        from msgspec import structs

        from spec_decode_bench.cli.run_report import report
        from spec_decode_bench.harness.analysis.warnings import abbreviated
        from spec_decode_bench.harness.command.planning import writing_to
        from spec_decode_bench.harness.command.verdict import exit_code
        from spec_decode_bench.harness.numbers import counted
        from spec_decode_bench.harness.records.file import read_run, record_path, write_run
        from spec_decode_bench.harness.records.merge import merge, missing_shards
        from spec_decode_bench.harness.report.console import make_console, warn
        from spec_decode_bench.harness.report.table import refuse_foreign_table

    runs = [read_run(record_path(path)) for path in options.runs]
    path = options.out / "run.jsonl"
    merged = structs.replace(merge(runs), path=str(path))
    refuse_foreign_table(options.out)
    write_run(merged, path)
    with writing_to(options.out):
        report(make_console(), merged, options.out, no_plots=options.no_plots)
    if missing := missing_shards(runs):
        named = ", ".join(abbreviated(missing))
        shards, are, they_are = ("shard", "is", "it is") if len(missing) == 1 else ("shards", "are", "they are")
        warn(f"{shards} {named} {are} missing; when {they_are} complete, merge again into another folder")
    if lost := len(merged.missing):
        verb = "is" if lost == 1 else "are"
        warn(
            f"{counted(lost, 'planned cell')} {verb} in none of the shards; complete the run with --resume "
            f"{shlex.quote(str(path))}"
        )
    return exit_code(merged)
