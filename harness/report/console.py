"""What a person sees: progress with time left, tables, lists, errors. Plain text where the output is no terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from harness.report.tables import Table
from harness.results.records import Cell, Environment

#: From this width on a list may ask for a least width of its first column.
ROOMY = 90
#: Width of tables where the output is piped and nobody says otherwise.
PIPED_WIDTH = 100


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """A reader that went away (`| head`) is no error; rich would exit with 1."""
        raise


def make_console(stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else shutil.get_terminal_size((PIPED_WIDTH, 24)).columns
    return _Console(file=stream, width=width, highlight=False, soft_wrap=False)


@contextmanager
def progress_bar(console: Console, total: int):
    """Yields update(done, doing). On a terminal a live bar with the time left; in a pipe nothing, tables follow anyway."""
    if not console.is_terminal:
        yield lambda done, doing: None
        return
    columns = (
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting the worker", total=total)

        def update(done: int, doing: str) -> None:
            room = max(console.width - 70, 10)
            bar.update(task, completed=done, description=escape(doing[:room]))

        yield update


def print_environment(console: Console, environment: Environment) -> None:
    e = environment
    if e.device == "cuda":
        where = f"{e.gpu} ({e.generation}, {e.sm}, {e.sm_count} SMs), driver {e.driver}, CUDA {e.cuda}"
    else:
        where = f"CPU only: {e.processor}"
    console.print(Text(f"{where}; torch {e.torch}, triton {e.triton}, commit {e.commit}{'+' if e.dirty else ''}"))
    for note in e.notes:
        console.print(Text(f"note: {note}"))


def print_doubts(console: Console, uncalibrated: Sequence[str]) -> None:
    """A ruler that missed its tolerances says so before any of its figures."""
    if uncalibrated:
        console.print(Text("UNCALIBRATED: the ruler of this run missed its tolerances; see `bench.py doctor`", style="bold red"))
        for reason in uncalibrated:
            console.print(Text(f"  {reason}", style="red"))


def print_tables(console: Console, tables: Iterable[Table]) -> None:
    for table in tables:
        console.print()
        console.print(Text(table.title, style="bold"))
        drawn = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
        for axis in table.axes:
            drawn.add_column(Text(axis.replace("_", "\n")), justify="left", vertical="top", overflow="fold")
        for variant in table.variants:
            drawn.add_column(Text(variant.replace("_", "\n")), justify="right", vertical="top", overflow="fold")
        for values, boxes in table.rows:
            drawn.add_row(*(Text(value) for value in values), *(_box(b) for b in boxes))
        console.print(drawn)
        for note in table.notes:
            console.print(Text(note, style="dim"))


def _box(content) -> Text:
    text = Text(content.main, style="bold green" if content.best else "dim" if content.muted else "")
    if content.second:
        text.append(f"\n{content.second}", style="dim")
    return text


def print_counts(console: Console, cells: Sequence[Cell]) -> None:
    """``42 passed, 3 skipped``, then every mismatch and failure in full: these make the run end with 1."""
    counts: dict[str, int] = {}
    for cell in cells:
        counts[cell.status] = counts.get(cell.status, 0) + 1
    console.print(Text(", ".join(f"{count} {status}" for status, count in counts.items()) or "no cell"))
    shown: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.status in ("mismatch", "failed"):
            shown.setdefault((f"{cell.operator}/{cell.variant}", f"{cell.status}: {cell.reason}"), []).append(cell)
    for (variant, text), same in shown.items():
        more = f" and {len(same) - 1} more point{'s' * (len(same) > 2)}" if len(same) > 1 else ""
        console.print(Text(f"{variant} at {same[0].point}{more}: {text}", style="red"))


def print_compiled(console: Console, compiled: Mapping[str, Mapping[str, str]]) -> None:
    """One line for all sources that compile, one for each error with the architectures it is the error of."""
    good: dict[str, list[str]] = {}
    for source, results in compiled.items():
        archs: dict[str, list[str]] = {}
        for arch, result in results.items():
            archs.setdefault(result, []).append(arch)
        if "ok" in archs:
            good.setdefault(", ".join(archs.pop("ok")), []).append(Path(source).name)
        for result, bad in archs.items():
            console.print(Text(f"{source}: does not compile for {', '.join(bad)}: {result}", style="red"))
    for archs_of_all, sources in good.items():
        console.print(Text(f"compiled for {archs_of_all}: {', '.join(sources)}"))


def print_rows(console: Console, head: Sequence[str], rows: Iterable[Sequence[str]], first: int = 0, gap: int = 2) -> None:
    """A plain list with a header. first: least width of the first column where there is room, as rich cuts off what a least
    width pushes over the edge; gap: spaces between columns, one at least."""
    first = first if console.width >= ROOMY else 0
    drawn = RichTable(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), show_edge=False, header_style="bold")
    for i, name in enumerate(head):
        drawn.add_column(name, overflow="fold", min_width=first if i == 0 else None)
    for row in rows:
        drawn.add_row(*(Text(value) for value in row))
    console.print(drawn)
