"""What each command of bench.py does. The command line itself, with all flags, is bench.py."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from msgspec import structs
from rich.text import Text

from spec_decode_bench.harness.analysis.warnings import abbreviated
from spec_decode_bench.harness.command.planning import (
    cuda_sources,
    device_of,
    load_config,
    make_job,
    plan_cells,
    point_command,
    prepare,
    print_broken,
    seed_of,
    writing_to,
)
from spec_decode_bench.harness.config.load import ConfigError, Measure
from spec_decode_bench.harness.config.work_items import keys_of
from spec_decode_bench.harness.discover import DiscoveryError
from spec_decode_bench.harness.exit_codes import BAD, INTERRUPTED, OK, USAGE
from spec_decode_bench.harness.records.differences import check_together, mixed_states, refuse_loops
from spec_decode_bench.harness.records.file import read_run, record_path, write_run
from spec_decode_bench.harness.records.merge import merge, missing_shards
from spec_decode_bench.harness.records.schema import RecordError, Run
from spec_decode_bench.harness.records.select import chosen, read_side, with_baseline
from spec_decode_bench.harness.report.console import make_console, print_to_stderr, warn
from spec_decode_bench.harness.session.interrupt import exit_on_interrupt
from spec_decode_bench.harness.session.worker import RunError
from spec_decode_bench.harness.wording import counted, did_you_mean, printable
from spec_decode_bench.profiler.records import PROFILE, Profile, read_document
from spec_decode_bench.regression.comparison import CompareError, compare, compare_variants, identity


def execute(runs: str, options: argparse.Namespace) -> int:
    """Run a command, ``module:function`` of this folder. An expected error is one sentence on stderr, exit code 2."""
    module, _, function = runs.partition(":")
    command = getattr(import_module(f"spec_decode_bench.cli.{module}"), function)
    try:
        return command(options)
    except (ConfigError, DiscoveryError, RecordError, RunError, CompareError) as error:
        print_to_stderr(f"error: {error}")
        return USAGE


def verify_command(options: argparse.Namespace) -> int:
    from spec_decode_bench.cli.one_point import parse_key, verify_point
    from spec_decode_bench.cli.verification import defects_of, verify_all, verify_consumers, verify_defects

    if options.config is None:
        if not options.defects:
            raise ConfigError(
                "verify needs a configuration, such as `verify configs/mtp3.yaml`; only verify --defects "
                "works without one"
            )
        if options.only or options.set:
            raise ConfigError("--only and --set choose points of a sweep; give its configuration, too")
    source = load_config(options, options.config) if options.config is not None else None
    measure = source.config.measure if source else Measure(seed=options.seed)
    device, catalog = prepare(options, measure.timeout_s)
    items = plan_cells(options, source, catalog) if source else []
    print_broken(catalog)
    console, job = make_console(), make_job(options, measure, device, timed=False)
    if options.defects:
        operators = {item.operator for item in items} or set(catalog.operators)
        bad = verify_defects(console, job, catalog, defects_of(catalog, operators))
    elif options.consumers:
        bad = verify_consumers(console, job, catalog, items)
    elif options.point is not None:
        bad = verify_point(console, job, catalog, parse_key(options.point, catalog, items))
    else:
        job = replace(job, compiled=cuda_sources(items, catalog))
        command = point_command(options, source)
        # Who names variants asks about these alone.
        defects = [] if options.only else defects_of(catalog, {item.operator for item in items})
        bad = verify_all(console, job, catalog, items, defects, not options.no_array, options.random, command)
    return BAD if bad else OK


def compare_command(options: argparse.Namespace) -> int:
    from spec_decode_bench.regression.comparing import publish, rule_of

    rule = replace(rule_of(options), any_config=options.any_config, controls=tuple(options.control))
    base, head = read_side(options.base), read_side(options.head) if options.head is not None else ()
    refuse_loops([*base, *head], "compare")
    of_base = {identity(run) for run in base}
    if copy := next((run for run in head if identity(run) in of_base), None):
        raise ConfigError(
            f"{copy.path} is on both sides; compare two revisions, or two variants of one record with --variants A B"
        )
    if options.variants:
        comparison = compare_variants(base, *options.variants, rule)
    else:
        comparison = compare(base, head, rule)
    newest = Path(options.head or options.base)
    folder = options.out or (newest if newest.is_dir() else newest.parent)
    with writing_to(folder):
        return publish(make_console(), comparison, folder, options.html, options.json, options.sort)


def gate_command(options: argparse.Namespace) -> int:
    from spec_decode_bench.regression.comparing import publish
    from spec_decode_bench.regression.gate import begin, resume, resume_command

    console = make_console()
    if options.resume is not None:
        beside = {"command", "config", "resume", "minutes", "began", "default_of"}
        if any(value != options.default_of(name) for name, value in vars(options).items() if name not in beside):
            raise ConfigError("gate --resume FOLDER goes on as it was begun; only --minutes can be given beside it")
        gate = resume(options.resume, console)
    elif options.checkout is not None and options.upstream is None:
        raise ConfigError("--checkout belongs to --upstream PACKAGE, such as --upstream vllm")
    elif options.base is None:
        raise ConfigError("gate needs a revision to compare with, such as --base main")
    else:
        gate = begin(options, load_config(options, options.config), console)
    try:
        if not gate.measure(options.minutes):
            return OK
        comparison = gate.comparison()
    except KeyboardInterrupt:
        kept = f": what is complete is kept in {gate.folder}; continue with {resume_command(gate.folder)}"
        print_to_stderr(f"interrupted{kept if gate.has_begun else ''}")
        return INTERRUPTED
    with writing_to(gate.folder):
        return publish(console, comparison, gate.folder, html=True, json=True)


def merge_command(options: argparse.Namespace) -> int:
    from spec_decode_bench.cli.run_report import report
    from spec_decode_bench.harness.command.table_file import refuse_foreign_table
    from spec_decode_bench.harness.command.verdict import exit_code

    runs = [read_run(record_path(path)) for path in options.runs]
    path = options.out / "run.jsonl"
    merged = structs.replace(merge(runs), path=str(path))
    refuse_foreign_table(options.out)
    write_run(merged, path)
    with writing_to(options.out):
        report(make_console(), merged, options.out, options.no_plots)
    warnings = []
    if missing := missing_shards(runs):
        named = ", ".join(abbreviated(missing))
        shards, are, they_are = ("shard", "is", "it is") if len(missing) == 1 else ("shards", "are", "they are")
        warnings.append(f"{shards} {named} {are} missing; when {they_are} complete, merge again into another folder")
    if lost := len(merged.missing):
        verb = "is" if lost == 1 else "are"
        warnings.append(
            f"{counted(lost, 'planned cell')} {verb} in none of the shards; complete the run with --resume "
            f"{shlex.quote(str(path))}"
        )
    for warning in warnings:
        warn(warning)
    return exit_code(merged)


def doctor_command(options: argparse.Namespace) -> int:
    from spec_decode_bench.cli.doctor import examine

    return OK if examine(make_console(), device_of(options), options.out) else BAD


def profile_command(options: argparse.Namespace) -> int:
    from spec_decode_bench.profiler import profile as profiling

    source = load_config(options, options.config)
    if source.config.decode_loop is not None:
        raise ConfigError(
            f"{options.config}: profile takes sweeps; docs/profiling.md has the command for a decode loop"
        )
    tool = profiling.tool_of(options.attribute) if options.attribute else options.tool or "torch"
    if options.trace is not None and tool != "none":
        raise ConfigError("--trace goes with --tool none; --tool torch writes its trace into --out")
    device, catalog = prepare(options, source.config.measure.timeout_s)
    items = plan_cells(options, source, catalog)
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
    except (profiling.ProfileError, profiling.ReportError) as error:
        raise ConfigError(str(error)) from None
    except profiling.ToolFailed as error:
        print_to_stderr(f"error: {error}")
        return BAD


def plot_command(options: argparse.Namespace) -> int:
    from spec_decode_bench.plots import draw_all
    from spec_decode_bench.profiler.plots.step_timeline import draw

    by_path = {path: _profile(path) for path in options.runs}
    profiles = [profile for profile in by_path.values() if profile is not None]
    runs = _chosen_runs([path for path, profile in by_path.items() if profile is None], options.only)
    if options.baseline is not None:
        runs = with_baseline(runs, options.baseline)
    check_together(runs)
    for sentence in mixed_states(runs):
        print_to_stderr(f"note: {sentence}")
    with writing_to(options.out), exit_on_interrupt():  # matplotlib's callbacks swallow exceptions
        drawn = draw_all(runs, options.out, options.by)
        for number, profile in enumerate(profiles, 1):
            drawn += draw(profile, options.out / f"timeline{number if len(profiles) > 1 else ''}")
    for path in drawn:
        print(printable(str(path)))
    if not drawn:
        print("nothing to draw: no cell of these records was timed", file=sys.stderr)
    return OK


def _chosen_runs(paths: Sequence[str], only: Sequence[str]) -> list[Run]:
    runs = [run for path in paths for run in read_side(path)]
    for run in runs:
        if lost := len(run.missing):
            planned = counted(len(run.header.cells), "planned cell")
            warn(f"{run.path} lacks {lost} of {planned}; complete it with --resume {shlex.quote(run.path)}")
    runs = [chosen(run, only) for run in runs]
    if only and not any(run.cells for run in runs):
        raise ConfigError(f"--only {' '.join(only)} matches no cell of these records")
    return runs


def report_command(options: argparse.Namespace) -> int:
    from spec_decode_bench.harness.analysis.across_gpus import across_gpus
    from spec_decode_bench.harness.report.across_gpus import operator_tables, summary_table
    from spec_decode_bench.harness.report.console import print_tables
    from spec_decode_bench.harness.report.table import markdown
    from spec_decode_bench.plots import draw_all

    runs = _chosen_runs(options.runs, options.only)
    refuse_loops(runs, "report")
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


def check_record_command(options: argparse.Namespace) -> int:
    from spec_decode_bench.harness.analysis.record_check import problems

    run, console = read_run(record_path(options.run)), make_console()
    outcomes = problems(run)
    environment = run.header.environment
    console.print(Text(f"{run.path}: {run.header.name} on {environment.gpu or environment.processor}"))
    for name, problem in outcomes.items():
        console.print(Text(f"  {name}: {problem or 'yes'}", style="red" if problem else "green"), soft_wrap=True)
    if wrong := sum(problem is not None for problem in outcomes.values()):
        print_to_stderr(f"{counted(wrong, 'reason')} not to commit this record; see docs/contribute-a-record.md")
        return BAD
    return OK


def export_command(options: argparse.Namespace) -> int:
    from spec_decode_bench.harness.report.export import table, write_csv

    runs = [run for path in options.runs for run in read_side(path)]
    refuse_loops(runs, "export")
    columns = table(runs)
    if options.out is None:
        write_csv(columns, sys.stdout)
        return OK
    with writing_to(options.out), open(options.out, "w", encoding="utf-8", newline="") as file:
        write_csv(columns, file)
    return OK


def history_command(options: argparse.Namespace) -> int:
    from spec_decode_bench.regression.history import history
    from spec_decode_bench.regression.history_report import history_console, history_markdown
    from spec_decode_bench.regression.plots.history import draw

    runs = _chosen_runs(options.runs, options.only)
    refuse_loops(runs, "history")
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


def _profile(path: str) -> Profile | None:
    """A profile.json, or the one in a folder; None where there is none."""
    place = Path(path) / PROFILE if Path(path).is_dir() else Path(path)
    return read_document(place, Profile) if place.name == PROFILE and place.is_file() else None


def list_command(options: argparse.Namespace) -> int:
    from spec_decode_bench.harness.report.listing import listed_console, listed_json, listed_operator

    device, catalog = prepare(options)
    name = options.operator
    if name is not None and name not in catalog.operators:
        raise ConfigError(f"list: no operator {name!r}{did_you_mean(name, list(catalog.operators))}")
    if options.json:
        print(listed_json(catalog, device))
    elif name is not None:
        listed_operator(make_console(), catalog, catalog.operators[name], device)
    else:
        listed_console(make_console(), catalog, device)
    return OK
