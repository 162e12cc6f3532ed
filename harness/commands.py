"""What each command of bench.py does, and which exit code its errors get."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs
from rich.text import Text

from harness import interpreter
from harness.compare import CompareError
from harness.config import ConfigError, Measure, Source, load, parse_overrides
from harness.console import make_console, print_rows
from harness.contract import CONTRACTS, Contract, Variant
from harness.discover import Catalog, DiscoveryError, discover, unavailable
from harness.exits import BAD, OK, USAGE
from harness.interrupt import leave_on_ctrl_c
from harness.protocol import Job
from harness.record_file import read_run, unbegun, write_run
from harness.records import RecordError, Run
from harness.resume import check_same_sweep, lacking, merge, missing_shards, parse_shard, shard_of
from harness.run import RunError
from harness.sweep import Group, plan


def execute(options: argparse.Namespace) -> int:
    """Run one command; every expected error is one sentence on stderr and the documented exit code."""
    commands = {
        "run": _run, "verify": _verify, "compare": _compare, "merge": _merge, "plot": _plot, "list": _list, "doctor": _doctor,
    }  # fmt: skip
    try:
        return commands[options.command](options)
    except (ConfigError, DiscoveryError, RecordError, RunError, CompareError) as error:
        make_console(stderr=True).print(Text(f"error: {error}"))
        return USAGE
    except BrokenPipeError:  # the reader of our output went away, e.g. `| head`
        sys.stderr.close()
        return OK


# --- run --------------------------------------------------------------------------------------------------------------


def _prepare(options: argparse.Namespace) -> tuple[str, Catalog]:
    """Choose the device and find the variants for it. Triton reads its switch on import, so the order matters."""
    device = _device(options)
    with leave_on_ctrl_c():
        if device == "cpu":
            interpreter.enable()
        return device, discover(options.variants)


def _device(options: argparse.Namespace) -> str:
    with leave_on_ctrl_c():
        from harness.environment import choose_device

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
    from harness.recording import record

    resumed = _resumed(options)
    device, catalog = _prepare(options)
    source, groups = _sweep(options, catalog)
    if options.shard:
        groups = shard_of(groups, *parse_shard(options.shard))
    if resumed:
        check_same_sweep(resumed, source.config, groups)
    if options.plan:
        return _plan(list(lacking(groups, resumed.cells)) if resumed else groups)
    if options.shard and not resumed and source.config.measure.seed is None:
        raise ConfigError(f"--shard {options.shard}: all pieces need the same inputs to be merged; give each the same --seed N")
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
    if path.is_file() and unbegun(path):  # killed while it started: nothing to complete, so this is the run's beginning
        options.out = path.parent
        return None
    return read_run(path)


def _plan(groups: Sequence[Group]) -> int:
    """Every cell, one key per line, for people and for grep; the count goes to stderr."""
    for group in groups:
        for key in group.keys:
            print(key)
    cells = sum(len(group.variants) for group in groups)
    print(f"{len(groups)} points, {cells} cells", file=sys.stderr)
    return OK


def _print_broken(catalog: Catalog) -> None:
    for file, reason in catalog.broken.items():
        make_console(stderr=True).print(Text(f"warning: {file} is unavailable: {reason}"))


# --- the other commands -----------------------------------------------------------------------------------------------


def _verify(options: argparse.Namespace) -> int:
    from harness.verification import verify_all, verify_defects

    if options.config is None:
        if not options.defects:
            raise ConfigError("verify needs a configuration, e.g. `bench.py verify configs/mtp3.yaml`; only verify --defects does without")
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
    from harness.compare import compare
    from harness.report import comparison_console, comparison_markdown
    from plots.regression import draw

    base, head = read_run(_record(options.base)), read_run(_record(options.head))
    comparison = compare(base, head, threshold=options.threshold, figures=options.figure)
    folder = options.out or Path(head.path).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "comparison.md").write_text(comparison_markdown(comparison), encoding="utf-8")
        drawn = draw(comparison, folder / "regression")
    except OSError as error:
        raise RecordError(f"cannot write to {folder}: {error.strerror}; choose another folder with --out") from None
    console = make_console()
    comparison_console(comparison, console)
    console.print(Text(f"written: {', '.join(str(path) for path in [folder / 'comparison.md', *drawn])}"))
    return comparison.exit_code


def _merge(options: argparse.Namespace) -> int:
    from harness.recording import exit_code, report

    runs = [read_run(_record(path)) for path in options.runs]
    path = options.out / "run.jsonl"
    merged = structs.replace(merge(runs), path=str(path))
    write_run(merged, path)
    report(make_console(), merged, options.out, options.no_plots)
    warnings = [f"shard {shard} is not among them; merge again when it is there" for shard in missing_shards(runs)]
    if lost := len(merged.header.cells) - len(merged.cells):
        warnings.append(f"{lost} planned cells are in none of the shards; complete them with --resume {path}")
    for warning in warnings:
        make_console(stderr=True).print(Text(f"warning: {warning}"))
    return exit_code(merged)


def _doctor(options: argparse.Namespace) -> int:
    from harness.doctor import examine

    return OK if examine(make_console(), _device(options), options.out) else BAD


def _plot(options: argparse.Namespace) -> int:
    from plots import draw_all

    try:
        drawn = draw_all([read_run(_record(path)) for path in options.runs], options.out)
    except OSError as error:
        raise RecordError(f"cannot write to {options.out}: {error.strerror}; choose another folder with --out") from None
    for path in drawn:
        print(path)
    return OK


def _record(path: str) -> Path:
    """A record, or the one in a folder that a run wrote."""
    return Path(path) / "run.jsonl" if Path(path).is_dir() else Path(path)


def _list(options: argparse.Namespace) -> int:
    device, catalog = _prepare(options)
    rows = [_listed(variant, device) for operator in catalog.operators for variant in catalog.of(operator)]
    if options.json:
        operators = [{"name": o.name, "summary": o.summary, "axes": {a.name: a.doc for a in o.axes}} for o in catalog.operators.values()]
        print(json.dumps({"device": device, "operators": operators, "variants": rows, "unavailable_files": catalog.broken}, indent=2))
        return OK
    console = make_console()
    for name, operator in catalog.operators.items():
        console.print(Text(f"\n{name}: {operator.summary}", style="bold"))
        mine = [row for row in rows if row["operator"] == name]
        rows_of = ((r["variant"], _availability(r), _promised(r), _described(r)) for r in mine)
        print_rows(console, ("variant", "available", "promised", "what it is"), rows_of)
    console.print(Text("\ncontracts: promised by every variant that does not waive them", style="bold"))
    print_rows(console, ("contract", "may be waived", "checked", "meaning"), (_contract_row(c) for c in CONTRACTS))
    for file, reason in catalog.broken.items():
        console.print(Text(f"{file} is unavailable: {reason}", style="red"))
    return OK


def _listed(variant: Variant, device: str) -> dict:
    return {
        "operator": variant.operator,
        "variant": variant.name,
        "doc": variant.doc,
        "module": variant.origin,
        "requires": list(variant.requires),
        "unavailable": unavailable(variant, device),
        "defect": variant.defect,
        "contracts": {c.name: "waived" if c.name in variant.waives else "promised" for c in CONTRACTS},
    }


def _availability(row: dict) -> str:
    return f"no: {row['unavailable']}" if row["unavailable"] else "yes"


def _promised(row: dict) -> str:
    waived = [name for name, state in row["contracts"].items() if state == "waived"]
    return "\n".join(["waived:", *waived]) if waived else "all"


def _contract_row(contract: Contract) -> tuple[str, str, str, str]:
    return contract.name, "yes" if contract.waivable else "no", "on a GPU" if contract.needs_device else "everywhere", contract.meaning


def _described(row: dict) -> str:
    return f"defect, never timed: {row['defect']}" if row["defect"] else row["doc"]
