"""`bench.py run`: plan each configuration, choose what measures it, and record it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from msgspec import structs
from rich.text import Text

from spec_decode_bench.cli.run_report import load_plots, report
from spec_decode_bench.harness.analysis.cache_states import HOT
from spec_decode_bench.harness.command.planning import (
    cuda_sources,
    load_config,
    make_job,
    operators_of,
    plan_items,
    point_command,
    prepare,
    print_broken,
    tasks_of,
)
from spec_decode_bench.harness.command.recording import Plan, record
from spec_decode_bench.harness.config.load import ConfigError, LoadedConfig
from spec_decode_bench.harness.config.sweep import parse_shard, shard_of
from spec_decode_bench.harness.config.work_items import Planned, keys_of
from spec_decode_bench.harness.discover import Catalog
from spec_decode_bench.harness.exit_codes import INTERRUPTED, OK
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.printable import printable
from spec_decode_bench.harness.records.file import is_empty_record, read_run, record_path
from spec_decode_bench.harness.records.schema import Run
from spec_decode_bench.harness.report.console import make_console, print_to_stderr, saying
from spec_decode_bench.harness.session.resume import check_same_sweep
from spec_decode_bench.harness.session.session import Session
from spec_decode_bench.harness.session.sources import source_hashes
from spec_decode_bench.harness.session.worker import Worker


def run(options: argparse.Namespace) -> int:
    """One configuration after the other, each planned before the first begins; the first exit code that is not 0."""
    if options.watch:
        from spec_decode_bench.cli.watch import watch

        return watch(options, _watched(options))
    resumed = _resumed(options)
    sources = [load_config(options, config) for config in options.configs]
    _check_several(options, sources)
    shared = any(flag is not None for flag in (options.gpus, options.cluster, options.accelerators))
    if not options.plan and shared:
        from spec_decode_bench.cli.several_gpus import check_sharing, measure_shared

        check_sharing(options, any(source.section for source in sources))
    device, catalog = prepare(options, sources)
    if options.hold and not sys.stdin.readline():  # the one who would have said so is gone
        raise KeyboardInterrupt
    began = time.monotonic() if options.hold else options.began
    if not options.plan:
        print_broken(catalog)
    with saying("planning"):
        plans = [replace(_planned(options, source, resumed, device, catalog), began=began) for source in sources]
    if options.plan:
        for plan in plans:
            _print_plan(plan)
        return OK

    def measure(plan: Plan) -> int:
        if len(plans) > 1:
            make_console().rule(Text(plan.source.config.name))
            plan = replace(plan, began=began if plan is plans[0] else time.monotonic())
        return measure_shared(options, plan) if shared else record(make_console(), plan, Session(plan.job, Worker))

    return in_turn(map(measure, plans))


def _watched(options: argparse.Namespace) -> LoadedConfig:
    """The configuration of --watch. Raises ConfigError where it cannot be combined with the rest."""
    flags = ("plan", "resume", "trust", "shard", "gpus", "cluster", "accelerators", "brief", "until_wrong", "hold")
    if flag := next((name for name in flags if getattr(options, name)), None):
        raise ConfigError(f"--watch and --{flag.replace('_', '-')} exclude each other")
    if len(options.configs) > 1:
        raise ConfigError("--watch takes one configuration")
    source = load_config(options, options.configs[0])
    if source.section:
        raise ConfigError("--watch measures the points of a sweep; choose a configuration with sweep:")
    return source


def in_turn(codes: Iterable[int]) -> int:
    """The first exit code that is not 0, of runs that are measured while they are iterated over; none begins after an
    interrupted one.
    """
    first = OK
    for code in codes:
        first = first or code
        if code == INTERRUPTED:
            break
    return first


# --- planning ---------------------------------------------------------------------------------------------------------


def _resumed(options: argparse.Namespace) -> Run | None:
    """The record of --resume."""
    if options.resume is None:
        return None
    path = record_path(options.resume)
    if options.out is not None and options.out.resolve() != path.parent.resolve():
        raise ConfigError(f"--resume completes {path}, where it is; leave --out {options.out} away")
    if path.is_file() and is_empty_record(path):  # killed while it started, so this run is the first one
        options.out = path.parent
        return None
    return read_run(path)


def _without_gpu(
    options: argparse.Namespace, source: LoadedConfig, catalog: Catalog
) -> tuple[list[Planned], LoadedConfig]:
    """What a CPU runs of a room's section. It is planned in full before, so that a mistake is found without a GPU."""
    source.section.plan(source, catalog, ())
    small = source.section.without_gpu(source)
    try:
        return plan_items(options, small, catalog), small
    except ConfigError:
        plan_items(options, source, catalog)  # says what --only does not match
        raise ConfigError(
            f"a CPU runs a miniature of {source.path}, in which --only {' '.join(options.only)} matches no "
            f"{source.section.noun}; choose keys of its --plan, or names in them"
        ) from None


def _check_several(options: argparse.Namespace, sources: Sequence[LoadedConfig]) -> None:
    """Raises ConfigError where several configurations cannot be combined with the rest."""
    names = [source.config.name for source in sources]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"two configurations are named {twice!r}; each gets a folder of its name")
    flags = ("resume", "hold")
    if len(sources) > 1 and (flag := next((name for name in flags if getattr(options, name)), None)):
        raise ConfigError(f"--{flag.replace('_', '-')} takes one configuration; run the others by themselves")


def _planned(
    options: argparse.Namespace, source: LoadedConfig, resumed: Run | None, device: str, catalog: Catalog
) -> Plan:
    """Raises ConfigError, DiscoveryError and RecordError."""
    out = options.out
    if out is not None and len(options.configs) > 1:
        out = out / source.config.name
    asked = source.config.measure
    if device == "cpu":  # where no state is prepared, and the record must say what was timed
        measure = structs.replace(asked, cache=HOT.name)
        source = replace(source, config=structs.replace(source.config, measure=measure))
    section = source.section
    if section and options.shard is not None:
        raise ConfigError(f"--shard cuts sweeps; choose {section.noun}s with --only, or --set {section.key}.KEY=VALUE")
    if section and options.trust is not None:
        raise ConfigError(f"--trust believes what passed in a sweep; a {section.noun} verifies what it runs itself")
    if section and device == "cpu":
        items, source = _without_gpu(options, source, catalog)
    else:
        items = plan_items(options, source, catalog)
    if options.shard is not None:
        items = shard_of(items, *parse_shard(options.shard))
    if resumed:
        check_same_sweep(resumed, source.recorded, keys_of(items))
    if options.shard is not None and not (resumed or options.plan) and source.config.measure.seed is None:
        raise ConfigError(
            f"--shard {options.shard}: shards with different inputs cannot be merged; give each the same --seed N"
        )
    tasks = tasks_of(source, items, catalog)
    job = make_job(options, source.config.measure, device, timed=True)
    job = replace(job, brief=options.brief, operators=operators_of([source]))
    if resumed:
        job = replace(job, seed=resumed.header.seed)
    elif not section:
        job = replace(job, compiled=cuda_sources(catalog.variants_of(items)))
    hashes = source_hashes(tasks, catalog, job.variant_files)
    if asked.cache != source.config.measure.cache and not options.plan:
        print_to_stderr(
            f"note: measure.cache={asked.cache} is a state of a GPU's L2; on a CPU calls are timed with a hot cache, "
            f"and the record says measure.cache={HOT.name}"
        )
    return Plan(
        source,
        job,
        catalog,
        items,
        tasks,
        hashes,
        point_command(options, source.path),
        out,
        partial(report, no_plots=options.no_plots),
        (lambda: None) if options.no_plots else load_plots,
        options.shard,
        resumed,
        None if options.trust is None else read_run(record_path(options.trust)),
        options.until_wrong,
    )


def _print_plan(plan: Plan) -> None:
    """Every cell, one key per line, for people and for grep; the count goes to stderr."""
    keys = keys_of(plan.missing)
    for key in keys:
        print(printable(key))
    section = plan.source.section
    group, cell = (section.noun, "line") if section else ("point", "cell")
    size = ", the miniature for a CPU" if section and plan.job.device == "cpu" else ""
    print(f"{counted(len(plan.missing), group)}, {counted(len(keys), cell)}{size}", file=sys.stderr)
