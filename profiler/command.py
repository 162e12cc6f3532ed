"""`bench.py profile`: cells under a profiler."""

from __future__ import annotations

import argparse
from pathlib import Path

from spec_decode_bench.harness.command import flags
from spec_decode_bench.harness.command.handling import loading

NAME = "profile"
HELP = "kernels, gaps and API calls of each cell, under a profiler"
EXAMPLES = ("profile configs/smoke.yaml --tool nsys",)


def add(parser: argparse.ArgumentParser) -> None:
    flags.add_config(parser)
    flags.add_sweep(parser)
    parser.add_argument(
        "--tool",
        choices=("nsys", "ncu", "torch", "none"),
        help="Nsight Systems, Nsight Compute, or torch.profiler (default); none: only run the cells, for a profiler "
        "that starts this command",
    )
    parser.add_argument(
        "--calls",
        type=flags.whole(1, 1000, "1 to 1000"),
        metavar="N",
        help="calls of each cell in each phase (default 10; ncu: 1)",
    )
    parser.add_argument(
        "--phase",
        action="append",
        choices=("eager", "graph"),
        help="eager calls, or replays of a graph of one call; repeatable (default both; ncu: eager)",
    )
    parser.add_argument(
        "--attribute", type=Path, metavar="REPORT", help="attribute a report from elsewhere to cells; runs nothing"
    )
    parser.add_argument("--record", metavar="RUN", help="a measured run of these cells, to show its times, too")
    parser.add_argument("--nsys", metavar="PATH", help="where nsys is, if not in PATH or NVIDIA's folders")
    parser.add_argument("--ncu", metavar="PATH", help="where ncu is, likewise")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="with --tool none: write torch.profiler's trace to FILE"
    )
    flags.add_out(parser, "where report, tables and timeline go (default: results/profile-NAME-TOOL-TIME)")
    flags.add_no_plots(parser)


def run(options: argparse.Namespace) -> int:
    with loading():
        from spec_decode_bench.harness.command.planning import (
            load_config,
            plan_tasks,
            prepare,
            print_broken,
            seed_of,
            writing_to,
        )
        from spec_decode_bench.harness.config.load import ConfigError
        from spec_decode_bench.harness.config.work_items import keys_of
        from spec_decode_bench.harness.exit_codes import BAD
        from spec_decode_bench.harness.records.file import read_run, record_path
        from spec_decode_bench.harness.report.console import make_console, print_to_stderr
        from spec_decode_bench.profiler import profile as profiling

    source = load_config(options, options.config)
    if source.section is not None:
        raise ConfigError(
            f"{options.config}: profile takes sweeps; docs/profiling.md has the command for a decode loop"
        )
    tool = profiling.tool_of(options.attribute) if options.attribute else options.tool or "torch"
    if options.trace is not None and tool != "none":
        raise ConfigError("--trace goes with --tool none; --tool torch writes its trace into --out")
    device, catalog = prepare(options, [source])
    items = plan_tasks(options, source, catalog)
    record = read_run(record_path(options.record)) if options.record else None
    if record is not None:
        profiling.check_record(record, keys_of(items))
    print_broken(catalog)
    seed = seed_of(source.config.measure)
    request = profiling.request_of(options, source.config.name, items, catalog, device, seed, tool)
    try:
        with writing_to(request.out):
            if options.attribute is not None:
                return profiling.attribute_report(make_console(), request, options.attribute, record)
            if tool == "none":
                return profiling.run_workload(make_console(), request, options.trace)
            return profiling.make_profile(make_console(), request, record)
    except profiling.ToolFailed as error:
        print_to_stderr(f"error: {error}")
        return BAD
