"""What the terminal shows: progress with time left, tables, lists, errors. Plain text where the output is piped."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from harness.records.schema import Cell, Environment
from harness.report.columns import (
    GAP,
    broken,
    column_head,
    entry_width,
    longest,
    parted,
    parts,
    room,
    spaced,
    widths,
    words,
)
from harness.report.tables import Entry, Table
from harness.wording import printable

#: From this terminal width on a list may reserve room for its first column.
ROOMY = 90
#: Width of tables where the output is piped and COLUMNS is not set.
PIPED_WIDTH = 100
#: Seconds until a log gets its first line of progress, and between two lines at most.
FIRST_LINE_S, LONGEST_PAUSE_S = 10.0, 60.0


class PrintableConsole(Console):
    """What is printed cannot control the terminal, whoever wrote it; styles and the progress bar are rich's own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment("\n".join(map(printable, text.split("\n"))), style)


def make_console(stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else shutil.get_terminal_size((PIPED_WIDTH, 24)).columns
    return PrintableConsole(file=stream, width=width, highlight=False, soft_wrap=False)


def print_to_stderr(text: str) -> None:
    make_console(stderr=True).print(Text(text), soft_wrap=True)


def warn(text: str) -> None:
    print_to_stderr(f"warning: {text}")


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
    e = environment
    if e.device == "cuda":
        where = f"{e.gpu} ({e.generation}, {e.sm}, {e.sm_count} SMs), driver {e.driver}, CUDA {e.cuda}"
    else:
        where = f"CPU only: {e.processor}"
    console.print(Text(f"{where}; torch {e.torch}, triton {e.triton}, commit {e.commit}{'+' if e.dirty else ''}"))
    if e.packages:
        console.print(Text(f"wraps {', '.join(f'{name} {version}' for name, version in e.packages.items())}"))
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
    """One below the other; one that is too wide in several parts, each with all rows and some of the variants."""
    for table in tables:
        console.print()
        console.print(Text(table.title, style="bold"))
        for variants in parted(table, console.width) if table.rows else ():
            console.print(_part(table, variants, console.width))
        for note in table.notes:
            console.print(Text(broken(spaced(note), console.width), style="dim"))


def _part(table: Table, variants: Sequence[int], width: int) -> RichTable:
    """Columns for the axes and for some of the variants."""
    axes = [column_head(name) for name in table.axes]
    needed = [entry_width(table, i) for i in variants]
    left = room(width, len(axes) + len(needed)) - sum(needed)
    columns = [[head, *(values[i] for values, _ in table.rows)] for i, head in enumerate(axes)]
    given = widths(columns, left) if axes else []
    drawn = []
    for values, entries in table.rows:
        shown = [broken(value, given_width) for value, given_width in zip(values, given, strict=True)]
        drawn.append([*map(Text, shown), *(_as_text(entries[i]) for i in variants)])
    heads = [*axes, *(column_head(table.variants[i]) for i in variants)]
    return laid_out(heads, drawn, [*given, *needed], right=range(len(axes), len(heads)))


def laid_out(
    heads: Sequence[str],
    rows: Iterable[Sequence[Text]],
    given: Sequence[int],
    right: Container[int] = (),
    gap: int = GAP,
) -> RichTable:
    """A table with columns of ``given`` characters and ``gap`` spaces between them; columns in ``right`` are flush
    right. The texts of the rows already have their line breaks. One space of a gap is rich's column divider.
    """
    drawn = RichTable(box=box.SIMPLE_HEAD, padding=0, show_edge=False, header_style="bold")

    def indented(i: int, text: Text) -> Padding | Text:
        return Padding(text, (0, 0, 0, gap - 1)) if i else text

    for i, (head, width) in enumerate(zip(heads, given, strict=True)):
        justify = "right" if i in right else "left"
        drawn.add_column(
            indented(i, Text(broken(head, width))), width=width + (gap - 1 if i else 0), justify=justify, vertical="top"
        )
    for row in rows:
        drawn.add_row(*map(indented, count(), row))
    return drawn


def _as_text(entry: Entry) -> Text:
    text = Text(entry.main, style="bold green" if entry.best else "dim" if entry.muted else "")
    if entry.second:
        text.append(f"\n{entry.second}", style="dim")
    return text


def print_wall_time(console: Console, by_activity: Mapping[str, float]) -> None:
    """``99 s: 21 starting, 18 verifying, 47 timing, 13 auditing``."""
    shares = ", ".join(f"{seconds:.0f} {activity}" for activity, seconds in by_activity.items())
    console.print(Text(f"{sum(by_activity.values()):.0f} s: {shares}"))


def print_counts(console: Console, cells: Sequence[Cell], reasons: bool = True) -> None:
    """``42 passed, 3 skipped``, then every mismatch and failure in full: these make the exit code 1."""
    counts = Counter(cell.status for cell in cells)
    console.print(Text(", ".join(f"{count} {status}" for status, count in counts.items()) or "no cell"))
    shown: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells if reasons else ():
        if cell.status.is_bad:
            shown.setdefault((f"{cell.operator}/{cell.variant}", f"{cell.status}: {cell.reason}"), []).append(cell)
    for (variant, text), same in shown.items():
        more = f" and {len(same) - 1} more point{'s' * (len(same) > 2)}" if len(same) > 1 else ""
        console.print(Text(f"{variant} at {same[0].point}{more}: {text}", style="red"))


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


def print_rows(
    console: Console, head: Sequence[str], rows: Iterable[Sequence[str]], first: int = 0, gap: int = GAP
) -> None:
    """A plain list with a header.

    first: width that the first column gets before the others on a wide terminal.
    gap:   spaces between columns, at least 1.
    """
    rows = list(rows)
    columns = [[name, *(row[i] for row in rows)] for i, name in enumerate(head)]
    given = widths(columns, room(console.width, len(head), gap), first if console.width >= ROOMY else 0)
    shown = [[Text(broken(value, given_width)) for value, given_width in zip(row, given, strict=True)] for row in rows]
    console.print(laid_out(head, shown, given, gap=gap))


def print_checks(console: Console, results: Mapping[str, Mapping[str, str]]) -> None:
    """A row for each variant, a column for each check; in several tables where one would be too wide.

    results: variant -> check -> one word. All variants have the same checks.
    """
    variants = ["variant", *results]
    checks = next(iter(results.values()))
    columns = {check: [column_head(check), *(row[check] for row in results.values())] for check in checks}
    # Names of variants are folded only where this saves a table.
    ways = [_packed(columns, console.width - longest(variants, pieces)) for pieces in (words, parts)]
    for i, shown in enumerate(min(ways, key=len)):
        if i:
            console.print()
        heads, *rows = zip(variants, *(columns[check] for check in shown), strict=True)
        print_rows(console, heads, rows, first=max(map(len, variants)), gap=1)


def _packed(columns: Mapping[str, Sequence[str]], width: int) -> list[list[str]]:
    """Names of columns, in lists of which each fits ``width`` with a space before every column."""
    lists: list[list[str]] = [[]]
    for name in columns:
        if lists[-1] and sum(1 + longest(columns[one], words) for one in (*lists[-1], name)) > width:
            lists.append([])
        lists[-1].append(name)
    return lists
