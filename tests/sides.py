"""Made-up sides of a comparison: several processes of the same code. Nothing here is a measurement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from spec_decode_bench.harness.records.schema import Run
from tests import factory


def side(make: Callable[[int], Run], processes: int = 4, first: int = 0, **environment) -> tuple[Run, ...]:
    """make: seed of the noise -> record. All records get the same seed of inputs, and their own time."""
    runs = []
    for process in range(first, first + processes):
        run = make(process)
        header = replace(
            run.header,
            seed=0,
            started=f"2026-01-01T00:{process:02}:00+00:00",
            environment=replace(run.header.environment, **environment),
        )
        runs.append(replace(run, header=header, path=f"run{process}.jsonl"))
    return tuple(runs)


def write_side(runs: tuple[Run, ...], folder: Path) -> Path:
    for i, run in enumerate(runs, 1):
        factory.write(run, folder / f"run{i}.jsonl")
    return folder
