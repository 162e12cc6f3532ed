"""Merges the shards of a sweep into one run."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from msgspec import structs

from spec_decode_bench.harness.records.differences import differences
from spec_decode_bench.harness.records.schema import Cell, RecordError, Run, Segment, split_key
from spec_decode_bench.harness.registry import section_of


def merge(runs: Sequence[Run]) -> Run:
    """One run of the cells of all shards, which may come from several GPUs of one model.

    Each shard keeps its own calibration, as a segment. Cells are in shard order, their keys in the header in sweep
    order. If shards are missing, the header names those present.
    """
    for run in runs:
        if section := section_of(run):
            raise RecordError(f"{run.path} holds {section.noun}s, which have no shards; plot several runs instead")
    first, missing = runs[0], missing_shards(runs)
    for run in runs[1:]:
        for difference in differences(first, run, "merge"):
            raise RecordError(
                f"{difference.between(first.path, run.path)}; only shards of one sweep, on one kind of machine, can be "
                "merged"
            )
    _check_no_cell_twice(runs)
    cells: list[Cell] = []
    segments: list[Segment] = []
    for run in runs:
        before = 1 + len(segments) if run is not first else 0
        numbers = {process: before + i for i, process in enumerate([0, *(segment.process for segment in run.segments)])}
        if run is not first:
            segments.append(_as_segment(run, before))
        segments += [structs.replace(process, process=numbers[process.process]) for process in run.segments]
        cells += [structs.replace(cell, process=numbers[cell.process]) for cell in run.cells]
    header = structs.replace(
        first.header,
        shard=", ".join(run.header.shard for run in runs if run.header.shard) if missing else None,
        cells=_keys_in_sweep_order(runs),
        variants=tuple(dict.fromkeys(name for run in runs for name in run.header.variants)),
        sources={name: digest for run in runs for name, digest in run.header.sources.items()},
    )
    unknown = [line for run in runs for line in run.unknown]
    return Run(first.path, header, cells, False, segments, unknown=unknown)


def missing_shards(runs: Sequence[Run]) -> list[str]:
    """The shards of the same sweep that are not among ``runs``, such as "2/8". Raises RecordError where the runs were
    cut into different numbers of shards.
    """
    shards = [(int(i), int(n)) for run in runs for i, n in re.findall(r"(\d+)/(\d+)", run.header.shard or "")]
    counts = {n for _, n in shards}
    if len(counts) > 1:
        numbers = " and ".join(map(str, sorted(counts)))
        raise RecordError(f"cannot merge shards of sweeps cut into {numbers} parts; give the shards of one sweep")
    present = {i for i, _ in shards}
    return [f"{i}/{n}" for n in counts for i in range(1, n + 1) if i not in present]


def _check_no_cell_twice(runs: Sequence[Run]) -> None:
    path_of: dict[str, str] = {}
    for run in runs:
        for cell in run.cells:
            if cell.key in path_of:
                raise RecordError(
                    f"{run.path} and {path_of[cell.key]} both hold {cell.key}; were they shards of one sweep?"
                )
            path_of[cell.key] = run.path


def _as_segment(run: Run, process: int) -> Segment:
    header = run.header
    return Segment(
        process=process,
        started=header.started,
        why=f"shard {header.shard or run.path}",
        environment=header.environment,
        calibration=header.calibration,
        uncalibrated=header.uncalibrated,
        seconds=header.seconds,
    )


def _keys_in_sweep_order(runs: Sequence[Run]) -> tuple[str, ...]:
    """The planned cells of all shards. Shard i of n holds every n-th point of the sweep, from the i-th on."""
    by_shard = sorted(runs, key=lambda run: [int(i) for i in re.findall(r"(\d+)/", run.header.shard or "")])
    points = itertools.zip_longest(*(_points(run.header.cells) for run in by_shard), fillvalue=())
    return tuple(key for of_all_shards in points for keys in of_all_shards for key in keys)


def _points(keys: Sequence[str]) -> list[list[str]]:
    """Keys of cells, point by point."""

    def point(key: str) -> tuple[str, str]:
        operator, _, label = split_key(key)
        return operator, label

    return [list(same) for _, same in itertools.groupby(keys, point)]
