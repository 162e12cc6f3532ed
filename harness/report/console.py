"""What the terminal shows: progress with time left, tables, lists, errors. Plain text where the output is piped."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.printable import printable
from spec_decode_bench.harness.records.schema import Environment, Outcome
from spec_decode_bench.harness.records.sentences import ending
from spec_decode_bench.harness.report.folding import folded, longest_line, longest_part, longest_word, spaced
from spec_decode_bench.harness.report.table import Column, Style, Table, text_rows

#: From this terminal width on a list may reserve room for its first column.
ROOMY = 90
#: Width of tables where the output is piped and COLUMNS is not set.
PIPED_WIDTH = 100
#: Spaces between columns.
GAP = 2
#: What the styles of entries look like.
STYLES: dict[Style, str] = {
    "best": "bold green",
    "muted": "dim",
    "slower": "bold red",
    "faster": "green",
    "same": "dim",
    "unsure": "yellow",
}
#: Seconds after which a command says what it does, and between two lines of progress in a log at most.
FIRST_LINE_S, LONGEST_PAUSE_S = 5.0, 60.0


class PrintableConsole(Console):
    """What is printed cannot control the terminal, whoever wrote it; styles and the progress bar are rich's own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment("\n".join(map(printable, text.split("\n"))), style)


def make_console(stderr: bool = False) -> Console:
    """A console of the terminal's width, or of a pipe's."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else shutil.get_terminal_size((PIPED_WIDTH, 24)).columns
    return PrintableConsole(file=stream, width=width, highlight=False, soft_wrap=False)


def print_to_stderr(text: str) -> None:
    """Print a message beside the results, on one line."""
    make_console(stderr=True).print(Text(printable(text)), soft_wrap=True)


def warn(text: str) -> None:
    """Print a warning beside the results."""
    print_to_stderr(f"warning: {text}")


@contextmanager
def saying(what: str) -> Iterator[None]:
    """Says on stderr what a command does, where that takes longer than FIRST_LINE_S."""
    timer = threading.Timer(FIRST_LINE_S, print_to_stderr, [f"{what} …"])
    timer.daemon = True
    with suppress(RuntimeError):  # the system starts no thread
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def progress_bar(console: Console, total: int) -> Iterator[Callable[[int, str], None]]:
    """Yields update(done, doing): on stderr, a live bar with the time left on a terminal, else a line now and then.

    console: where the results go, which may be a pipe.
    """
    shown = make_console(stderr=True)
    if not shown.is_terminal:
        yield _progress_lines(shown, total)
        return
    bar_width = 24 if shown.width >= ROOMY else 8
    columns = (
        BarColumn(bar_width),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=shown, transient=True, redirect_stdout=console.is_terminal) as bar:
        task = bar.add_task("starting the worker", total=total)

        def update(done: int, doing: str) -> None:
            room = max(shown.width - bar_width - 36, 10)  # the counts and times take about 36
            bar.update(task, completed=done, description=escape(doing[:room]))

        yield update


def _progress_lines(console: Console, total: int) -> Callable[[int, str], None]:
    """A line for a log: the first after FIRST_LINE_S, each pause twice as long, up to LONGEST_PAUSE_S."""
    begun, pause_s = time.monotonic(), FIRST_LINE_S
    due_s = pause_s

    def update(done: int, doing: str) -> None:
        nonlocal due_s, pause_s
        if doing and (elapsed_s := time.monotonic() - begun) >= due_s:
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            due_s = elapsed_s + pause_s
            console.print(Text(f"{done} of {total} after {elapsed_s:.0f} s: {doing}"), soft_wrap=True)

    return update


def print_environment(console: Console, environment: Environment) -> None:
    """Where a run was measured, and with what."""
    e = environment
    if e.device == "cuda":
        where = f"{e.gpu} ({e.generation}, {e.sm}, {e.sm_count} SMs), driver {e.driver}, CUDA {e.cuda}"
    else:
        where = f"CPU only: {e.processor}"
    console.print(Text(f"{where}; torch {e.torch}, triton {e.triton}, commit {e.commit}{'+' if e.dirty else ''}"))
    if e.packages:
        console.print(Text(f"wraps {', '.join(f'{name} {e.package(name)}' for name in e.packages)}"))
    for note in e.notes:
        console.print(Text(f"note: {note}"))


def print_calibration_errors(console: Console, uncalibrated: Sequence[str]) -> None:
    """Printed before any time of a run whose calibration missed its tolerances."""
    if uncalibrated:
        console.print(
            Text("UNCALIBRATED: the timer of this run missed its tolerances; see `bench.py doctor`", style="bold red")
        )
        for reason in uncalibrated:
            console.print(Text(f"  {reason}", style="red"))


def print_tables(console: Console, tables: Iterable[Table]) -> None:
    """With titles and notes, one below the other; each note once."""
    shown: set[str] = set()
    for table in tables:
        console.print()
        console.print(Text(table.title, style="bold"))
        if table.rows:
            print_table(console, table)
        for note in dict.fromkeys(table.notes):
            if note not in shown:
                print_text(console, spaced(note), "dim")
        shown.update(table.notes)


def print_text(console: Console, text: str, style: str = "") -> None:
    """A paragraph, whose lines break as those of a table's entries do."""
    console.print(_Text(text, style=style))


def print_table(console: Console, table: Table) -> None:
    """Without title and notes; one that is too wide in several parts, each with all rows and some of the columns."""
    table = _with_whole_heads(table, console.width)
    for i, shown in enumerate(_parts(table, console.width)):
        if i:
            console.print()
        drawn = RichTable(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold"
        )
        for j in shown:
            column = table.columns[j]
            align = "left" if j < table.row_heads else column.align
            head = _Text(column.head, most=longest_word(column.head))
            drawn.add_column(head, justify=align, no_wrap=not column.fold)
        for row in table.rows:
            drawn.add_row(*(_Text(row[j].text, row[j].below, STYLES.get(row[j].style, "")) for j in shown))
        console.print(drawn)


def _with_whole_heads(table: Table, width: int) -> Table:
    """With row heads that are not folded, where they are short and this takes no more parts."""
    columns = (replace(column, fold=column.fold and i >= table.row_heads) for i, column in enumerate(table.columns))
    whole = replace(table, columns=tuple(columns))
    short = sum(_least_width(whole, i) for i in range(table.row_heads)) <= width // 3
    return whole if short and len(_parts(whole, width)) == len(_parts(table, width)) else table


def _parts(table: Table, width: int) -> list[list[int]]:
    """Indices of the columns, by the parts that a table is printed in: as few as fit."""
    least = [_least_width(table, i) + GAP for i in range(len(table.columns))]
    heads = list(range(table.row_heads))
    parts = [heads.copy()]
    for i in range(table.row_heads, len(least)):
        if len(parts[-1]) > len(heads) and sum(least[j] for j in (*parts[-1], i)) - GAP > width:
            parts.append(heads.copy())
        parts[-1].append(i)
    return parts


def _least_width(table: Table, i: int) -> int:
    """Of a column: no part of a name is broken, and no line of an entry that is not to be folded."""
    measure = longest_part if table.columns[i].fold else longest_line
    entries = (row[i] for row in table.rows)
    return max([longest_word(table.columns[i].head), *(measure(f"{entry.text}\n{entry.below}") for entry in entries)])


@dataclass(frozen=True)
class _Text:
    """A text that is folded once rich has given its column a width. most: the width it asks for, None for that of its
    longest line.
    """

    text: str
    below: str = ""
    style: str = ""
    most: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = Text(folded(self.text, options.max_width), style=self.style)
        if self.below:
            text.append(f"\n{folded(self.below, options.max_width)}", style="dim")
        yield text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        lines = f"{self.text}\n{self.below}"
        return Measurement(longest_part(lines), self.most or longest_line(lines))


def print_seconds(console: Console, seconds: Mapping[str, float], wall_s: float | None = None) -> None:
    """``103 s: start 3.1, import 1.0, …, other 0.4``, which add up to ``wall_s``, by default their sum; where processes
    ran beside each other it is less. Nothing where the record does not tell.
    """
    if seconds:
        spent = sum(seconds.values())
        wall_s = spent if wall_s is None else wall_s
        beside = ", some beside each other" if spent - wall_s >= 0.5 else ""
        other = {"other": wall_s - spent} if wall_s - spent >= 0.05 else {}
        named = ", ".join(f"{activity} {s:.1f}" for activity, s in {**seconds, **other}.items())
        console.print(Text(f"{wall_s:.0f} s: {named}{beside}", style="dim"))


def print_counts(console: Console, lines: Sequence[Outcome], noun: str = "cell") -> None:
    """``42 passed, 3 skipped``."""
    counts = Counter(line.status for line in lines)
    console.print(Text(", ".join(f"{count} {status}" for status, count in counts.items()) or f"no {noun}"))


def print_endings(console: Console, lines: Iterable[tuple[str, Outcome]], noun: str) -> None:
    """How the lines ended, each reason of a variant or stack once. lines: (its name, line)."""
    shown: dict[tuple[str, str], list[Outcome]] = {}
    for name, line in lines:
        shown.setdefault((name, f"{line.status}: {ending(line)}"), []).append(line)
    for (name, text), same in shown.items():
        more = f" and {counted(len(same) - 1, f'more {noun}')}" if len(same) > 1 else ""
        style = "red" if same[0].status.is_bad else "dim"
        console.print(Text(f"{name} at {same[0].point}{more}: {text}", style=style))


def print_compiled(console: Console, compiled: Mapping[str, Mapping[str, str]]) -> None:
    """One line for all sources that compile, one for each error with the architectures it occurs for."""
    good: dict[str, list[str]] = {}
    for source, results in compiled.items():
        archs: dict[str, list[str]] = {}
        for arch, result in results.items():
            archs.setdefault(result.replace("\\n", "\n"), []).append(arch)  # line breaks as records spell them
        if "ok" in archs:
            good.setdefault(", ".join(archs.pop("ok")), []).append(Path(source).name)
        for result, bad in archs.items():
            console.print(Text(f"{source}: does not compile for {', '.join(bad)}: {result}", style="red"))
    for archs_of_all, sources in good.items():
        console.print(Text(f"compiled for {archs_of_all}: {', '.join(sources)}"))


def print_rows(console: Console, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A plain list with heads."""
    print_table(console, Table("", tuple(map(Column, heads)), text_rows(rows)))


def print_checks(console: Console, results: Mapping[str, Mapping[str, str]]) -> None:
    """A row for each variant, a column for each check. results: variant -> check -> one word. All variants have the
    same checks.
    """
    checks = next(iter(results.values()))
    columns = (Column("variant"), *(Column(check, fold=False) for check in checks))
    rows = text_rows((variant, *(outcomes[check] for check in checks)) for variant, outcomes in results.items())
    print_table(console, Table("", columns, rows))
