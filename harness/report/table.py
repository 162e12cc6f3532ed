"""The table that every report builds, and its rendering as Markdown; harness.report.console prints it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from spec_decode_bench.harness.report.escape import as_code, as_text

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
