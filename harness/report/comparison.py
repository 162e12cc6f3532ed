"""Renders a comparison: a comment for a pull request, and the same for a terminal. It derives no verdicts."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scipy
from jinja2 import Environment as Templates
from jinja2 import FileSystemLoader, StrictUndefined
from rich.console import Console
from rich.text import Text

from harness.analysis.compare import CORRELATED, GATING, THRESHOLD, VERDICTS, CellComparison, Comparison, Transition
from harness.analysis.stats import FIGURES, Interval
from harness.analysis.warnings import warnings
from harness.records.schema import Run
from harness.report.columns import broken, room, spaced, widths
from harness.report.console import laid_out
from harness.report.escape import as_code, as_text

#: GitHub refuses a comment of more than 65,536 characters; tables are cut until it fits.
COMMENT_CHARACTERS = 65_000
#: Longer values are cut in tables; the record holds them in full.
VALUE_CHARACTERS = 200

STYLES = {"slower": "bold red", "faster": "green", "same": "dim", "unsure": "yellow"}
MARKS = {"slower": "🔴 slower", "faster": "🟢 faster", "same": "same", "unsure": "🟡 unsure"}


@dataclass(frozen=True)
class Summary:
    """One figure over all cells of a variant: geometric mean, least and greatest of the ratios head / base."""

    operator: str
    variant: str
    figure: str
    cells: int
    ratio: float
    least: float
    greatest: float


def summaries(cells: Iterable[CellComparison]) -> list[Summary]:
    """Per operator, variant and figure. With a geometric mean, twice as slow and twice as fast cancel."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for cell in cells:
        if cell.ratio.median > 0:
            groups.setdefault((cell.operator, cell.variant, cell.figure), []).append(cell.ratio.median)
    return [Summary(*group, len(r), float(scipy.stats.gmean(r)), min(r), max(r)) for group, r in groups.items()]


def headline(comparison: Comparison, strong: str = "") -> str:
    """``2 slower, 1 faster, 40 same, 3 unsure (gpu_us, threshold 2 %)``.

    strong: mark put around the counts that make the comparison fail, such as ``**``.
    """
    counts = comparison.counts(*comparison.gating)
    parts = [f"{strong}{len(comparison.broken)} broken{strong}"] if comparison.broken else []
    parts += [
        f"{strong}{counts[v]} {v}{strong}" if v == "slower" and counts[v] else f"{counts[v]} {v}" for v in VERDICTS
    ]
    if comparison.untimed:
        parts.append(f"{len(comparison.untimed)} no longer timed")
    return f"{', '.join(parts)} ({', '.join(comparison.gating)}, threshold {comparison.threshold * 100:g} %)"


def remarks(comparison: Comparison) -> list[str]:
    """The counts of the figures that do not decide the exit code, a line each."""
    lines = []
    for figure in FIGURES:
        counts = comparison.counts(figure)
        if counts and figure not in comparison.gating:
            lines.append(
                f"{figure}, which does not affect the exit code: "
                + ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
                + "."
            )
    return lines


def run_warnings(comparison: Comparison) -> list[str]:
    """What a reader must know of either run before relying on the verdicts."""
    return [
        f"{side}: {text}"
        for side, run in (("base", comparison.base), ("head", comparison.head))
        for text in warnings(run)
    ]


def explanation(comparison: Comparison) -> str:
    threshold, floor = f"{comparison.threshold * 100:g} %", f"{comparison.floor_us:g} µs"
    return (
        f"slower: the 95 % interval of the ratio of medians lies above +{threshold} and the medians differ by more "
        f"than {floor}; faster: the same below −{threshold}; same: that interval within ±{threshold}; unsure: anything "
        "else. "
        f"Exit code {comparison.exit_code}."
    )


def command(comparison: Comparison) -> str:
    """The command that repeats this comparison."""
    parts = ["python", "bench.py", "compare", comparison.base.path, comparison.head.path]
    if comparison.threshold != THRESHOLD:
        parts += ["--threshold", f"{comparison.threshold:g}"]
    if comparison.gating != GATING[comparison.base.header.environment.device]:
        parts += [word for figure in comparison.gating for word in ("--figure", figure)]
    return shlex.join(parts)


def sections(comparison: Comparison) -> list[tuple[str, list[Transition]]]:
    titled = {
        "Broken: passed in base, wrong or failing in head": comparison.broken,
        "Timed in base, no comparable time in head": comparison.lost,
        "In base only": comparison.base_only,
        "In head only": comparison.head_only,
        "Fixed": comparison.fixed,
    }
    return [(title, transitions) for title, transitions in titled.items() if transitions]


def changed(cells: Iterable[CellComparison]) -> list[CellComparison]:
    """Slower first, then faster, then unsure; within each the largest change first."""
    order = ("slower", "faster", "unsure")
    return sorted(
        (cell for cell in cells if cell.verdict in order),
        key=lambda cell: (order.index(cell.verdict), -_size(cell.ratio.median)),
    )


def comparison_markdown(comparison: Comparison) -> str:
    """A comment for a pull request in GitHub's Markdown, cut to the length that GitHub accepts."""
    templates = Templates(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    templates.filters |= {
        "change": _change,
        "percent": _percent,
        "cell": _cell,
        "spaced": spaced,
        "commit": _commit,
        "device": _device,
    }
    gating = comparison.gating_cells
    values = {
        "comparison": comparison,
        "headline": headline(comparison, "**"),
        "correlated": CORRELATED,
        "sections": sections(comparison),
        "changed": changed(gating),
        "everything": gating + [cell for cell in comparison.cells if cell.figure not in comparison.gating],
        "summaries": summaries(comparison.cells),
        "remarks": remarks(comparison),
        "warnings": run_warnings(comparison),
        "marks": MARKS,
        "explanation": explanation(comparison),
        "command": as_code(command(comparison)),
    }
    template = templates.get_template("comparison.md.j2")
    most = len(comparison.base.cells) + len(comparison.head.cells) + len(comparison.cells) + len(comparison.differences)
    while len(text := template.render(values, most=most)) > COMMENT_CHARACTERS and most:
        most //= 2
    return text


def comparison_console(comparison: Comparison, console: Console) -> None:
    """Print the comparison to a terminal; unchanged cells are counted, not listed."""
    console.print(headline(comparison), style="bold", highlight=False)
    for side, run in (("base", comparison.base), ("head", comparison.head)):
        incomplete = ", last line incomplete" if run.truncated else ""
        console.print(f"{side}  {_commit(run)}  {_device(run)}{incomplete}  {run.path}", markup=False, highlight=False)
    for line in run_warnings(comparison):
        console.print(
            broken(spaced(f"warning: {line}"), console.width), style="bold red", markup=False, highlight=False
        )
    if comparison.differences:
        rows = [(one.name, _value(one.base), _value(one.head)) for one in comparison.differences]
        _print(console, "Not the same in both runs", ("field", "base", "head"), rows)
    for title, transitions in sections(comparison):
        rows = [(spaced(one.key), _value(one.base), _value(one.head)) for one in transitions]
        _print(console, f"{title} ({len(transitions)})", ("cell", "base", "head"), rows)
    if compared := changed(comparison.gating_cells):
        columns = ("cell", ">base, µs", ">head, µs", ">change, % [95 %]", "verdict")
        rows = [
            (f"{c.operator}/{c.variant} {spaced(c.point)}", *c.texts, _change(c.ratio), c.verdict) for c in compared
        ]
        _print(console, f"Changed or unsure cells ({', '.join(comparison.gating)})", columns, rows)
    means = [
        (
            f"{one.operator}/{one.variant}",
            one.figure,
            str(one.cells),
            *map(_percent, (one.ratio, one.least, one.greatest)),
        )
        for one in summaries(comparison.gating_cells)
    ]
    columns = ("variant", "figure", ">cells", ">geometric mean, %", ">least, %", ">greatest, %")
    _print(console, "Change over all cells of a variant", columns, means)
    console.print()
    for line in (*remarks(comparison), explanation(comparison), CORRELATED):
        console.print(broken(line, console.width), style="dim", highlight=False, markup=False)


def _print(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A column whose name starts with ``>`` holds numbers: flush right. A verdict is coloured."""
    rows = list(rows)
    texts = [[name.removeprefix(">"), *(row[i] for row in rows)] for i, name in enumerate(columns)]
    given = widths(texts, room(console.width, len(columns)))
    shown = []
    for row in rows:
        cells = [broken(text, given_width) for text, given_width in zip(row, given, strict=True)]
        shown.append([Text(text, style=STYLES.get(text, "")) for text in cells])
    numbers = [i for i, name in enumerate(columns) if name.startswith(">")]
    console.print(f"\n{title}", style="bold", markup=False, highlight=False)
    console.print(laid_out([head for head, *_ in texts], shown, given, right=numbers))


def _size(ratio: float) -> float:
    """Distance from 1 on a log scale; 0 for NaN, which sorts last."""
    return abs(math.log(ratio)) if ratio > 0 else 0.0


def _percent(ratio: float) -> str:
    return "no ratio" if math.isnan(ratio) else f"{(ratio - 1) * 100:+z.1f}"


def _change(ratio: Interval) -> str:
    bounds = "no interval" if math.isnan(ratio.low) else f"{_percent(ratio.low)}, {_percent(ratio.high)}"
    return f"{_percent(ratio.median)} [{bounds}]"


def _value(value: Any) -> str:
    """On one line, cut to VALUE_CHARACTERS; a dash where nothing was recorded."""
    text = "—" if value is None else " ".join(str(value).split())
    return text if len(text) <= VALUE_CHARACTERS else text[: VALUE_CHARACTERS - 1] + "…"


def _cell(value: Any) -> str:
    """A value for a Markdown table: one line, markup escaped."""
    return as_text(_value(value))


def _commit(run: Run) -> str:
    environment = run.header.environment
    return f"{environment.commit or 'unknown commit'}{' with uncommitted changes' if environment.dirty else ''}"


def _device(run: Run) -> str:
    environment = run.header.environment
    if environment.device == "cpu":
        return environment.processor
    return f"{environment.gpu or 'unnamed GPU'}, driver {environment.driver or 'unknown'}"
