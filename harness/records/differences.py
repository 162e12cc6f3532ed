"""How two records differ, and for which purposes each difference matters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import asdict

from spec_decode_bench.harness.records.schema import Environment, RecordError, Run
from spec_decode_bench.harness.registry import section_of

#: Purpose -> the records that it is about; docs/comparison.md shows these words beside the respects.
PURPOSES = {
    "compare": "are compared",
    "any_config": "are compared with `--any-config`",
    "side": "are one side of a comparison",
    "history": "make one `history`",
    "state": "share a place on its time axis",
    "report": "are tabled side by side by `report`",
    "panel": "share a panel of a picture; else they get panels of their own",
    "together": "share a panel or a table",
    "merge": "are merged as shards",
    "one_record": "come from the GPUs of one run",
    "resume": "are completed with `--resume`",
    "listed": "may differ, and `compare` lists it",
    "same_run": "agree in all of it, so that one would hide the other in a picture or table, are refused",
}
Purpose = Literal[tuple(PURPOSES)]
_COMPARE: tuple[Purpose, ...] = ("compare", "any_config")
#: Of processes whose cells are in one record.
_ONE_RECORD: tuple[Purpose, ...] = ("merge", "one_record", "resume")
_SETTINGS: tuple[Purpose, ...] = ("listed", "merge", "resume")

#: Respect -> the purposes for which it matters. Fields of Environment have their names. device model: the GPU, of a
#: CPU run the processor. config: every setting without a row of its own. seed: the one that was used.
MATTERS: dict[str, tuple[Purpose, ...]] = {
    "device": (*_COMPARE, *_ONE_RECORD),
    "device model": ("history",),
    "cache state": (*_COMPARE, "history", "report", "panel"),
    "processor": ("listed", *_ONE_RECORD),
    "python": ("listed",),
    "torch": ("listed", "state", *_ONE_RECORD),
    "triton": ("listed", "state", *_ONE_RECORD),
    "cuda_core": ("listed", "state"),
    "nvrtc": ("listed", "state"),
    "compiler_settings": ("listed",),
    "gpu": (*_COMPARE, "same_run", *_ONE_RECORD),
    "gpu_id": (),
    "generation": ("listed",),
    "sm": ("listed",),
    "sm_count": ("listed",),
    "l2_bytes": ("listed",),
    "memory_bytes": ("listed",),
    "driver": ("listed", "state", *_ONE_RECORD),
    "cuda": ("listed", "state", *_ONE_RECORD),
    "sm_clock_mhz": (),
    "max_sm_clock_mhz": ("listed",),
    "memory_clock_mhz": ("listed",),
    "power_limit_w": ("listed",),
    "commit": ("side", "state", *_ONE_RECORD),
    "dirty": ("state", *_ONE_RECORD),
    "packages": ("side", "listed", "state", *_ONE_RECORD),
    "checkouts": ("side", "listed", "state", *_ONE_RECORD),
    "fixed_addresses": ("listed", "state"),
    "nvml_refused": (),
    "notes": ("listed",),
    "name": ("listed", "same_run", "merge"),
    "seed": (*_COMPARE, "history", "together", "merge", "resume"),
    "config": ("compare", *_SETTINGS),
    "config.name": _SETTINGS,
    "config.baseline": _SETTINGS,
    "config.itl_tpot": _SETTINGS,
    "config.measure.seed": ("merge",),
    "cells": ("resume",),
    "sources": ("side", "merge", "resume"),
}

#: A record; the machine of a process; or some respects by name, such as {"seed": 0}.
Described = Run | Environment | Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """respect: a row of MATTERS, a setting such as ``config.measure.cache``, or a source file. None: absent."""

    respect: str
    ours: Any
    theirs: Any


def differences(ours: Described, theirs: Described, purpose: Purpose) -> list[Difference]:
    """The respects that matter for the purpose and differ, in the order of MATTERS.

    Only what both describe counts: of a record and an Environment, the machine.
    """
    parts = _parts(ours), _parts(theirs)
    common = [
        {respect: value for respect, value in described.items() if respect in other}
        for described, other in (parts, reversed(parts))
    ]
    before, after = (dict(_respects(values, purpose)) for values in common)
    return [
        Difference(respect, before.get(respect), after.get(respect))
        for respect in before | after
        if before.get(respect) != after.get(respect)
    ] + _changed_sources(*common, purpose)


def values_of(described: Described, purpose: Purpose) -> tuple[Any, ...]:
    """What the respects that matter for the purpose are here; equal where ``differences`` finds none."""
    return tuple(value for _, value in _respects(_parts(described), purpose))


def changed_source(recorded: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """The first file whose content is not the recorded one; None where all are as they were.

    A file of the same name and content in another place is the same one: --resume may be called from another folder.
    """
    elsewhere = {(Path(name).name, digest) for name, digest in now.items()}
    for name, digest in recorded.items():
        if now.get(name) != digest and (name in now or (Path(name).name, digest) not in elsewhere):
            return name
    return None


def _parts(described: Described) -> dict[str, Any]:
    """Row of MATTERS -> its value; ``config`` and ``sources`` in one piece."""
    if isinstance(described, Mapping):
        return dict(described)
    if isinstance(described, Environment):
        model = described.gpu if described.device == "cuda" else described.processor
        values = {**asdict(described), "device model": model}
    else:
        header = described.header
        values = {
            **_parts(header.environment),
            "cache state": described.cache,
            "name": header.name,
            "seed": header.seed,
            "config": header.config,
            "cells": header.cells,
            "sources": header.sources,
        }
    return {respect: values[respect] for respect in MATTERS if respect in values}


def _respects(parts: Mapping[str, Any], purpose: Purpose) -> Iterator[tuple[str, Any]]:
    """Respect and value of what matters for the purpose, setting by setting; without the sources."""
    for name, value in parts.items():
        if name == "config":
            yield from (setting for setting in _leaves(name, value) if matters(setting[0], purpose))
        elif name in ("packages", "checkouts") and matters(name, purpose):
            yield from ((f"{name}.{package}", str(one)) for package, one in value.items())
        elif name != "sources" and matters(name, purpose):
            yield name, frozenset(value) if name == "cells" else value


def matters(respect: str, purpose: Purpose) -> bool:
    """A setting without a row of its own has that of its section, or of ``config``."""
    while respect not in MATTERS and "." in respect:
        respect = respect.rpartition(".")[0]
    return purpose in MATTERS[respect]


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Path such as ``config.sweep.0.batch_size``, and value, of every leaf. A list without mappings is one leaf, and so
    is an empty mapping: a point or a stack with all its defaults.
    """
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from _leaves(f"{path}.{name}", below)
    elif isinstance(value, list) and any(isinstance(below, Mapping) for below in value):
        for position, below in enumerate(value):
            yield from _leaves(f"{path}.{position}", below)
    else:
        yield path, value


def _changed_sources(ours: Mapping[str, Any], theirs: Mapping[str, Any], purpose: Purpose) -> list[Difference]:
    """The first file of the sources that differs. Shards and processes of one side may depend on different files; else
    all of ``ours`` count.
    """
    if "sources" not in ours or not matters("sources", purpose):
        return []
    before, after = ours["sources"], theirs["sources"]
    if purpose in ("merge", "side"):
        before = {name: digest for name, digest in before.items() if name in after}
        changed = next((name for name, digest in before.items() if after[name] != digest), None)
    else:
        changed = changed_source(before, after)
    return [] if changed is None else [Difference(changed, before[changed], after.get(changed))]


# --- in one picture or table ------------------------------------------------------------------------------------------


def check_together(runs: Sequence[Run]) -> None:
    """Raises RecordError for GPU runs whose cells must not stand in one panel: of other seeds, which are other inputs,
    and two runs of one configuration on one GPU model, of which one would hide the other.
    """
    for a, b in itertools.combinations([run for run in runs if run.header.environment.device == "cuda"], 2):
        shared = {cell.operator for cell in a.cells} & {cell.operator for cell in b.cells}
        if not shared or differences(a, b, "panel"):
            continue
        for difference in differences(a, b, "together"):
            raise RecordError(
                f"{a.path} has {difference.respect} {difference.ours}, {b.path} has {difference.theirs}: they have "
                "different inputs and cannot share a picture or table; give records with the same "
                f"{difference.respect}"
            )
        if not differences(a, b, "same_run") and {c.key for c in a.cells} & {c.key for c in b.cells}:
            raise RecordError(
                f"{a.path} and {b.path} are both runs of {a.header.name} on {a.header.environment.gpu}; give one of "
                "them, or use bench.py compare"
            )


def check_sweeps(runs: Sequence[Run], command: str) -> None:
    """Raises RecordError for a record of something else than a sweep, for which ``command`` has no table."""
    for run in runs:
        if section := section_of(run):
            raise RecordError(f"{run.path} holds {section.noun}s, but {command} takes sweeps; use bench.py plot")


def mixed_states(runs: Sequence[Run]) -> list[str]:
    """A sentence for each record whose cache state differs from the first one's, and so its times."""
    return [
        f"{run.path} was measured with a {difference.theirs} cache, {runs[0].path} with a {difference.ours} one: "
        "their GPU times are shown separately, and ITL and TPOT only for the hot one"
        for run in runs[1:]
        if run.cells and runs[0].cells
        for difference in differences(runs[0], run, "panel")
    ]
