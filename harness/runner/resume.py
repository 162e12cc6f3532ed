"""One sweep in several runs: what a broken-off run still lacks, which part is a shard's, how shards become one record.

Never imports torch.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import structs

from harness.config.load import Config, ConfigError
from harness.config.sweep import Group
from harness.records.schema import Cell, Environment, RecordError, Run, Segment

#: What must not differ between processes whose cells stand in one record.
SAME = ("device", "gpu", "processor", "torch", "triton", "driver", "cuda", "commit", "dirty")


def cell_keys(groups: Sequence[Group]) -> tuple[str, ...]:
    """Keys of all cells of a plan, in its order."""
    return tuple(key for group in groups for key in group.keys)


def lacking(groups: Sequence[Group], cells: Sequence[Cell]) -> Iterator[Group]:
    """The groups with the variants that have no cell yet."""
    there = {cell.key for cell in cells}
    for group in groups:
        left = tuple(variant for variant in group.variants if group.key(variant.name) not in there)
        if left:
            yield replace(group, variants=left)


def check_same_sweep(run: Run, config: Config, groups: Sequence[Group]) -> None:
    """Raises ConfigError where the command describes another sweep than the record that it is to complete.

    The seed may be left out, since it is in the record, but must not be another one.
    """
    recorded, given = (_flat(one) for one in (run.header.config, msgspec.json.decode(msgspec.json.encode(config))))
    seed = given.pop("measure.seed", None)
    recorded.pop("measure.seed", None)
    if changed := [name for name in given | recorded if given.get(name) != recorded.get(name)]:
        raise ConfigError(
            f"--resume {run.path}: it was recorded with another {', '.join(changed)}; give the same configuration"
        )
    if set(run.header.cells) != set(cell_keys(groups)):
        raise ConfigError(
            f"--resume {run.path}: it was recorded with other cells; give the same --only, --shard and --variants"
        )
    if seed not in (None, run.header.seed):
        raise ConfigError(
            f"--resume {run.path}: it was recorded with seed {run.header.seed}, not {seed}; leave the seed out"
        )


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """``measure.seed`` -> its value, for the keys of every section; lists stay whole."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= (
            {f"{name}.{inner}": one for inner, one in value.items()} if isinstance(value, Mapping) else {name: value}
        )
    return found


def check_same_machine(run: Run, environment: Environment) -> None:
    """Raises RecordError where cells of this process must not stand beside those of the record."""
    for name in SAME:
        before, now = getattr(run.header.environment, name), getattr(environment, name)
        if before != now:
            raise RecordError(f"{run.path} was recorded with {name} {before}, this is {now}; record the run again")


def parse_shard(text: str) -> tuple[int, int]:
    """``2/8`` -> (2, 8). Raises ConfigError."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise ConfigError(f"--shard {text}: expected PIECE/PIECES such as 2/8, counted from 1")
    return int(found[1]), int(found[2])


def shard_of(groups: Sequence[Group], piece: int, pieces: int) -> list[Group]:
    """Every ``pieces``-th point: neighbours of a sweep cost alike, so the pieces take about as long as each other.

    Raises ConfigError where there are more pieces than points, in each of them alike.
    """
    if pieces > len(groups):
        raise ConfigError(
            f"--shard {piece}/{pieces}: the sweep has {len(groups)} points; cut it into {len(groups)} pieces at most"
        )
    return list(groups[piece - 1 :: pieces])


def missing_shards(runs: Sequence[Run]) -> list[str]:
    """The pieces that ``runs`` lack of the sweep they were cut from, as "2/8". Raises RecordError where they were
    cut differently.
    """
    found = [re.findall(r"(\d+)/(\d+)", run.header.shard or "") for run in runs]
    counts = {int(pieces) for pairs in found for _, pieces in pairs}
    if len(counts) > 1:
        raise RecordError(
            f"these are shards of sweeps cut into {' and '.join(map(str, sorted(counts)))} pieces; merge pieces of one cut"
        )
    there = {int(piece) for pairs in found for piece, _ in pairs}
    return [f"{piece}/{pieces}" for pieces in counts for piece in range(1, pieces + 1) if piece not in there]


def _points(keys: Sequence[str]) -> list[list[str]]:
    """Keys of cells, point by point."""

    def point(key: str) -> tuple[str, str]:
        operator, _, rest = key.partition("/")
        return operator, rest.partition("/")[2]

    return [list(same) for _, same in itertools.groupby(keys, point)]


def merge(runs: Sequence[Run]) -> Run:
    """Shards of one sweep as one run: each piece keeps its own ruler. Raises RecordError.

    Cells stand in the order of the pieces, their keys in the header in that of the sweep. Pieces may come from several
    GPUs of one model. Where some of the pieces are not among the runs, the header names those that are.
    """
    first, missing = runs[0], missing_shards(runs)
    for run in runs[1:]:
        for name in ("name", "config", "seed"):
            if getattr(run.header, name) != getattr(first.header, name):
                raise RecordError(
                    f"{run.path} has another {name} than {first.path}; only shards of one sweep can be merged"
                )
        for name in SAME:
            values = getattr(first.header.environment, name), getattr(run.header.environment, name)
            if values[0] != values[1]:
                raise RecordError(
                    f"{run.path} was recorded with {name} {values[1]}, {first.path} with {values[0]}; not of one run"
                )
    cells: list[Cell] = []
    segments: list[tuple[int, Segment]] = []
    seen: dict[str, str] = {}
    for run in runs:
        if run is not first:
            h = run.header
            segments.append(
                (
                    len(cells),
                    Segment(
                        started=h.started,
                        why=f"shard {h.shard or run.path}",
                        environment=h.environment,
                        calibration=h.calibration,
                        uncalibrated=h.uncalibrated,
                    ),
                )
            )
        segments += [(len(cells) + start, one) for start, one in run.segments]
        for cell in run.cells:
            if cell.key in seen:
                raise RecordError(
                    f"{run.path} and {seen[cell.key]} both hold {cell.key}; were they shards of one sweep?"
                )
            seen[cell.key] = run.path
        cells += run.cells
    in_turn = sorted(runs, key=lambda run: [int(piece) for piece in re.findall(r"(\d+)/", run.header.shard or "")])
    points = itertools.zip_longest(*(_points(run.header.cells) for run in in_turn), fillvalue=())
    planned = tuple(key for of_all in points for keys in of_all for key in keys)
    variants = tuple(dict.fromkeys(name for run in runs for name in run.header.variants))
    shard = ", ".join(run.header.shard for run in runs if run.header.shard) if missing else None
    header = structs.replace(first.header, shard=shard, cells=planned, variants=variants)
    return Run(first.path, header, cells, False, segments)
