"""What each command of bench.py does, and which exit code its errors get."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from msgspec import structs
from rich.text import Text

from harness import interpreter
from harness.analysis.compare import CompareError
from harness.cli import streams
from harness.config.load import ConfigError, Measure, Source, load, parse_overrides
from harness.config.sweep import Group, plan
from harness.discover import Catalog, DiscoveryError, discover
from harness.exit_codes import BAD, OK, USAGE
from harness.records.file import has_no_header, read_run, write_run
from harness.records.schema import RecordError, Run
from harness.report.console import make_console
from harness.runner.interrupt import leave_on_ctrl_c
from harness.runner.protocol import Job
from harness.runner.resume import check_same_sweep, lacking, merge, missing_shards, parse_shard, shard_of
from harness.runner.run import RunError
from harness.wording import counted


def execute(options: argparse.Namespace) -> int:
    """Run one command; every expected error is one sentence on stderr and the documented exit code."""
    commands = {
        "run": _run,
        "verify": _verify,
        "compare": _compare,
        "merge": _merge,
        "plot": _plot,
        "list": _list,
        "doctor": _doctor,
    }
    try:
        return commands[options.command](options)
    except (ConfigError, DiscoveryError, RecordError, RunError, CompareError) as error:
        make_console(stderr=True).print(Text(f"error: {error}"), soft_wrap=True)
        return USAGE


# --- run --------------------------------------------------------------------------------------------------------------


def _prepare(options: argparse.Namespace) -> tuple[str, Catalog]:
    """Choose the device and find the variants for it. Triton reads its switch on import, so the order matters."""
    device = _device(options)
    with leave_on_ctrl_c():
        interpreter.choose(device)
        return device, discover(options.variants)


def _device(options: argparse.Namespace) -> str:
    with leave_on_ctrl_c():
        from harness.timing.environment import choose_device

        try:
            return choose_device(options.device)
        except RuntimeError as error:
            raise ConfigError(str(error)) from None


def _sweep(options: argparse.Namespace, catalog: Catalog) -> tuple[Source, list[Group]]:
    overrides = parse_overrides(options.set)
    if options.seed is not None:
        overrides["measure.seed"] = options.seed
    source = load(options.config, overrides)
    return source, plan(source, catalog.operators, catalog.variants, options.only)


def _job(options: argparse.Namespace, measure: Measure, device: str, timed: bool) -> Job:
    seed = secrets.randbelow(2**31) if measure.seed is None else measure.seed
    return Job(device, tuple(options.variants), seed, measure, timed)


def _run(options: argparse.Namespace) -> int:
    from harness.cli.recording import record

    resumed = _resumed(options)
    device, catalog = _prepare(options)
    source, groups = _sweep(options, catalog)
    if options.shard is not None:
        groups = shard_of(groups, *parse_shard(options.shard))
    if resumed:
        check_same_sweep(resumed, source.config, groups)
    if options.plan:
        return _plan(list(lacking(groups, resumed.cells)) if resumed else groups)
    if options.shard is not None and not resumed and source.config.measure.seed is None:
        raise ConfigError(
            f"--shard {options.shard}: all pieces need the same inputs to be merged; give each the same --seed N"
        )
    _print_broken(catalog)
    job = _job(options, source.config.measure, device, timed=True)
    if resumed:
        job = replace(job, seed=resumed.header.seed, compiled=False)
    return record(make_console(), job, source, groups, options.out, options.no_plots, options.shard, resumed)


def _resumed(options: argparse.Namespace) -> Run | None:
    if options.resume is None:
        return None
    if options.out is not None:
        raise ConfigError("--resume goes on in the folder of its run; leave --out out")
    path = _record(options.resume)
    if path.is_file() and has_no_header(path):  # killed while it started: the run begins anew
        options.out = path.parent
        return None
    return read_run(path)


def _plan(groups: Sequence[Group]) -> int:
    """Every cell, one key per line, for people and for grep; the count goes to stderr."""
    for group in groups:
        for key in group.keys:
            print(key)
    cells = sum(len(group.variants) for group in groups)
    print(f"{counted(len(groups), 'point')}, {counted(cells, 'cell')}", file=sys.stderr)
    return OK


def _print_broken(catalog: Catalog) -> None:
    for file, reason in catalog.broken.items():
        make_console(stderr=True).print(Text(f"warning: {file} is unavailable: {reason}"), soft_wrap=True)


# --- the other commands -----------------------------------------------------------------------------------------------


def _verify(options: argparse.Namespace) -> int:
    from harness.cli.verification import verify_all, verify_defects

    if options.config is None:
        if not options.defects:
            raise ConfigError(
                "verify needs a configuration, e.g. `bench.py verify configs/mtp3.yaml`; only verify --defects does without"
            )
        if options.only or options.set:
            raise ConfigError("--only and --set choose points of a sweep; name the configuration they belong to")
    device, catalog = _prepare(options)
    if options.config is None:
        groups, job = [], _job(options, Measure(seed=options.seed), device, timed=False)
    else:
        source, groups = _sweep(options, catalog)
        job = _job(options, source.config.measure, device, timed=False)
    _print_broken(catalog)
    if options.defects:
        operators = {group.operator.name for group in groups} or set(catalog.operators)
        return BAD if verify_defects(make_console(), job, catalog, operators) else OK
    return BAD if verify_all(make_console(), job, catalog, groups) else OK


def _compare(options: argparse.Namespace) -> int:
    from harness.analysis.compare import compare
    from harness.report.comparison import comparison_console, comparison_markdown
    from plots.regression import draw

    base, head = _read(options.base), _read(options.head)
    comparison = compare(base, head, threshold=options.threshold, figures=options.figure)
    folder = options.out or Path(head.path).parent
    with _writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "comparison.md").write_text(comparison_markdown(comparison), encoding="utf-8")
        drawn = draw(comparison, folder / "regression")
    console = make_console()
    comparison_console(comparison, console)
    console.print(Text(f"written: {', '.join(str(path) for path in [folder / 'comparison.md', *drawn])}"))
    return comparison.exit_code


def _merge(options: argparse.Namespace) -> int:
    from harness.cli.recording import exit_code, report

    runs = [_read(path) for path in options.runs]
    path = options.out / "run.jsonl"
    merged = structs.replace(merge(runs), path=str(path))
    write_run(merged, path)
    with _writing_to(options.out):
        report(make_console(), merged, options.out, options.no_plots)
    warnings = [f"shard {shard} is not among them; merge again when it is there" for shard in missing_shards(runs)]
    if lost := len(merged.header.cells) - len(merged.cells):
        verb = "is" if lost == 1 else "are"
        warnings.append(
            f"{counted(lost, 'planned cell')} {verb} in none of the shards; complete the run with --resume {path}"
        )
    for warning in warnings:
        make_console(stderr=True).print(Text(f"warning: {warning}"), soft_wrap=True)
    return exit_code(merged)


def _doctor(options: argparse.Namespace) -> int:
    from harness.cli.doctor import examine

    return OK if examine(make_console(), _device(options), options.out) else BAD


def _plot(options: argparse.Namespace) -> int:
    from plots import draw_all

    runs = [_read(path) for path in options.runs]
    with _writing_to(options.out):
        drawn = draw_all(runs, options.out)
    for path in drawn:
        print(path)
    if not drawn:
        print("nothing to draw: no cell of these records was timed", file=sys.stderr)
    return OK


def _record(path: str) -> Path:
    """A record, or the one in a folder that a run wrote."""
    return Path(path) / "run.jsonl" if Path(path).is_dir() else Path(path)


def _read(path: str) -> Run:
    return read_run(_record(path))


@contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.filename == streams.NAME:
            raise
        raise RecordError(f"cannot write to {folder}: {error.strerror}; choose another folder with --out") from None


def _list(options: argparse.Namespace) -> int:
    from harness.report.listing import listed_console, listed_json

    device, catalog = _prepare(options)
    if options.json:
        print(listed_json(catalog, device))
    else:
        listed_console(make_console(), catalog, device)
    return OK
