"""Completing an interrupted run: whether command and machine fit the record.

Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.config.load import Config, ConfigError
from harness.records.file import as_recorded
from harness.records.merge import SAME_ENVIRONMENT
from harness.records.schema import Environment, RecordError, Run
from harness.runner.sources import changed_source


def check_same_sweep(run: Run, config: Config, keys: Sequence[str]) -> None:
    """Raises ConfigError where the command describes another run than the record that it should complete.

    keys: of all its cells, or lines of decode loops.

    The seed may be left out, since it is in the record, but must not be another one.
    """
    recorded, given = (_flat(one) for one in (run.header.config, as_recorded(config)))
    seed = given.pop("measure.seed", None)
    recorded.pop("measure.seed", None)
    where = f"--resume {run.path}: it was recorded with"
    if changed := [name for name in given | recorded if given.get(name) != recorded.get(name)]:
        raise ConfigError(f"{where} another {', '.join(changed)}; give the same configuration")
    if set(run.header.cells) != set(keys):
        raise ConfigError(f"{where} other cells; give the same --only, --shard and --variants")
    if seed not in (None, run.header.seed):
        raise ConfigError(f"{where} seed {run.header.seed}, not {seed}; leave the seed out")


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """``measure.seed`` -> its value, for the keys of every section; lists stay whole."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat


def check_same_sources(run: Run, sources: Mapping[str, str]) -> None:
    """Raises RecordError where a file that the recorded cells depend on has another content now."""
    if (changed := changed_source(run.header.sources, sources)) is not None:
        raise RecordError(
            f"{run.path}: {changed} has changed since, so new cells would have other code or inputs; "
            "put it back, or record the run again"
        )


def check_same_machine(run: Run, environment: Environment) -> None:
    """Raises RecordError where cells of this process must not be in the same record."""
    if (difference := different_machine(run, environment)) is not None:
        name, before, now = difference
        raise RecordError(f"{run.path} was recorded with {name} {before}, this is {now}; record the run again")


def different_machine(run: Run, environment: Environment) -> tuple[str, Any, Any] | None:
    """The first field of SAME_ENVIRONMENT that differs: its name, and its values in the record and here."""
    for name in SAME_ENVIRONMENT:
        before, now = getattr(run.header.environment, name), getattr(environment, name)
        if before != now:
            return name, before, now
    return None
