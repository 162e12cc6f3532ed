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
from functools import partial
from pathlib import Path

from msgspec import structs
from rich.text import Text

from harness import interpreter
from harness.analysis.compare import CompareError
from harness.analysis.warnings import abbreviated
from harness.cli import streams
from harness.config.load import ConfigError, Measure, Source, load, parse_overrides
from harness.config.loops import miniature, operators_of, plan_loops
from harness.config.sweep import Group, cell_keys, parse_shard, plan, shard_of
from harness.discover import Catalog, DiscoveryError, discover, wrong_with
from harness.exit_codes import BAD, INTERRUPTED, OK, USAGE
from harness.records.baseline import with_baseline
from harness.records.choose import chosen
from harness.records.file import is_empty_record, read_run, write_run
from harness.records.merge import merge, missing_shards
from harness.records.profile import PROFILE, Profile, read_document
from harness.records.schema import RecordError, Run
from harness.records.sides import read_side
from harness.records.together import check_together, mixed_states, refuse_loops
from harness.report.console import make_console
from harness.runner.import_probe import probing
from harness.runner.interrupt import exit_on_interrupt
from harness.runner.kept_workers import KeptWorkers
from harness.runner.protocol import Job
from harness.runner.resume import check_same_sweep, missing_groups
from harness.runner.several_gpus import LocalGpu
from harness.runner.sources import source_hashes
from harness.runner.verified_by import check_proof
from harness.runner.worker import RunError
from harness.timing.gpus import VisibleGpu, choose_gpus
from harness.wording import counted, did_you_mean, printable


def execute(options: argparse.Namespace) -> int:
    """Run a command of bench.py's table: ``run`` is ``run_command`` here, and so on. An expected error is one sentence
    on stderr and exit code 2.
    """
    command: Callable[[argparse.Namespace], int] = globals()[f"{options.command.replace('-', '_')}_command"]
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
    with exit_on_interrupt():
        device = _device(options)
        interpreter.choose(device)
        with probing(options.variants, device) as probe:
            if probe is not None:
                discover()  # meanwhile
                probe.wait(import_limit_s)
        return device, discover(options.variants)


def _device(options: argparse.Namespace) -> str:
    if getattr(options, "cluster", None) is not None:  # the GPUs are elsewhere
        return "cpu" if options.device == "cpu" else "cuda"
    with exit_on_interrupt():
        from harness.timing.environment import choose_device

        try:
            return choose_device(options.device)
        except RuntimeError as error:
            raise ConfigError(str(error)) from None


def _load(options: argparse.Namespace, config: str) -> Source:
    overrides = parse_overrides(options.set)
    if options.seed is not None:
        overrides["measure.seed"] = options.seed
    baseline = getattr(options, "baseline", None)  # verify has none
    if baseline is not None:
        overrides["baseline"] = baseline
    source = load(config, overrides)
    return source if baseline is None else replace(source, lines={**source.lines, "baseline": f"--baseline {baseline}"})


def _plan(options: argparse.Namespace, source: Source, catalog: Catalog) -> list[Group]:
    if source.config.decode_loop is not None:  # to verify what its stacks are made of
        loops = plan_loops(source, catalog.operators, catalog.variants, catalog.bindings, options.only)
        groups = operators_of(loops, catalog.operators, catalog.variants, catalog.bindings)
    else:
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
    """One configuration after the other, each planned before the first begins; the first exit code that is not 0."""
    resumed = _resumed(options)
    sources = [_load(options, config) for config in options.configs]
    _check_several(options, sources)
    gpus: Sequence[VisibleGpu] = ()
    if not options.plan:
        _check_sharing(options, any(source.config.decode_loop is not None for source in sources))
        gpus = _gpus(options)
    proof = _proof(options, sources[0].config.measure)
    device, catalog = _prepare(options, max(source.config.measure.timeout_s for source in sources))
    if options.hold and not sys.stdin.readline():  # the one who would have said so is gone
        raise KeyboardInterrupt
    if not options.plan:
        _print_broken(catalog)
    runs = [_planned(options, source, resumed, proof, gpus, device, catalog) for source in sources]
    if options.plan:
        return OK
    kept, codes = KeptWorkers() if device == "cuda" and len(runs) > 1 else None, []
    try:
        for source, run in zip(sources, runs, strict=True):
            if len(runs) > 1:
                make_console().rule(Text(source.config.name))
            codes.append(run(kept))
            if codes[-1] == INTERRUPTED:
                break
    finally:
        if kept:
            kept.close()
    return next((code for code in codes if code != OK), OK)


def _check_several(options: argparse.Namespace, sources: Sequence[Source]) -> None:
    """Raises ConfigError where several configurations cannot be combined with the rest."""
    names = [source.config.name for source in sources]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"two configurations are named {twice!r}; each gets a folder of its name")
    flags = ("resume", "verified_by", "hold")
    if len(sources) > 1 and (flag := next((one for one in flags if getattr(options, one)), None)):
        raise ConfigError(f"--{flag.replace('_', '-')} takes one configuration; run the others by themselves")


def _check_sharing(options: argparse.Namespace, loops: bool) -> None:
    """Raises ConfigError where --gpus or --cluster cannot be combined with the rest."""
    if options.accelerators is not None and options.cluster is None:
        raise ConfigError("--accelerators chooses GPUs of a cluster; give --cluster, too")
    flag = "--cluster" if options.cluster is not None else "--gpus" if options.gpus is not None else None
    if flag is None:
        return
    if loops:
        raise ConfigError(f"{flag} shares the points of a sweep; run decode loops on one GPU, without it")
    if options.verified_by is not None:
        raise ConfigError(f"--verified-by and {flag} exclude each other; a run is verified by one on the same GPU")
    if flag == "--gpus" and options.device == "cpu":
        raise ConfigError("--gpus and --device cpu exclude each other")


def _gpus(options: argparse.Namespace) -> list[VisibleGpu]:
    """The GPUs of --gpus on this machine; none without it."""
    if options.gpus is None or options.cluster is not None:
        return []
    options.device = "cuda"
    try:
        return choose_gpus(options.gpus)
    except RuntimeError as error:
        raise ConfigError(str(error)) from None


def _planned(
    options: argparse.Namespace,
    source: Source,
    resumed: Run | None,
    proof: Run | None,
    gpus: Sequence[VisibleGpu],
    device: str,
    catalog: Catalog,
) -> Callable[[KeptWorkers | None], int]:
    """Measures one configuration and returns the exit code. --plan prints its cells instead."""
    from harness.cli.recording import record

    out = options.out
    if out is not None and len(options.configs) > 1:
        out = out / source.config.name
    if source.config.decode_loop is not None:
        return _planned_loops(options, source, resumed, out, device, catalog)
    groups = _plan(options, source, catalog)
    if options.shard is not None:
        groups = shard_of(groups, *parse_shard(options.shard))
    if resumed:
        check_same_sweep(resumed, source.config, cell_keys(groups))
    if options.plan:
        _print_plan(missing_groups(groups, resumed.cells) if resumed else groups)
    elif options.shard is not None and not resumed and source.config.measure.seed is None:
        raise ConfigError(
            f"--shard {options.shard}: shards with different inputs cannot be merged; give each the same --seed N"
        )
    job = _job(options, source.config.measure, device, timed=True, groups=() if resumed else groups)
    if resumed:
        job = replace(job, seed=resumed.header.seed)
    if proof:
        job = replace(job, seed=proof.header.seed, compiled=(), verified=True)
    sources = source_hashes(groups, job.variant_files)
    if options.cluster is not None:
        return lambda kept: _record_on_cluster(options, source, resumed, out, job, groups, sources)

    def measure(kept: KeptWorkers | None) -> int:
        start, sharing = kept.start if kept else None, None
        if gpus:
            sharing = lambda job: [  # noqa: E731
                LocalGpu(f"GPU {gpu.index}", replace(job, gpu=gpu.visible, host_lock=True), start) for gpu in gpus
            ]
        more = (options.shard, resumed, proof, sharing, start)
        return record(make_console(), job, source, groups, sources, out, options.no_plots, *more)

    return measure


def _record_on_cluster(
    options: argparse.Namespace,
    source: Source,
    resumed: Run | None,
    folder: Path | None,
    job: Job,
    groups: Sequence[Group],
    sources: dict[str, str],
) -> int:
    """A record for each model of --accelerators, one after the other; the first exit code that is not 0."""
    from harness.cli.recording import default_folder, record
    from harness.runner.cluster import ClusterError, cluster_gpus, connected

    try:
        with connected(options.cluster, options.variants) as cluster:
            models = cluster.models(options.accelerators)
            if resumed and len(models) > 1:
                raise ConfigError("--resume completes one record; name its model with --accelerators")
            codes = []
            for model in models:
                count = cluster.number(model, options.gpus)
                out = folder
                if options.accelerators is not None and not resumed:
                    out = out / model if out else default_folder(source.config.name, model)
                make = partial(cluster_gpus, model=model, count=count)
                more = (options.no_plots, options.shard, resumed, None, make)
                codes.append(record(make_console(), job, source, groups, sources, out, *more))
                if codes[-1] == INTERRUPTED:
                    break
            return next((code for code in codes if code != OK), OK)
    except ClusterError as error:
        raise ConfigError(str(error)) from None


def _proof(options: argparse.Namespace, measure: Measure) -> Run | None:
    """The record of --verified-by."""
    if options.verified_by is None:
        return None
    if options.resume is not None:
        raise ConfigError("--verified-by and --resume exclude each other; measure anew, with --verified-by only")
    proof = _read(options.verified_by)
    check_proof(proof, measure)
    return proof


def _planned_loops(
    options: argparse.Namespace,
    source: Source,
    resumed: Run | None,
    out: Path | None,
    device: str,
    catalog: Catalog,
) -> Callable[[KeptWorkers | None], int]:
    """As _planned."""
    from harness.cli.loop_recording import loop_keys, missing_loops, record_loops

    if options.shard is not None:
        raise ConfigError("--shard cuts sweeps; choose decode loops with --only or --set decode_loop.concurrency=[8]")
    groups = plan_loops(source, catalog.operators, catalog.variants, catalog.bindings, options.only)
    if device == "cpu":  # planned in full before, so that a mistake is found without a GPU
        source = miniature(source)
        groups = plan_loops(source, catalog.operators, catalog.variants, catalog.bindings, options.only)
    if resumed:
        check_same_sweep(resumed, source.config, loop_keys(groups))
    if options.plan:
        keys = loop_keys(missing_loops(groups, resumed.loops) if resumed else groups)
        for key in keys:
            print(printable(key))
        size = ", the miniature for a CPU" if device == "cpu" else ""
        print(f"{counted(len(groups), 'loop')}, {counted(len(keys), 'line')}{size}", file=sys.stderr)
    operators = _plan(options, source, catalog)
    job = _job(options, source.config.measure, device, timed=True)
    if resumed:
        job = replace(job, seed=resumed.header.seed)
    sources = source_hashes(operators, job.variant_files)

    def measure(kept: KeptWorkers | None) -> int:
        if kept:
            kept.close()  # a loop has the GPU and its memory to itself
        return record_loops(make_console(), job, source, groups, operators, sources, out, options.no_plots, resumed)

    return measure


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


def _print_plan(groups: Sequence[Group]) -> None:
    """Every cell, one key per line, for people and for grep; the count goes to stderr."""
    keys = cell_keys(groups)
    for key in keys:
        print(printable(key))
    print(f"{counted(len(groups), 'point')}, {counted(len(keys), 'cell')}", file=sys.stderr)


def _print_broken(catalog: Catalog) -> None:
    for file, reason in catalog.broken.items():
        _print_to_stderr(f"warning: {file} is unavailable: {reason}")


# --- the other commands -----------------------------------------------------------------------------------------------


def verify_command(options: argparse.Namespace) -> int:
    from harness.cli.one_point import parse_key, verify_point
    from harness.cli.verification import verify_all, verify_consumers, verify_defects

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
    source = _load(options, options.config) if options.config is not None else None
    measure = source.config.measure if source else Measure(seed=options.seed)
    device, catalog = _prepare(options, measure.timeout_s)
    groups = _plan(options, source, catalog) if source else []
    _print_broken(catalog)
    if options.defects:
        operators = {group.operator.name for group in groups} or set(catalog.operators)
        job = _job(options, measure, device, timed=False)
        return BAD if verify_defects(make_console(), job, catalog, operators) else OK
    if options.consumers:
        job = _job(options, measure, device, timed=False)
        return BAD if verify_consumers(make_console(), job, catalog, groups) else OK
    if options.point is not None:
        job = _job(options, measure, device, timed=False)
        request = parse_key(options.point, catalog, groups)
        return BAD if verify_point(make_console(), job, catalog, request) else OK
    job = _job(options, measure, device, timed=False, groups=groups)
    more = not options.no_capacity, options.random, _command_for_point(options)
    return BAD if verify_all(make_console(), job, catalog, groups, *more) else OK


def _command_for_point(options: argparse.Namespace) -> Callable[[str, int], str]:
    """The command that verifies one point of this sweep, from its key and the seed of its inputs."""
    same = [["--variants", file] for file in options.variants] + [["--set", text] for text in options.set]
    device = ["--device", options.device] if options.device != "auto" else []
    words = ["python", "bench.py", "verify", options.config, *itertools.chain(*same), *device]
    return lambda key, seed: shlex.join([*words, "--seed", str(seed), "--point", key])


def compare_command(options: argparse.Namespace) -> int:
    from harness.cli.comparing import compare_sides, compare_two_variants, default_folder, publish, rule_of

    rule = replace(rule_of(options), any_config=options.any_config)
    if options.variants is None and options.head is None:
        raise ConfigError(
            "compare needs BASE and HEAD, or one RUN and --variants A B; see python bench.py compare --help"
        )
    if options.variants is not None and options.head is not None:
        raise ConfigError("--variants compares two variants of the same records; give one RUN instead of BASE and HEAD")
    if options.variants is not None:
        comparison = compare_two_variants(options.base, *options.variants, rule)
    else:
        comparison = compare_sides(options.base, options.head, rule)
    folder = options.out or default_folder(options.head or options.base)
    with _writing_to(folder):
        return publish(make_console(), comparison, folder, options.html, options.json, options.sort)


def gate_command(options: argparse.Namespace) -> int:
    from harness.cli.comparing import publish
    from harness.cli.gate import begin, resume

    console = make_console()
    given = (options.config, options.base, options.head, options.out)
    if options.resume is not None:
        if any(one is not None for one in given):
            raise ConfigError("gate --resume FOLDER goes on as it was begun; only --minutes can be given beside it")
        gate = resume(options.resume, console)
    elif options.config is None or options.base is None:
        raise ConfigError(
            "gate needs a configuration and a revision to compare with, such as `bench.py gate configs/mtp3.yaml "
            "--base main`, or --resume FOLDER"
        )
    else:
        gate = begin(options, _load(options, options.config), console)
    try:
        gate.measure(options.minutes)
        comparison = gate.comparison()
    except KeyboardInterrupt:
        text = f"interrupted: what is complete is kept in {gate.folder}; continue with gate --resume {gate.folder}"
        _print_to_stderr(text)
        return INTERRUPTED
    with _writing_to(gate.folder):
        return publish(console, comparison, gate.folder, html=True, json=True)


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
        warnings.append(f"{shards} {named} {are} missing; when {they_are} complete, merge again into another folder")
    if lost := len(merged.missing):
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


def profile_command(options: argparse.Namespace) -> int:
    from harness.cli import profiling

    source = _load(options, options.config)
    if source.config.decode_loop is not None:
        raise ConfigError(
            f"{options.config}: profile takes sweeps; docs/profiling.md has the command for a decode loop"
        )
    tool = profiling.tool_of(options.attribute) if options.attribute else options.tool or "torch"
    if options.trace is not None and tool != "none":
        raise ConfigError("--trace goes with --tool none; --tool torch writes its trace into --out")
    device, catalog = _prepare(options, source.config.measure.timeout_s)
    groups = _plan(options, source, catalog)
    record = _read(options.record) if options.record else None
    if record is not None:
        profiling.check_record(record, cell_keys(groups))
    _print_broken(catalog)
    job = _job(options, source.config.measure, device, timed=True)
    request = profiling.request_of(options, source.config.name, groups, device, job.seed, tool)
    try:
        with _writing_to(request.out):
            if options.attribute is not None:
                return profiling.attribute_report(make_console(), request, options, options.attribute, record)
            if tool == "none":
                return profiling.run_workload(make_console(), request, options.trace)
            return profiling.make_profile(make_console(), request, options, record)
    except (profiling.ProfileError, profiling.ReportError) as error:
        raise ConfigError(str(error)) from None
    except profiling.ToolFailed as error:
        _print_to_stderr(f"error: {error}")
        return BAD


def plot_command(options: argparse.Namespace) -> int:
    from plots import draw_all
    from plots.step_timeline import draw

    found = {path: _profile(path) for path in options.runs}
    profiles = [profile for profile in found.values() if profile is not None]
    runs = _chosen_runs([path for path, profile in found.items() if profile is None], options.only)
    if options.baseline is not None:
        runs = with_baseline(runs, options.baseline)
    check_together(runs)
    for sentence in mixed_states(runs):
        _print_to_stderr(f"note: {sentence}")
    with _writing_to(options.out), exit_on_interrupt():  # matplotlib's callbacks swallow exceptions
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
            _print_to_stderr(f"warning: {run.path} lacks {lost} of {planned}; complete it with --resume {run.path}")
    runs = [chosen(run, only) for run in runs]
    if only and not any(run.cells for run in runs):
        raise ConfigError(f"--only {' '.join(only)} matches no cell of these records")
    return runs


def report_command(options: argparse.Namespace) -> int:
    from harness.analysis.across_gpus import across_gpus
    from harness.report.across_gpus import operator_tables, summary_table
    from harness.report.console import print_tables
    from harness.report.tables import markdown
    from plots import draw_all

    runs = _chosen_runs(options.runs, options.only)
    refuse_loops(runs, "report")
    found = across_gpus(runs, options.figure)
    console, summary = make_console(), summary_table(found)
    print_tables(console, [summary])
    with _writing_to(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / "report.md"
        path.write_text(markdown([summary, *operator_tables(found)]), encoding="utf-8")
        drawn = [] if options.no_plots else draw_all(runs, options.out, options.by)
    figures = counted(len({one.stem for one in drawn}), "figure")
    console.print(Text(f"\nevery cell: {path}; {figures} beside it", style="dim"))
    return OK


def check_record_command(options: argparse.Namespace) -> int:
    from harness.analysis.record_check import problems

    run, console = _read(options.run), make_console()
    found = problems(run)
    environment = run.header.environment
    console.print(Text(f"{run.path}: {run.header.name} on {environment.gpu or environment.processor}"))
    for name, problem in found.items():
        console.print(Text(f"  {name}: {problem or 'yes'}", style="red" if problem else "green"), soft_wrap=True)
    if wrong := sum(problem is not None for problem in found.values()):
        _print_to_stderr(f"{counted(wrong, 'reason')} not to commit this record; see docs/contribute-a-record.md")
        return BAD
    return OK


def export_command(options: argparse.Namespace) -> int:
    from harness.report.export import table, write_csv, write_parquet

    if options.parquet and options.out is None:
        raise ConfigError("--parquet writes a file; name it with --out cells.parquet")
    runs = [run for path in options.runs for run in read_side(path)]
    refuse_loops(runs, "export")
    columns = table(runs)
    if options.out is None:
        write_csv(columns, sys.stdout)
        return OK
    with _writing_to(options.out):
        if options.parquet:
            write_parquet(columns, options.out)
        else:
            with open(options.out, "w", encoding="utf-8", newline="") as file:
                write_csv(columns, file)
    return OK


def history_command(options: argparse.Namespace) -> int:
    from harness.analysis.history import history
    from harness.report.history import history_console, history_markdown
    from plots.history import draw

    runs = _chosen_runs(options.runs, options.only)
    refuse_loops(runs, "history")
    found = history(runs, options.figure, options.threshold)
    with _writing_to(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
        drawn = draw(found, options.out / "history")
        text = history_markdown(found, drawn[0].name)
        (options.out / "history.md").write_text(text, encoding="utf-8")
    console = make_console()
    history_console(found, console)
    console.print(Text(f"written: {', '.join(str(path) for path in [options.out / 'history.md', *drawn])}"))
    return OK


def _record_path(path: str) -> Path:
    """A record, or run.jsonl in the folder of a run. Raises RecordError for another folder."""
    if not Path(path).is_dir():
        return Path(path)
    record = Path(path) / "run.jsonl"
    if not record.exists():
        raise RecordError(f"{path} holds no run.jsonl; give a record, or the folder of one run")
    return record


def _profile(path: str) -> Profile | None:
    """A profile.json, or the one in a folder; None where there is none."""
    place = Path(path) / PROFILE if Path(path).is_dir() else Path(path)
    return read_document(place, Profile) if place.name == PROFILE and place.is_file() else None


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
