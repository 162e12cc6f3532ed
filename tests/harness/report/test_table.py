"""The table that every report builds, as Markdown and in a terminal."""

import io

import pytest
from rich.console import Console

from spec_decode_bench.harness.report.console import print_table
from spec_decode_bench.harness.report.table import Column, Entry, Table, markdown, markdown_rows, number_column

COLUMNS = (Column("cell"), number_column("base, µs"), number_column("triton_fused", code=True), Column("verdict"))
SLOWER = (Entry("one|two"), Entry("12.345"), Entry("23.456", "9 · 1", "best"), Entry("slower (below)", style="slower"))
SAME = (Entry("c0ffee", style="code"), Entry("1.5"), Entry("skipped a", style="muted"), Entry("same", style="same"))
TABLE = Table("a title", COLUMNS, (SLOWER, SAME), notes=("a: a reason",))


def printed(width, draw=print_table, table=TABLE):
    console = Console(file=io.StringIO(), width=width)
    draw(console, table)
    return console.file.getvalue()


def test_markdown_shows_what_an_entry_is():
    head, rule, first, second = markdown_rows(TABLE)
    assert head == "| cell | base, µs | `triton_fused` | verdict |"
    assert rule == "| --- | ---: | ---: | --- |"
    assert first == "| one\\|two | 12.345 | **23.456**<br>9 · 1 | 🔴 slower (below) |"
    assert second == "| `c0ffee` | 1.5 | skipped a | same |"
    assert markdown_rows(TABLE, most=1) == [head, rule, first]
    assert markdown([TABLE]).splitlines() == ["**a title**", "", head, rule, first, second, "", "a: a reason  "]


@pytest.mark.parametrize("width", [20, 30, 40, 80])
def test_a_terminal_loses_no_text(width):
    text = printed(width)
    assert max(map(len, text.splitlines())) <= width
    words = {word for row in TABLE.rows for entry in row for word in f"{entry.text} {entry.below}".split()}
    assert words <= set(text.split())
