"""`bench.py verify`: check variants on many more points."""

from __future__ import annotations

import argparse

from spec_decode_bench.harness.command import flags
from spec_decode_bench.harness.command.handling import loading, start_workers_early

NAME = "verify"
HELP = "check variants on many more points; nothing is timed"
EXAMPLES = ("verify configs/mtp3.yaml", "verify --variants my_kernel.py", "verify --defects")


def add(parser: argparse.ArgumentParser) -> None:
    flags.add_config(parser, nargs="?")
    flags.add_sweep(parser)
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument(
        "--defects",
        action="store_true",
        help="only the historic defects, of CONFIG's operators or of all, each with the check that rejects it",
    )
    alone.add_argument(
        "--consumers",
        action="store_true",
        help="only run the engines' attention kernels on every variant's tables, and compare their results",
    )
    parser.add_argument("--no-array", action="store_true", help="leave out the covering array")
    alone.add_argument("--point", metavar="KEY", help="one variant at one point, as verify or --plan prints it")
    flags.add_out(parser, "write a record there, a line for each variant and place (default: none)")


def run(options: argparse.Namespace) -> int:
    start_workers_early(options.device)
    with loading():
        from dataclasses import replace

        from spec_decode_bench.cli.one_point import parse_key, verify_point
        from spec_decode_bench.cli.verification import (
            defects_of,
            of_files,
            verify_all,
            verify_consumers,
            verify_defects,
        )
        from spec_decode_bench.cli.verify_record import record
        from spec_decode_bench.harness.command.planning import (
            cuda_sources,
            load_config,
            make_job,
            operators_of,
            plan_tasks,
            point_command,
            prepare,
            print_broken,
        )
        from spec_decode_bench.harness.config.load import ConfigError, Measure
        from spec_decode_bench.harness.report.console import make_console

    if options.config is None:
        if options.consumers or not (options.point or options.defects or options.variants):
            raise ConfigError(
                "verify needs a configuration, such as `verify configs/mtp3.yaml`; without one it verifies the "
                "variants of a file, --variants my_kernel.py, --defects, or --point KEY"
            )
        if options.only or options.set:
            raise ConfigError("--only and --set choose points of a sweep; give its configuration, too")
    if options.consumers and options.out is not None:
        raise ConfigError("--consumers writes no record; leave out --out")
    source = load_config(options, options.config) if options.config is not None else None
    measure = source.config.measure if source else Measure(seed=options.seed)
    chosen = [source] if source and options.point is None else []  # a point may be one of any operator
    device, catalog = prepare(options, chosen)
    items = plan_tasks(options, source, catalog) if source else []
    print_broken(catalog)
    console = make_console()
    job = replace(make_job(options, measure, device, timed=False), operators=operators_of(chosen))
    if options.consumers:
        return verify_consumers(console, job, catalog, items)
    if options.point is not None:
        item = parse_key(options.point, catalog, items)
        with record(options.out, job, catalog, source, items, [catalog.find(item.operator, item.variants[0])]) as lines:
            return verify_point(console, job, catalog, lines, item)
    if options.defects:
        defects = defects_of(catalog, {item.operator for item in items} or set(catalog.operators))
        with record(options.out, job, catalog, source, items, defects) as lines:
            return verify_defects(console, job, catalog, lines, defects)
    if source is None:
        variants = [variant for variant in of_files(catalog, options.variants) if variant.defect is None]
        defects = [variant for variant in of_files(catalog, options.variants) if variant.defect is not None]
    else:
        variants = catalog.variants_of(items)
        # Who names variants asks about these alone.
        defects = [] if options.only else defects_of(catalog, {item.operator for item in items})
    job = replace(job, compiled=cuda_sources(variants))
    arrays, command = not options.no_array, point_command(options, source and source.path)
    with record(options.out, job, catalog, source, items, [*variants, *defects]) as lines:
        return verify_all(console, job, catalog, lines, items, variants, defects, arrays, command)
