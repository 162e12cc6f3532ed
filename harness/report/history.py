"""Renders a history: which commit changed which variant, for a terminal and as markdown. Never imports torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from harness.analysis.history import Change, History, Series
from harness.analysis.stats import geometric_mean
from harness.report.console import print_rows
from harness.report.escape import as_code, as_text
from harness.wording import counted, significant

#: Cells that the markdown lists; a history's picture and --only show others.
MAX_CELLS = 200
DIGITS = 4
HEADS = ("variant", "change", "of a cell", "cells")


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
    return f"{(ratio - 1) * 100:+.1f}\N{NO-BREAK SPACE}%".replace("-", "−")


def rows(history: History) -> list[Row]:
    """Commit by commit, at each the largest change first."""
    changes: dict[tuple[int, str], list[float]] = {}
    cells: dict[str, int] = {}
    for series in history.series:
        name = f"{series.cell.operator}/{series.cell.variant}"
        cells[name] = cells.get(name, 0) + 1
        for change in series.changes:
            changes.setdefault((change.at, name), []).append(change.ratio)
    found = [Row(at, name, len(ratios), cells[name], tuple(ratios)) for (at, name), ratios in changes.items()]
    return sorted(found, key=lambda row: (row.at, -max(abs(math.log(ratio)) for ratio in row.ratios)))


def summary(history: History) -> list[str]:
    """What was compared, and how many cells changed, in sentences."""
    processes = sum(len(state.runs) for state in history.states)
    first, last = history.states[0], history.states[-1]
    span = f"{first.commit} ({first.date}) to {last.commit} ({last.date})"
    lines = [
        f"{history.figure} of {counted(len(history.series), 'cell')} over {counted(len(history.states), 'commit')}, "
        f"{span}, {processes} {'process' if processes == 1 else 'processes'}"
    ]
    if history.blind:
        return [*lines, f"no change is marked: {history.blind}"]
    return [*lines, f"{counted(len(history.changed), 'cell')} changed by more than {history.threshold * 100:g} %"]


def heading(history: History, at: int) -> str:
    """A commit, its date, and what else a change there may come from."""
    state = history.states[at]
    return "; ".join(
        [f"{state.commit} ({state.date})", *([f"also {', '.join(state.differs)}"] if state.differs else [])]
    )


def history_console(history: History, console: Console) -> None:
    for line in summary(history):
        console.print(Text(line))
    for at, found in itertools.groupby(rows(history), lambda row: row.at):
        console.print()
        console.print(Text(heading(history, at), style="bold"))
        print_rows(console, HEADS, [(row.name, *row.texts) for row in found])


def history_markdown(history: History, picture: str | None) -> str:
    """picture: its path relative to the file."""
    lines = ["### Times over commits", "", *(f"{as_text(line)}.  " for line in summary(history)), ""]
    if picture:
        lines += [f"![times over commits, changes marked]({picture})", ""]
    for at, found in itertools.groupby(rows(history), lambda row: row.at):
        lines += [f"**{as_text(heading(history, at))}**", "", f"| {' | '.join(HEADS)} |", "|---|---:|---|---:|"]
        lines += [f"| {' | '.join(map(as_text, (row.name, *row.texts)))} |" for row in found]
        lines.append("")
    return "\n".join([*lines, *(_details(history) if history.changed else [])]) + "\n"


def _details(history: History) -> Iterator[str]:
    listed = [(series, change) for series in history.changed for change in series.changes]
    yield f"<details><summary>{counted(len(listed), 'change')} by cell</summary>"
    yield ""
    yield "| cell | commit | change | µs |"
    yield "|---|---|---:|---:|"
    for series, change in listed[:MAX_CELLS]:
        yield _detail(history, series, change)
    yield ""
    if len(listed) > MAX_CELLS:
        yield f"{len(listed) - MAX_CELLS} more; choose cells with `--only`."
        yield ""
    yield "</details>"


def _detail(history: History, series: Series, change: Change) -> str:
    times = f"{significant(change.base_us, DIGITS)} → {significant(change.head_us, DIGITS)}"
    commit = as_code(history.states[change.at].commit)
    return f"| {as_text(series.cell.key)} | {commit} | {percent(change.ratio)} | {times} |"
