"""The tables of a run or a profile in its folder, beside what they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from spec_decode_bench.harness.records.schema import RecordError
from spec_decode_bench.harness.report.table import Table, markdown

#: Its name, and the line by which a later run knows that it is not the user's.
TABLE, OURS = "table.md", "<!-- written by bench.py, and drawn again from run.jsonl -->"


def refuse_foreign_table(folder: Path) -> None:
    """Raises RecordError where a new run would overwrite a table.md that none of this suite's runs wrote."""
    path = folder / TABLE
    with suppress(OSError):
        if path.exists() and not path.read_bytes().startswith(OURS.encode()):
            raise RecordError(
                f"{path} was not written by a run and would be overwritten; choose another folder with --out"
            )


def write_tables(folder: Path, tables: Sequence[Table], below: str = "") -> None:
    """below: what follows the tables. Raises OSError."""
    (folder / TABLE).write_text(f"{OURS}\n\n{markdown(tables)}{below}", encoding="utf-8")
