"""One side of a comparison: the records of several processes that ran the same code. Never imports torch."""

from __future__ import annotations

from pathlib import Path

from harness.records.file import read_run
from harness.records.schema import RecordError, Run


def side_paths(path: str | Path) -> list[Path]:
    """The records that a side consists of: a record; of a folder its ``*.jsonl`` and its ``*/run.jsonl``, by name.

    Raises RecordError for a folder without any.
    """
    path = Path(path)
    if not path.is_dir():
        return [path]
    found = sorted([*path.glob("*.jsonl"), *path.glob("*/run.jsonl")])
    if not found:
        raise RecordError(
            f"{path}: no record here: neither *.jsonl nor */run.jsonl; give the folder of a run or of runs"
        )
    return found


def read_side(path: str | Path) -> tuple[Run, ...]:
    """Raises RecordError."""
    return tuple(read_run(one) for one in side_paths(path))
