"""Completing an interrupted run: whether command and machine fit the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.config.load import Config, ConfigError
from harness.records.differences import differences
from harness.records.file import as_recorded
from harness.records.schema import Environment, RecordError, Run


def check_same_sweep(run: Run, config: Config, keys: Sequence[str]) -> None:
    """Raises ConfigError where the command describes another run than the record that it should complete.

    keys: of all its cells, or lines of decode loops.

    The seed may be left out, since it is in the record, but must not be another one.
    """
    settings = as_recorded(config)
    given = {"config": settings, "cells": keys}
    if (seed := settings.get("measure", {}).get("seed")) is not None:
        given["seed"] = seed
    found = {one.respect: one for one in differences(run, given, "resume")}
    where = f"--resume {run.path}: it was recorded with"
    if changed := [one for respect, one in found.items() if respect.startswith("config.")]:
        named = ", ".join(f"{one.respect.removeprefix('config.')} {one.ours} (now {one.theirs})" for one in changed)
        raise ConfigError(f"{where} another configuration, {named}; give the same one")
    if "cells" in found:
        raise ConfigError(f"{where} other cells; give the same --only, --shard and --variants")
    if "seed" in found:
        raise ConfigError(f"{where} seed {found['seed'].ours}, not {seed}; leave the seed out")


def check_same_sources(run: Run, sources: Mapping[str, str]) -> None:
    """Raises RecordError where a file that the recorded cells depend on has another content now."""
    for found in differences(run, {"sources": sources}, "resume"):
        raise RecordError(
            f"{run.path}: {found.respect} has changed since, so new cells would have other code or inputs; "
            "put it back, or record the run again"
        )


def check_same_machine(run: Run, environment: Environment) -> None:
    """Raises RecordError where cells of this process must not be in the same record."""
    for found in differences(run, environment, "resume"):
        raise RecordError(
            f"{run.path} was recorded with {found.respect} {found.ours}, this is {found.theirs}; record the run again"
        )
