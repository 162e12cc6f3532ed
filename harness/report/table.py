"""The table that every report builds, and its rendering as Markdown; harness.report.console prints it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spec_decode_bench.harness.printable import printable
from spec_decode_bench.harness.records.schema import RecordError

#: What an entry is: the fastest of its row, no result, an identifier, or a verdict. It decides colours and marks.
Style = Literal["", "best", "muted", "code", "slower", "faster", "same", "unsure"]
#: Before an entry in Markdown.
MARKS: dict[Style, str] = {"slower": "🔴 ", "faster": "🟢 ", "unsure": "🟡 "}


@dataclass(frozen=True)
class Entry:
    """One cell of a table. below: a second line."""

    text: str
    below: str = ""
    style: Style = ""


@dataclass(frozen=True)
class Column:
    """align: of the entries. fold: a terminal may break them over lines. code: the head is an identifier."""

    head: str
    align: Literal["left", "right"] = "left"
    fold: bool = True
    code: bool = False


@dataclass(frozen=True)
class Table:
    """notes: lines below it. row_heads: columns that tell the rows apart; a terminal repeats them beside columns that
    have no room, and sets them flush left. kind: which of a report's tables it is.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()
    row_heads: int = 1
    kind: str = ""

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads of all columns."""
        return tuple(column.head for column in self.columns)


def number_column(head: str, code: bool = False) -> Column:
    """A column of numbers."""
    return Column(head, "right", fold=False, code=code)


def text_rows(rows: Iterable[Iterable[str]]) -> tuple[tuple[Entry, ...], ...]:
    """Rows of plain texts."""
    return tuple(tuple(map(Entry, row)) for row in rows)


def variant_table(
    title: str,
    axes: Sequence[str],
    variants: Sequence[str],
    rows: Iterable[tuple[Sequence[str], Sequence[Entry]]],
    notes: Sequence[str] = (),
    kind: str = "",
) -> Table:
    """A column for each axis, one of numbers for each variant. rows: (texts of the axes, entries of the variants)."""
    columns = (
        *(Column(axis.replace("_", " "), "right") for axis in axes),
        *(number_column(variant, code=True) for variant in variants),
    )
    entries = tuple((*map(Entry, texts), *of_variants) for texts, of_variants in rows)
    return Table(title, columns, entries, tuple(notes), row_heads=len(axes), kind=kind)


def markdown(tables: Iterable[Table]) -> str:
    """The tables with their titles and notes, for a README or a pull request."""
    parts = ["\n".join([f"**{as_text(table.title)}**", "", *untitled(table)]) for table in tables]
    return "\n\n".join(parts) + "\n"


def untitled(table: Table) -> list[str]:
    """The lines of a table and its notes in Markdown."""
    rows = [*markdown_rows(table), ""] if table.rows else []
    return [*rows, *(f"{as_text(note)}  " for note in table.notes)]


def markdown_rows(table: Table, most: int | None = None) -> list[str]:
    """The lines of the table alone: heads and the first ``most`` rows, all where it is None."""
    heads = [as_code(column.head) if column.code else as_text(column.head) for column in table.columns]
    rule = ["---:" if column.align == "right" else "---" for column in table.columns]
    rows = [map(_markdown_entry, row) for row in table.rows[:most]]
    return [f"| {' | '.join(row)} |" for row in (heads, rule, *rows)]


def _markdown_entry(entry: Entry) -> str:
    text = as_code(entry.text) if entry.style == "code" else as_text(entry.text)
    text = f"**{text}**" if entry.style == "best" else f"{MARKS.get(entry.style, '')}{text}"
    return f"{text}<br>{as_text(entry.below)}" if entry.below else text


#: What is markup wherever it stands: code, emphasis, strike-through, links, HTML, entities, cells, formulas.
_MARKUP = re.compile(r"[\\`*~\[<|$]|&(?=[#\w])|(?<![^\W_])_|_(?![^\W_])")
#: What begins a heading, a list, a quotation or an underline at the start of a line.
_AT_START = re.compile(r"^(?:[=>]|[-+](?=\s|$)|-(?=-)|#(?!\w)|\d+(?=[.)](?:\s|$)))")
#: What GitHub turns into a link although it is no markup, in two halves: mentions, numbers of issues, addresses.
_LINKED = re.compile(r"(@|#|\bGH-)(?=\w)|(:)(?=//)|(\bwww)(?=\.)", re.IGNORECASE)


def as_text(value: str) -> str:
    """On one line of GitHub's Markdown, in a table too."""
    text = _MARKUP.sub(r"\\\g<0>", printable(" ".join(value.split("\n"))).strip())
    text = _AT_START.sub(lambda start: f"{start[0]}\\" if start[0].isdigit() else f"\\{start[0]}", text)
    return _LINKED.sub(r"\g<0><!-- -->", text)


def as_code(value: str) -> str:
    """As a code span, outside of a table or as the head of a column."""
    text = printable(value).replace("|", r"\|")
    longest = max(map(len, re.findall("`+", text)), default=0)
    pad = " " if longest else ""
    return f"{'`' * (longest + 1)}{pad}{text}{pad}{'`' * (longest + 1)}" if text.strip() else ""


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
