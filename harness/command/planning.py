"""What the flags that several commands share stand for: device, catalog, configuration, cells and job."""

from __future__ import annotations

import argparse
import itertools
import secrets
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from spec_decode_bench.harness import interpreter
from spec_decode_bench.harness.command.handling import STANDARD_OUTPUT, program
from spec_decode_bench.harness.config.captured import left_out
from spec_decode_bench.harness.config.load import ConfigError, LoadedConfig, Measure, load, parse_overrides
from spec_decode_bench.harness.config.sweep import plan
from spec_decode_bench.harness.config.work_items import Planned, Task
from spec_decode_bench.harness.contract import Variant
from spec_decode_bench.harness.discover import Catalog, discover
from spec_decode_bench.harness.lazy_torch import lazy_torch
from spec_decode_bench.harness.records.schema import RecordError
from spec_decode_bench.harness.report.console import warn
from spec_decode_bench.harness.session.interrupt import exit_on_interrupt
from spec_decode_bench.harness.session.messages import Job


def prepare(options: argparse.Namespace, sources: Sequence[LoadedConfig] = ()) -> tuple[str, Catalog]:
    """Choose the device, then find the variants: Triton reads TRITON_INTERPRET when a kernel file is imported.

    sources: what is to be measured: their operators are imported, and a file of --variants may take as long as the most
             patient of them waits for a variant. Without any, all operators are.
    """
    limit_s = max((source.config.measure.timeout_s for source in sources), default=Measure().timeout_s)
    operators = operators_of(sources)
    with exit_on_interrupt():
        device = device_of(options)
        interpreter.choose(device)
        with lazy_torch():
            catalog = discover(operators=operators)  # while the server, of which a probe is forked, loads torch
        if not options.variants:
            return device, catalog
        from spec_decode_bench.harness.session.import_probe import ImportProbe

        with ImportProbe(options.variants, device) as probe:
            probe.wait(limit_s)
        with lazy_torch():
            return device, discover(options.variants, operators=operators)


def operators_of(sources: Sequence[LoadedConfig]) -> tuple[str, ...] | None:
    """The operators that sweeps name; None, for all, where there is none, or a room's section, which may bind any."""
    if not sources or any(source.section for source in sources):
        return None
    return tuple(dict.fromkeys(name for source in sources for name in source.config.operators))


def device_of(options: argparse.Namespace) -> str:
    """ "cuda" or "cpu". Raises ConfigError."""
    if getattr(options, "cluster", None) is not None:  # the GPUs are elsewhere
        return "cpu" if options.device == "cpu" else "cuda"
    with exit_on_interrupt():
        from spec_decode_bench.harness.timing.gpus import choose_device

        try:
            return choose_device(options.device)
        except RuntimeError as error:
            raise ConfigError(str(error)) from None


def load_config(options: argparse.Namespace, config: str) -> LoadedConfig:
    """With --set, --seed and --baseline. Raises ConfigError."""
    overrides = parse_overrides(options.set)
    if options.seed is not None:
        overrides["measure.seed"] = options.seed
    baseline = getattr(options, "baseline", None)  # verify has none
    if baseline is not None:
        overrides["baseline"] = baseline
    source = load(config, overrides)
    return source if baseline is None else replace(source, lines={**source.lines, "baseline": f"--baseline {baseline}"})


def plan_items(options: argparse.Namespace, source: LoadedConfig, catalog: Catalog) -> list[Planned]:
    """The points of a sweep, or what a section of a room plans. Raises ConfigError and DiscoveryError."""
    catalog.refuse_broken(source.config.operators if source.section is None else None)
    if source.section is not None:
        return source.section.plan(source, catalog, options.only)
    items = plan(source, catalog.operators, catalog.variants, options.only)
    for sentence in left_out(source, catalog.operators):
        warn(sentence)
    return items


def point_command(options: argparse.Namespace, config: str | None) -> Callable[[str, int], str]:
    """The command that verifies a variant at one place, by its key and the seed of its inputs. config: of the sweep."""
    same = [["--variants", file] for file in options.variants] + [["--set", text] for text in options.set]
    device = ["--device", options.device] if options.device != "auto" else []
    words = [*program(), "verify", *filter(None, [config]), *itertools.chain.from_iterable(same), *device]
    return lambda key, seed: shlex.join([*words, "--seed", str(seed), "--point", key])


def tasks_of(source: LoadedConfig, items: Sequence[Planned], catalog: Catalog) -> list[Task]:
    """What items depend on: the points of a sweep themselves, or those that a room's items give to operators. Raises
    DiscoveryError for an operator that cannot be used.
    """
    points = list(items) if source.section is None else source.section.points(items, catalog)
    catalog.refuse_wrong(points)
    return points


def plan_tasks(options: argparse.Namespace, source: LoadedConfig, catalog: Catalog) -> list[Task]:
    """``tasks_of`` what is planned. Raises ConfigError and DiscoveryError."""
    return tasks_of(source, plan_items(options, source, catalog), catalog)


def seed_of(measure: Measure) -> int:
    """A fresh one where the configuration has none."""
    return secrets.randbelow(2**31) if measure.seed is None else measure.seed


def make_job(options: argparse.Namespace, measure: Measure, device: str, timed: bool) -> Job:
    """Verification alone draws a fresh seed, whatever the configuration has, unless --seed gives one."""
    measure = measure if timed else structs.replace(measure, seed=options.seed)
    return Job(device, tuple(options.variants), seed_of(measure), measure, timed)


def cuda_sources(variants: Iterable[Variant]) -> tuple[Path, ...]:
    """To be compiled for every architecture where there is no GPU."""
    return tuple(dict.fromkeys(source for variant in variants for source in variant.sources))


def print_broken(catalog: Catalog) -> None:
    for complaint in catalog.complaints:
        warn(complaint)


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turns errors of files in the folder of --out into RecordErrors."""
    try:
        yield
    except OSError as error:
        if error.filename == STANDARD_OUTPUT:
            raise
        raise RecordError(f"cannot write to {folder}: {error.strerror}; choose another folder with --out") from None
