"""What each command of bench.py does. The command line itself, with all flags, is bench.py."""

from __future__ import annotations

import argparse
import itertools
import secrets
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from msgspec import structs
from rich.text import Text

from harness import interpreter
from harness.analysis.compare import CompareError
from harness.analysis.warnings import abbreviated
from harness.cli import streams
from harness.config.load import ConfigError, Measure, Source, load, parse_overrides
from harness.config.sweep import Group, cell_keys, parse_shard, plan, shard_of
from harness.discover import Catalog, DiscoveryError, discover, wrong_with
from harness.exit_codes import BAD, OK, USAGE
from harness.records.baseline import with_baseline
from harness.records.file import is_empty_record, read_run, write_run
from harness.records.merge import merge, missing_shards
from harness.records.schema import RecordError, Run
from harness.report.console import make_console
from harness.runner.early_start import early_workers
from harness.runner.import_probe import probing
from harness.runner.interrupt import exit_on_interrupt
from harness.runner.protocol import Job
from harness.runner.resume import check_same_sweep, missing_groups
from harness.runner.worker import RunError, Worker
from harness.wording import counted, did_you_mean, printable


def execute(options: argparse.Namespace) -> int:
    """Run a command of bench.py's table: ``run`` is ``run_command`` here, and so on. An expected error is one sentence
    on stderr and exit code 2.
    """
    command: Callable[[argparse.Namespace], int] = globals()[f"{options.command}_command"]
    try:
        return command(options)
    except (ConfigError, DiscoveryError, RecordError, RunError, CompareError) as error:
        _print_to_stderr(f"error: {error}")
        return USAGE


def _print_to_stderr(text: str) -> None:
    make_console(stderr=True).print(Text(text), soft_wrap=True)


# --- run --------------------------------------------------------------------------------------------------------------


def _prepare(options: argparse.Namespace, import_limit_s: float = Measure().timeout_s) -> tuple[str, Catalog]:
    """Choose the device, then find the variants: Triton reads TRITON_INTERPRET when a kernel file is imported.

    import_limit_s: seconds that the import of a file of --variants may take.
    """
    with exit_on_interrupt(), probing(options.variants, options.device) as probe:
        device = _device(options)
        interpreter.choose(device)
        if probe is not None:
            discover()  # meanwhile
            probe.wait(import_limit_s)
        return device, discover(options.variants)


def _device(options: argparse.Namespace) -> str:
    with exit_on_interrupt():
        from harness.timing.environment import choose_device

        try:
            return choose_device(options.device)
        except RuntimeError as error:
            raise ConfigError(str(error)) from None


def _load(options: argparse.Namespace) -> Source:
    overrides = parse_overrides(options.set)
    if options.seed is not None:
        overrides["measure.seed"] = options.seed
    baseline = getattr(options, "baseline", None)  # verify has none
    if baseline is not None:
        overrides["baseline"] = baseline
    source = load(options.config, overrides)
    return source if baseline is None else replace(source, lines={**source.lines, "baseline": f"--baseline {baseline}"})


def _plan(options: argparse.Namespace, source: Source, catalog: Catalog) -> list[Group]:
    groups = plan(source, catalog.operators, catalog.variants, options.only)
    for operator in {group.operator.name: group.operator for group in groups}.values():
        if (problem := wrong_with(operator, catalog.variants)) is not None:
            raise DiscoveryError(problem)
    return groups


def _job(options: argparse.Namespace, measure: Measure, device: str, timed: bool, groups: Sequence[Group] = ()) -> Job:
    """groups: whose CUDA sources are compiled for every architecture where there is no GPU."""
    seed = secrets.randbelow(2**31) if measure.seed is None else measure.seed
    sources = dict.fromkeys(source for group in groups for variant in group.variants for source in variant.sources)
    return Job(device, tuple(options.variants), seed, measure, timed, compiled=tuple(sources))


def run_command(options: argparse.Namespace) -> int:
    resumed = _resumed(options)
    source = _load(options)
    if options.plan:
        return _run(options, source, resumed, None)
    roles = ("evaluate", "compare", "audit") if source.config.measure.audit else ("evaluate", "compare")
    with early_workers(options.device, roles) as start:
        return _run(options, source, resumed, start)


def _run(
    options: argparse.Namespace, source: Source, resumed: Run | None, start: Callable[[Job], Worker] | None
) -> int:
    from harness.cli.recording import record

    device, catalog = _prepare(options, source.config.measure.timeout_s)
    groups = _plan(options, source, catalog)
    if options.shard is not None:
        groups = shard_of(groups, *parse_shard(options.shard))
    if resumed:
        check_same_sweep(resumed, source.config, groups)
    if options.plan:
        return _print_plan(missing_groups(groups, resumed.cells) if resumed else groups)
    if options.shard is not None and not resumed and source.config.measure.seed is None:
        raise ConfigError(
            f"--shard {options.shard}: all pieces need the same inputs to be merged; give each the same --seed N"
        )
    _print_broken(catalog)
    job = _job(options, source.config.measure, device, timed=True, groups=() if resumed else groups)
    if resumed:
        job = replace(job, seed=resumed.header.seed)
    return record(make_console(), job, source, groups, options.out, options.no_plots, options.shard, resumed, start)


def _resumed(options: argparse.Namespace) -> Run | None:
    if options.resume is None:
        return None
    if options.out is not None:
        raise ConfigError("--resume writes into the folder of its run; drop --out")
    path = _record_path(options.resume)
    if path.is_file() and is_empty_record(path):  # killed while it started, so this run is the first one
        options.out = path.parent
        return None
    return read_run(path)


def _print_plan(groups: Sequence[Group]) -> int:
    """Every cell, one key per line, for people and for grep; the count goes to stderr."""
    keys = cell_keys(groups)
    for key in keys:
        print(printable(key))
    print(f"{counted(len(groups), 'point')}, {counted(len(keys), 'cell')}", file=sys.stderr)
    return OK


def _print_broken(catalog: Catalog) -> None:
    for file, reason in catalog.broken.items():
        _print_to_stderr(f"warning: {file} is unavailable: {reason}")


# --- the other commands -----------------------------------------------------------------------------------------------


def verify_command(options: argparse.Namespace) -> int:
    from harness.cli.one_point import parse_key, verify_point
    from harness.cli.verification import verify_all, verify_defects

    if options.config is None:
        if options.point is not None:
            raise ConfigError("--point needs a configuration, such as `bench.py verify configs/mtp3.yaml --point ...`")
        if not options.defects:
            raise ConfigError(
                "verify needs a configuration, such as `bench.py verify configs/mtp3.yaml`; only verify --defects "
                "works without one"
            )
        if options.only or options.set:
            raise ConfigError("--only and --set choose points of a sweep; give its configuration, too")
    source = _load(options) if options.config is not None else None
    measure = source.config.measure if source else Measure(seed=options.seed)
    with early_workers(options.device, ["evaluate"]) as start:
        device, catalog = _prepare(options, measure.timeout_s)
        groups = _plan(options, source, catalog) if source else []
        _print_broken(catalog)
        if options.defects:
            operators = {group.operator.name for group in groups} or set(catalog.operators)
            job = _job(options, measure, device, timed=False)
            return BAD if verify_defects(make_console(), job, catalog, operators, start) else OK
        if options.point is not None:
            job = _job(options, measure, device, timed=False)
            request = parse_key(options.point, catalog, groups)
            return BAD if verify_point(make_console(), job, catalog, request, start) else OK
        job = _job(options, measure, device, timed=False, groups=groups)
        more = not options.no_capacity, options.random, _command_for_point(options)
        return BAD if verify_all(make_console(), job, catalog, groups, *more, start) else OK


def _command_for_point(options: argparse.Namespace) -> Callable[[str, int], str]:
    """The command that verifies one point of this sweep, from its key and the seed of its inputs."""
    same = [["--variants", file] for file in options.variants] + [["--set", text] for text in options.set]
    device = ["--device", options.device] if options.device != "auto" else []
    words = ["python", "bench.py", "verify", options.config, *itertools.chain(*same), *device]
    return lambda key, seed: shlex.join([*words, "--seed", str(seed), "--point", key])


def compare_command(options: argparse.Namespace) -> int:
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


def merge_command(options: argparse.Namespace) -> int:
    from harness.cli.recording import exit_code, refuse_foreign_table, report

    runs = [_read(path) for path in options.runs]
    path = options.out / "run.jsonl"
    merged = structs.replace(merge(runs), path=str(path))
    refuse_foreign_table(options.out)
    write_run(merged, path)
    with _writing_to(options.out):
        report(make_console(), merged, options.out, options.no_plots)
    warnings = []
    if missing := missing_shards(runs):
        named = ", ".join(abbreviated(missing))
        shards, are, they_are = ("shard", "is", "it is") if len(missing) == 1 else ("shards", "are", "they are")
        warnings.append(f"{shards} {named} {are} missing; merge again when {they_are} complete")
    if lost := len(merged.header.cells) - len(merged.cells):
        verb = "is" if lost == 1 else "are"
        warnings.append(
            f"{counted(lost, 'planned cell')} {verb} in none of the shards; complete the run with --resume {path}"
        )
    for warning in warnings:
        _print_to_stderr(f"warning: {warning}")
    return exit_code(merged)


def doctor_command(options: argparse.Namespace) -> int:
    from harness.cli.doctor import examine

    return OK if examine(make_console(), _device(options), options.out) else BAD


def plot_command(options: argparse.Namespace) -> int:
    from plots import draw_all

    runs = [_read(path) for path in options.runs]
    if options.baseline is not None:
        runs = with_baseline(runs, options.baseline)
    with _writing_to(options.out):
        drawn = draw_all(runs, options.out)
    for path in drawn:
        print(printable(str(path)))
    if not drawn:
        print("nothing to draw: no cell of these records was timed", file=sys.stderr)
    return OK


def _record_path(path: str) -> Path:
    """A record, or run.jsonl in the folder of a run."""
    return Path(path) / "run.jsonl" if Path(path).is_dir() else Path(path)


def _read(path: str) -> Run:
    return read_run(_record_path(path))


@contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.filename == streams.NAME:
            raise
        raise RecordError(f"cannot write to {folder}: {error.strerror}; choose another folder with --out") from None


def list_command(options: argparse.Namespace) -> int:
    from harness.report.listing import listed_console, listed_json, listed_operator

    device, catalog = _prepare(options)
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
