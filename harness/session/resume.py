"""Completing an interrupted run: do command and machine match the record?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spec_decode_bench.harness.config.load import ConfigError
from spec_decode_bench.harness.records.differences import differences
from spec_decode_bench.harness.records.file import as_recorded
from spec_decode_bench.harness.records.schema import Environment, RecordError, Run


def check_same_sweep(run: Run, config: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Raises ConfigError if the command describes a different run than the record.

    config: as plain values. keys: of all its lines.

    The seed may be left out, since it is in the record, but must not be another one.
    """
    settings = as_recorded(config)
    given = {"config": settings, "cells": keys}
    if (seed := settings.get("measure", {}).get("seed")) is not None:
        given["seed"] = seed
    changes = {change.respect: change for change in differences(run, given, "resume")}
    where = f"--resume {run.path}: it was recorded with"
    if run.header.name != config["name"]:
        raise ConfigError(f"--resume {run.path}: it is a record of {run.header.name}, not of {config['name']}")
    if settings_changed := [change for respect, change in changes.items() if respect.startswith("config.")]:
        names = ", ".join(
            f"{change.respect.removeprefix('config.')} {change.ours} (now {change.theirs})"
            for change in settings_changed
        )
        raise ConfigError(f"{where} another configuration, {names}; give the same one")
    if "cells" in changes:
        raise ConfigError(f"{where} other cells; give the same --only, --shard and --variants")
    if "seed" in changes:
        raise ConfigError(f"{where} seed {changes['seed'].ours}, not {seed}; leave the seed out")


def check_same_sources(run: Run, sources: Mapping[str, str]) -> None:
    """Raises RecordError where a file that the recorded cells depend on has another content now."""
    for difference in differences(run, {"sources": sources}, "resume"):
        raise RecordError(
            f"{run.path}: {difference.respect} has changed since, so new cells would use different code or inputs; "
            "put it back, or record the run again"
        )


def check_same_machine(run: Run, environment: Environment) -> None:
    """Raises RecordError where cells of this process must not be in the same record."""
    for difference in differences(run, environment, "resume"):
        raise RecordError(
            f"{run.path} was recorded with {difference.respect} {difference.ours}, this is {difference.theirs}; "
            "record the run again"
        )
