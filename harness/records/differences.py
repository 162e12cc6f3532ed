"""What two records, or two processes, must have in common, and in what they differ."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from spec_decode_bench.harness.records.schema import Environment, RecordError, Run
from spec_decode_bench.harness.registry import section_of

_SOFTWARE = {"torch", "triton", "driver", "cuda", "commit", "dirty", "packages", "checkouts"}
_ONE_RECORD = {"device", "processor", "gpu", *_SOFTWARE}

#: What two records are to be -> what must not differ then: fields of Environment and Header, the cache state, and the
#: device model, which is the GPU, of a CPU run the processor. one_record: measured by several processes of one run.
REFUSED: dict[str, Set[str]] = {
    "compare": {"device", "cache state", "gpu", "seed", "config"},
    "any_config": {"device", "cache state", "gpu", "seed"},
    "side": {"commit", "packages", "checkouts", "sources"},
    "history": {"device model", "cache state", "seed"},
    "one_record": _ONE_RECORD,
    "merge": {*_ONE_RECORD, "name", "seed", "config", "sources"},
    "trust": {*_ONE_RECORD, "python", "cuda_core", "nvrtc", "compiler_settings"},
}
#: The same in words.
USES = {
    "compare": "are compared",
    "any_config": "are compared with `--any-config`",
    "side": "are one side of a comparison",
    "history": "make one `history`",
    "state": "share a place on its time axis; else they get two",
    "merge": "are merged as shards",
    "trust": "are a run and the record of its `--trust`",
    "one_record": "come from the GPUs of one run, or from a run and its `--resume`",
}
#: What is told where it differs: beside a comparison, all but what it shows elsewhere or refuses, and what varies from
#: process to process; in a history, what begins another state.
NOTED: dict[str, Set[str]] = {
    "listed": {"name", "config", *Environment.__struct_fields__}
    - {"device", "gpu", "gpu_id", "commit", "dirty", "sm_clock_mhz", "nvml_refused"},
    "state": {"cuda_core", "nvrtc", "fixed_addresses", *_SOFTWARE},
}
#: Of the settings, those that do not count. The seed that was used is in the header.
IGNORED: dict[str, Set[str]] = {
    "compare": {"config.name", "config.baseline", "config.itl_tpot", "config.measure.seed"},
    "listed": {"config.measure.seed"},
}


@dataclass(frozen=True)
class Difference:
    """name: of a field, a setting such as ``config.measure.cache``, or a source file. None: absent."""

    name: str
    ours: Any
    theirs: Any

    def between(self, first: str, other: str) -> str:
        """In a sentence. first, other: paths of the records."""
        ours, theirs = ("none" if value is None else value for value in (self.ours, self.theirs))
        return f"{first} has {self.name} {ours}, {other} has {theirs}"


def differences(ours: Run | Environment, theirs: Run | Environment, use: str) -> list[Difference]:
    """What differs of the names of ``use``, a key of REFUSED or NOTED. Only sources that both depend on count."""
    found = differing(values(ours, use), values(theirs, use))
    if "sources" in REFUSED.get(use, ()):
        before, after = ours.header.sources, theirs.header.sources
        common = [file for file in before if file in after]
        found += differing(*({file: of[file] for file in common} for of in (before, after)))
    return found


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    return [
        Difference(name, before.get(name), after.get(name))
        for name in before | after
        if before.get(name) != after.get(name)
    ]


def values(of: Run | Environment, use: str) -> dict[str, Any]:
    """Name -> value of what counts, settings and packages one by one; without the sources."""
    names, ignored = (REFUSED | NOTED)[use], IGNORED.get(use, set())
    return {name: value for name, value in _all(of).items() if _among(name, names) and not _among(name, ignored)}


def _among(name: str, names: Set[str]) -> bool:
    """Whether they hold the name or a section of it, as ``config`` is one of ``config.measure.cache``."""
    return any(f"{name}.".startswith(f"{one}.") for one in names)


def _all(of: Run | Environment) -> dict[str, Any]:
    environment = of if isinstance(of, Environment) else of.header.environment
    model = environment.gpu if environment.device == "cuda" else environment.processor
    found = {**asdict(environment), "device model": model}
    for name in ("packages", "checkouts"):
        found |= {f"{name}.{package}": str(one) for package, one in found.pop(name).items()}
    if isinstance(of, Run):
        found |= {"cache state": of.cache, "name": of.header.name, "seed": of.header.seed, **settings(of.header.config)}
    return found


def settings(value: Any, path: str = "config") -> dict[str, Any]:
    """Path such as ``config.sweep.0.batch_size`` -> value, of every leaf. A list without mappings is one leaf, and so
    is an empty mapping: a point or a stack with all its defaults.
    """
    if isinstance(value, list) and any(isinstance(below, Mapping) for below in value):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping) or not value:
        return {path: value}
    return {leaf: one for name, below in value.items() for leaf, one in settings(below, f"{path}.{name}").items()}


def changed_source(recorded: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """The first file whose content is not the recorded one; None where all are as they were.

    A file of the same name and content in another place is the same one: --resume may be called from another folder.
    """
    elsewhere = {(Path(name).name, digest) for name, digest in now.items()}
    for name, digest in recorded.items():
        if now.get(name) != digest and (name in now or (Path(name).name, digest) not in elsewhere):
            return name
    return None


# --- in one picture or table ------------------------------------------------------------------------------------------


def check_together(runs: Sequence[Run]) -> None:
    """Raises RecordError for GPU runs whose cells must not stand in one panel: of other seeds, which are other inputs,
    and two runs of one configuration on one GPU model, of which one would hide the other.
    """
    for a, b in itertools.combinations([run for run in runs if run.header.environment.device == "cuda"], 2):
        shared = {cell.operator for cell in a.cells} & {cell.operator for cell in b.cells}
        if not shared or a.cache != b.cache:  # these get panels of their own
            continue
        if a.header.seed != b.header.seed:
            raise RecordError(
                f"{Difference('seed', a.header.seed, b.header.seed).between(a.path, b.path)}: they have different "
                "inputs and cannot share a picture or table; give records with the same seed"
            )
        ours, theirs = ((run.header.name, run.header.environment.gpu) for run in (a, b))
        if ours == theirs and {c.key for c in a.cells} & {c.key for c in b.cells}:
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
        f"{run.path} was measured with a {run.cache} cache, {runs[0].path} with a {runs[0].cache} one: their GPU times "
        "are shown separately, and ITL and TPOT only for the hot one"
        for run in runs[1:]
        if run.cells and runs[0].cells and run.cache != runs[0].cache
    ]
