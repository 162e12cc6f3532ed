"""Renders a history: which commit changed which variant, for a terminal and as markdown."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from spec_decode_bench.harness.analysis.stats import geometric_mean
from spec_decode_bench.harness.numbers import counted, signed, significant
from spec_decode_bench.harness.report.console import print_tables
from spec_decode_bench.harness.report.table import (
    Column,
    Entry,
    Table,
    as_text,
    markdown_rows,
    number_column,
    text_rows,
)
from spec_decode_bench.regression.history import History

#: Task that the markdown lists; a history's picture and --only show others.
MAX_CELLS = 200
DIGITS = 4


@dataclass(frozen=True)
class Row:
    """One variant at one commit: how many of its cells changed there, and by how much (geometric mean, extremes)."""

    at: int
    name: str
    changed: int
    cells: int
    ratios: tuple[float, ...]

    @property
    def texts(self) -> tuple[str, str, str]:
        """Geometric mean of the changes, the least and the greatest of several, cells."""
        middle = geometric_mean(self.ratios)
        between = f"{percent(min(self.ratios))} … {percent(max(self.ratios))}" if len(self.ratios) > 1 else ""
        return percent(middle), between, f"{self.changed} of {self.cells}"


def percent(ratio: float) -> str:
    """A ratio as a change in per cent: ``−20.0 %``."""
    return f"{signed((ratio - 1) * 100, '.1f')}\N{NO-BREAK SPACE}%"


def rows(history: History) -> list[Row]:
    """Commit by commit, at each the largest change first."""
    changes: dict[tuple[int, str], list[float]] = {}
    cells: dict[str, int] = {}
    for series in history.series:
        name = series.cell.variant_id
        cells[name] = cells.get(name, 0) + 1
        for change in series.changes:
            changes.setdefault((change.at, name), []).append(change.ratio)
    by_commit = [Row(at, name, len(ratios), cells[name], tuple(ratios)) for (at, name), ratios in changes.items()]
    return sorted(by_commit, key=lambda row: (row.at, -max(abs(math.log(ratio)) for ratio in row.ratios)))


def summary(history: History) -> list[str]:
    """What was compared, and how many cells changed, in sentences."""
    processes = sum(len(state.runs) for state in history.states)
    first, last = history.states[0], history.states[-1]
    span = f"{first.name} ({first.date}) to {last.name} ({last.date})"
    lines = [
        f"{history.metric} of {counted(len(history.series), 'cell')} over {counted(len(history.states), 'commit')}, "
        f"{span}, {processes} {'process' if processes == 1 else 'processes'}"
    ]
    if history.blind:
        return [*lines, f"no change is marked: {history.blind}"]
    return [*lines, f"{counted(len(history.changed), 'cell')} changed by more than {history.threshold * 100:g} %"]


def heading(history: History, at: int) -> str:
    """A commit, its date, and what else a change there may come from."""
    state = history.states[at]
    return "; ".join([f"{state.name} ({state.date})", *([f"also {', '.join(state.differs)}"] if state.differs else [])])


def tables(history: History) -> list[Table]:
    """What changed at each commit."""
    columns = (Column("variant"), number_column("change"), Column("of a cell"), number_column("cells"))
    return [
        Table(heading(history, at), columns, text_rows((row.name, *row.texts) for row in of_commit), kind="commit")
        for at, of_commit in itertools.groupby(rows(history), lambda row: row.at)
    ]


def cells_table(history: History) -> Table:
    """Every change of every cell."""
    columns = (Column("cell"), Column("commit"), number_column("change"), number_column("µs"))
    entries = tuple(
        (
            Entry(series.cell.key),
            Entry(history.states[change.at].name, style="code"),
            Entry(percent(change.ratio)),
            Entry(f"{significant(change.base_us, DIGITS)} → {significant(change.head_us, DIGITS)}"),
        )
        for series in history.changed
        for change in series.changes
    )
    return Table(f"{counted(len(entries), 'change')} by cell", columns, entries, kind="cells")


def history_console(history: History, console: Console) -> None:
    """Print what changed at each commit."""
    for line in summary(history):
        console.print(Text(line))
    print_tables(console, tables(history))


def history_markdown(history: History, picture: str | None) -> str:
    """As the terminal, with every change by cell. picture: its path relative to the file."""
    lines = ["### Times over commits", "", *(f"{as_text(line)}.  " for line in summary(history)), ""]
    if picture:
        lines += [f"![times over commits, changes marked]({picture})", ""]
    for table in tables(history):
        lines += [f"**{as_text(table.title)}**", "", *markdown_rows(table), ""]
    cells = cells_table(history)
    if cells.rows:
        lines += [f"<details><summary>{cells.title}</summary>", "", *markdown_rows(cells, MAX_CELLS), ""]
        if len(cells.rows) > MAX_CELLS:
            lines += [f"{len(cells.rows) - MAX_CELLS} more; choose cells with `--only`.", ""]
        lines.append("</details>")
    return "\n".join(lines) + "\n"
