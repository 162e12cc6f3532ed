"""Completing an interrupted run: do command and machine match the record?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spec_decode_bench.harness.config.load import ConfigError
from spec_decode_bench.harness.records.differences import changed_source, differences, differing, settings
from spec_decode_bench.harness.records.file import as_recorded
from spec_decode_bench.harness.records.schema import Environment, RecordError, Run


def check_same_sweep(run: Run, config: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Raises ConfigError if the command describes a different run than the record.

    config: as plain values. keys: of all its lines. The seed may be left out, as it is in the record.
    """
    now, recorded, where = as_recorded(config), run.header, f"--resume {run.path}: it was recorded with"
    if recorded.name != config["name"]:
        raise ConfigError(f"--resume {run.path}: it is a record of {recorded.name}, not of {config['name']}")
    changes = differing(settings(recorded.config), settings(now))
    if changed := [change for change in changes if change.name != "config.measure.seed"]:
        names = ", ".join(f"{one.name.removeprefix('config.')} {one.ours} (now {one.theirs})" for one in changed)
        raise ConfigError(f"{where} another configuration, {names}; give the same one")
    if set(keys) != set(recorded.cells):
        raise ConfigError(f"{where} other cells; give the same --only, --shard and --variants")
    if (seed := now.get("measure", {}).get("seed")) not in (None, recorded.seed):
        raise ConfigError(f"{where} seed {recorded.seed}, not {seed}; leave the seed out")


def check_same_sources(run: Run, sources: Mapping[str, str]) -> None:
    """Raises RecordError where a file that the recorded cells depend on has another content now."""
    if changed := changed_source(run.header.sources, sources):
        raise RecordError(
            f"{run.path}: {changed} has changed since, so new cells would use different code or inputs; put it back, "
            "or record the run again"
        )


def check_same_machine(run: Run, environment: Environment) -> None:
    """Raises RecordError where cells of this process must not be in the same record."""
    for difference in differences(run.header.environment, environment, "one_record"):
        raise RecordError(f"{difference.between(run.path, 'this process')}; record the run again")
