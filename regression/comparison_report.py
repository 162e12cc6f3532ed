"""Renders a comparison as a comment for a pull request, for a terminal, as HTML, and as JSON. It derives no verdicts.

The terminal has a row for each variant, then the cells that are broken, slower, faster, unsure or missing; the HTML
page is what it shows. The comment leads with what is broken and what is slower, and folds the rest.
"""

from __future__ import annotations

import io
import json
import math
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import msgspec
from rich.console import Console

from spec_decode_bench.harness.analysis.stats import METRICS
from spec_decode_bench.harness.numbers import counted, percent, signed
from spec_decode_bench.harness.packages import project
from spec_decode_bench.harness.records.schema import Run, axis_texts, label_parts, split_key
from spec_decode_bench.harness.report.changes import change_text
from spec_decode_bench.harness.report.console import PrintableConsole, print_tables, print_text
from spec_decode_bench.harness.report.folding import spaced
from spec_decode_bench.harness.report.table import (
    Column,
    Entry,
    Table,
    as_code,
    as_text,
    markdown_rows,
    number_column,
    text_rows,
)
from spec_decode_bench.regression.comparison import (
    GATING,
    POWER,
    PRESETS,
    VERDICTS,
    CellComparison,
    Comparison,
    Summary,
    Transition,
)

#: GitHub refuses a comment of more than 65,536 characters; one that is read has fewer.
COMMENT_BYTES = 20_000
#: Longer values are cut in tables; the record holds them in full.
VALUE_CHARACTERS = 200
LINE_CHARACTERS = 1000
#: Width of the text in the HTML page.
HTML_COLUMNS = 130
#: Version of the JSON document; raised when a field changes its meaning or disappears.
JSON_SCHEMA = 1

OUTCOMES = {"regression": "Regression", "fine": "No regression", "could not tell": "Could not tell"}
OUTCOME_MARKS = {"regression": "🔴", "fine": "🟢", "could not tell": "🟡"}
OUTCOME_STYLES = {"regression": "bold red", "fine": "bold green", "could not tell": "bold yellow"}
#: Task without times on both sides, by the names of the comparison's fields, in the order in which they are shown.
TRANSITIONS = {
    "broken": "Broken: passed in base, wrong or failing in head",
    "lost": "Timed in base, no comparable time in head",
    "base_only": "In base only",
    "head_only": "In head only",
    "fixed": "Fixed",
}
#: Broken cells that the comment names.
MOST_BROKEN = 20
#: The order of cells: what needs a decision first.
URGENCY = ("slower", "faster", "unsure", "same")
Sort = Literal["change", "name", "time"]


# --- words ------------------------------------------------------------------------------------------------------------


def label(cell: CellComparison, comparison: Comparison) -> str:
    """The verdict in words: ``slower``, ``faster (below 0.1 µs)``."""
    changed = cell.verdict in ("slower", "faster")
    return f"{cell.verdict} (below {_min_change(comparison)})" if changed and cell.below_min_change else cell.verdict


def outcome(comparison: Comparison) -> str:
    """``Regression``; of two variants ``cuda_fused against triton_fused``."""
    if comparison.pair is None:
        return OUTCOMES[comparison.outcome]
    return f"{comparison.pair[1]} against {comparison.pair[0]}"


def side_names(comparison: Comparison) -> tuple[str, str]:
    """What stands above the times: base and head, or the two variants."""
    return comparison.pair or ("base", "head")


def title(comparison: Comparison) -> str:
    """What changed where it is not this suite: ``vLLM 1a2b3c4 → 5d6e7f8``; empty where it is."""
    return ", ".join(f"{project(name)} {base} → {head}" for name, base, head in comparison.upstream)


def headline(comparison: Comparison, strong: str = "") -> str:
    """``Regression: 2 slower, 1 faster, 40 same, 3 unsure``; strong: mark put around what makes it fail."""
    cells = comparison.gating_cells
    counts = comparison.counts(*comparison.gating)
    parts = [f"{strong}{len(comparison.broken)} broken{strong}"] if comparison.broken else []
    for verdict in VERDICTS:
        below = sum(cell.verdict == verdict and cell.below_min_change for cell in cells) if verdict == "slower" else 0
        text = f"{counts[verdict]} {verdict}" + (f" ({below} of them below {_min_change(comparison)})" if below else "")
        parts.append(f"{strong}{text}{strong}" if verdict == "slower" and counts[verdict] > below else text)
    if comparison.untimed:
        parts.append(f"{len(comparison.untimed)} no longer timed")
    return f"{strong}{outcome(comparison)}{strong}: {', '.join(parts)}"


def basis(comparison: Comparison) -> str:
    """What the verdicts rest on: ``gpu_us of 66 cells, 4 + 4 processes; …``."""
    cells = comparison.gating_cells
    if comparison.pair is not None:
        units = f"{counted(len(comparison.base), 'record')}, paired by round"
        what = f"{', '.join(comparison.gating)} at {counted(len(cells), 'point')}, {units}"
    else:
        what = f"{', '.join(comparison.gating)} of {counted(len(cells), 'cell')}, {processes(comparison)}"
    if comparison.too_few:
        return f"{what}: too few processes to judge"
    power = f"would be found with {_share(comparison.power)} probability"
    seen = f"a slow-down of {comparison.detect * 100:.3g} % in one cell {power}"
    return f"{what}; {seen}"


def _share(share: float) -> str:
    """A probability in per cent, rounded down, so that only certainty is 100 %."""
    return f"{math.floor(share * 100 + 1e-9)} %"


def processes(comparison: Comparison) -> str:
    """``4 + 4 processes``."""
    return f"{len(comparison.base)} + {len(comparison.head)} processes"


def _min_change(comparison: Comparison) -> str:
    return f"{comparison.rule.min_change_us:g} µs"


def explanation(comparison: Comparison) -> str:
    """What each verdict means, and the exit code."""
    threshold, rate = f"{comparison.threshold * 100:.3g} %", f"{comparison.rule.rate * 100:g} %"
    unit = "round" if comparison.unit == "round" else "process"
    return (
        f"slower: the interval lies above 0 and the change exceeds {threshold}; faster: the reverse; same: the "
        f"interval lies within ±{threshold}; unsure: anything else. A change below {_min_change(comparison)} does not "
        f"fail. Each {unit} is one observation; spreads are moderated by cells of similar time. The intervals hold for "
        f"all cells together: on unchanged code at most {rate} of comparisons call any cell slower. "
        f"Exit code {comparison.exit_code}."
    )


def notes(comparison: Comparison) -> list[str]:
    """The machines, cells that the comparison is blind for, and the metrics that do not gate."""
    sentences = []
    if comparison.machines.why:
        sentences.append(comparison.machines.why)
    if unchanged := comparison.unchanged_cells:
        changes = sorted(cell.ratio.median for cell in unchanged)
        sentences.append(
            f"{counted(len(unchanged), 'cell')} of unchanged code moved by {percent(changes[0])} to "
            f"{percent(changes[-1])} %; they decide nothing."
        )
    blind = [cell for cell in comparison.gating_cells if cell.noisy and cell.power < POWER and cell.verdict == "unsure"]
    if blind and not comparison.too_few:
        worst = sorted(blind, key=lambda cell: -cell.sd)
        where = points(comparison)
        named = "; ".join(f"{cell.variant_id} {where[cell.key]}" for cell in worst[:3])
        more = f" and {len(worst) - 3} more" if len(worst) > 3 else ""
        sentences.append(
            f"Processes differ more in {counted(len(blind), 'cell')} than in others of their time, and a slow-down of "
            f"{comparison.detect * 100:.3g} % may be missed there; the probability leaves them out: {named}{more}."
        )
    for metric in METRICS:
        counts = comparison.counts(metric)
        if counts and metric not in comparison.gating:
            words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
            sentences.append(f"{metric}, which does not affect the exit code: {words}.")
    return sentences


def command(comparison: Comparison) -> str:
    """The command that repeats this comparison, at the usual rate of false alarms, with paths that name no machine."""
    rule, parts = comparison.rule, ["python", "bench.py", "compare"]
    parts += [shown_folder(runs) for _, runs in comparison.sides]
    if comparison.pair is not None:
        parts += ["--variants", comparison.pair[1], comparison.pair[0]]
    default = PRESETS["pr"]
    for flag, value, usual in (
        ("--threshold", rule.threshold, default.threshold),
        ("--min-change-us", rule.min_change_us, default.min_change_us),
        ("--detect", rule.detect, default.detect),
    ):
        if value != usual:
            parts += [flag, f"{value:g}"]
    if comparison.gating != GATING[comparison.base[0].header.environment.device]:
        parts += [word for metric in comparison.gating for word in ("--metric", metric)]
    parts += [word for glob in rule.only for word in ("--only", glob)]
    parts += [word for glob in rule.unchanged for word in ("--unchanged", glob)]
    parts += ["--any-config"] if rule.any_config else []
    return shlex.join(parts)


def shown_path(path: str) -> str:
    """Relative to the working directory; of a path outside of it the last two names."""
    if not _is_outside(path):
        return os.path.relpath(path)
    return str(Path(*Path(os.path.abspath(path)).parts[1:][-2:]))


def _is_outside(path: str) -> bool:
    """Of the working directory."""
    return ".." in Path(os.path.relpath(path)).parts


def shown_folder(runs: Sequence[Run]) -> str:
    """The folder of several records, the path of one."""
    if len(runs) == 1:
        return shown_path(runs[0].path)
    return shown_path(os.path.commonpath([os.path.dirname(os.path.abspath(run.path)) for run in runs]))


def ordered(cells: Iterable[CellComparison], sort: Sort = "change") -> list[CellComparison]:
    """By verdict (failing cells first), then by ``sort``: the largest change, the name, or the longest time first."""
    keys = {
        "change": lambda cell: -_size(cell.ratio.median),
        "name": lambda cell: (cell.operator, cell.variant),
        "time": lambda cell: -cell.base_us,
    }
    return sorted(cells, key=lambda cell: (not cell.fails, URGENCY.index(cell.verdict), keys[sort](cell)))


def changed(cells: Iterable[CellComparison], sort: Sort = "change") -> list[CellComparison]:
    """Those that are not the same, as ordered sorts them."""
    return [cell for cell in ordered(cells, sort) if cell.verdict != "same"]


def ordered_summaries(comparison: Comparison) -> list[Summary]:
    """Of the gating metrics: slower, faster, then the others, each the largest change first."""
    gating = [summary for summary in comparison.summaries if summary.metric in comparison.gating]
    return sorted(gating, key=lambda summary: (URGENCY.index(summary.verdict), -_size(summary.ratio.median)))


def verdict_counts(summary: Summary) -> str:
    """``24 faster, 3 unsure``."""
    return ", ".join(f"{summary.counts[verdict]} {verdict}" for verdict in VERDICTS if summary.counts[verdict])


def points(comparison: Comparison) -> dict[str, str]:
    """Key of a cell -> its point with every axis that a label of its operator names: a label leaves out an axis at its
    default, so ``batch_size=32`` would be missing beside ``batch_size=128``.
    """
    named: dict[str, dict[str, None]] = {}
    for cell in comparison.cells:
        named.setdefault(cell.operator, {}).update(dict.fromkeys(label_parts(cell.point)))
    points = {}
    for cell in comparison.cells:
        texts = axis_texts(cell.point, cell.axes)
        spelled = [f"{axis}={texts[axis]}" for axis in named[cell.operator] if axis in texts]
        points[cell.key] = ", ".join(spelled) or spaced(cell.point)
    return points


def common_axes(cells: Sequence[CellComparison]) -> str:
    """``axis=value`` of all axes that every cell of an operator has in common, for the one who must repeat a cell."""
    shared: dict[str, Any] = dict(cells[0].axes)
    for cell in cells[1:]:
        shared = {name: value for name, value in shared.items() if cell.axes.get(name) == value}
    return ", ".join(f"{name}={_axis(value)}" for name, value in shared.items())


def _axis(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)


# --- tables -----------------------------------------------------------------------------------------------------------


def decision_tables(comparison: Comparison, sort: Sort = "change", joined: bool = False) -> list[Table]:
    """Cells that are broken, slower, faster or unsure, then those that one side lacks; none without rows.

    joined: as of cells_table.
    """
    compared = changed(comparison.gating_cells, sort)
    of_verdict = {
        verdict: cells_table(comparison, verdict, [cell for cell in compared if cell.verdict == verdict], joined)
        for verdict in ("slower", "faster", "unsure")
    }
    broken, *others = (transition_table(name, getattr(comparison, name)) for name in TRANSITIONS)
    tables = [broken, *of_verdict.values(), *others]
    return [table for table in tables if table.rows]


def cells_table(comparison: Comparison, kind: str, cells: Sequence[CellComparison], joined: bool = False) -> Table:
    """Times of both sides and what changed.

    joined: for a terminal; operator, variant and point share a column, and changes in µs are left out.
    """
    where, several = points(comparison), len({cell.metric for cell in cells}) > 1
    names = ["cell"] if joined else ["operator", "variant", "point"]
    names += ["metric"] if several else []
    columns = [*map(Column, names), *(number_column(f"{side}, µs") for side in side_names(comparison))]
    columns += [number_column("change, % [interval]")]
    columns += [Column("verdict")] if joined else [number_column("change, µs"), Column("verdict")]
    rows = []
    for cell in cells:
        parts = [cell.operator, cell.variant, where[cell.key]]
        texts = [f"{cell.variant_id} {where[cell.key]}"] if joined else parts
        texts += [cell.metric] if several else []
        texts += [*cell.texts, change_text(cell.ratio), *([] if joined else [signed(cell.change_us.median, ".3f")])]
        rows.append((*map(Entry, texts), Entry(label(cell, comparison), style=cell.verdict)))
    title = f"{kind.capitalize()} ({len(rows)})"
    return Table(title, tuple(columns), tuple(rows), row_heads=len(names), kind=kind)


def transition_table(name: str, transitions: Sequence[Transition]) -> Table:
    """How cells ended on both sides. name: of TRANSITIONS."""
    rows = text_rows((spaced(cell.key), _value(cell.base), _value(cell.head)) for cell in transitions)
    return Table(f"{TRANSITIONS[name]} ({len(rows)})", tuple(map(Column, ("cell", "base", "head"))), rows, kind=name)


def variants_table(comparison: Comparison) -> Table:
    """A row for each variant: its change over all points."""
    columns = (
        Column("operator"),
        Column("variant"),
        number_column("geometric mean of change, % [interval]"),
        number_column("least, %"),
        number_column("most, %"),
        Column("verdict"),
        Column("cells"),
    )
    rows = []
    for summary in ordered_summaries(comparison):
        changes = (change_text(summary.ratio), percent(summary.least), percent(summary.greatest))
        verdict = Entry(summary.verdict, style=summary.verdict)
        texts = (summary.operator, summary.variant, *changes)
        rows.append((*map(Entry, texts), verdict, Entry(verdict_counts(summary))))
    title = f"Per variant ({', '.join(comparison.gating)})"
    return Table(title, columns, tuple(rows), row_heads=2, kind="variants")


def sides_table(comparison: Comparison) -> Table:
    """Commit of the suite, packages that variants wrap, machine and records of each side."""
    columns = ("side", "commit", "wraps", "machine", "records")
    rows = [
        (side, commits(runs), wrapped(runs), device(runs), f"{len(runs)}: {shown_folder(runs)}")
        for side, runs in comparison.sides
    ]
    if not any(wraps for _, _, wraps, _, _ in rows):
        columns, rows = columns[:2] + columns[3:], [row[:2] + row[3:] for row in rows]
    return Table("What was compared", tuple(map(Column, columns)), text_rows(rows), kind="sides")


def differences_table(comparison: Comparison) -> Table:
    """Fields of the headers in which the sides differ."""
    rows = text_rows((change.name, _value(change.ours), _value(change.theirs)) for change in comparison.differences)
    columns = tuple(map(Column, ("field", "base", "head")))
    return Table("Not the same on both sides", columns, rows, kind="differences")


def axes_table(comparison: Comparison) -> Table:
    """For each operator the axes that its points share."""
    by_operator: dict[str, list[CellComparison]] = {}
    for cell in comparison.gating_cells:
        by_operator.setdefault(cell.operator, []).append(cell)
    rows = text_rows((operator, common_axes(cells)) for operator, cells in by_operator.items())
    title = "Axes that all points of an operator share, defaults included"
    return Table(title, (Column("operator"), Column("axes")), rows, kind="axes")


# --- Markdown ---------------------------------------------------------------------------------------------------------


def comparison_markdown(comparison: Comparison, picture: str | None = None, sort: Sort = "change") -> str:
    """A comment for a pull request in GitHub's Markdown, cut to COMMENT_BYTES.

    picture: relative link to the plot, None where there is none.
    """
    blocks = _blocks(comparison, picture, sort)
    most = folded = max(len(block.rows) for block in blocks if isinstance(block, Table))
    # First the folded list of all cells is cut, then the others.
    while len((text := _rendered(blocks, most, folded)).encode()) > COMMENT_BYTES and most:
        if folded:
            folded = folded * 4 // 5
        else:
            most = most * 4 // 5
    return text


def _blocks(comparison: Comparison, picture: str | None, sort: Sort) -> list[str | Table]:
    """Paragraphs and tables of the comment, between which it has blank lines."""
    blocks: list[str | Table] = [
        f"### {as_text(title(comparison))}" if comparison.upstream else "",
        f"{OUTCOME_MARKS[comparison.outcome]} {headline(comparison, '**')}",
        f"{_line(basis(comparison))}.",
        _bullets(comparison.unclear),
    ]
    if comparison.broken:
        blocks += [f"### {TRANSITIONS['broken']} ({len(comparison.broken)})", _broken(comparison)]
    tables = {table.kind: table for table in decision_tables(comparison, sort)}
    if slower := tables.get("slower"):
        blocks += [f"### {slower.title}", slower]
    variants = variants_table(comparison)
    drawn = f"![Change of every variant and of the cells that changed]({picture})" if picture else ""
    blocks += _details(variants.title, drawn, variants) if drawn or variants.rows else []
    remarks = _bullets(f"⚠️ {line}" for line in comparison.warnings), _bullets(notes(comparison))
    blocks += _details("Warnings and notes", *remarks) if any(remarks) else []
    for name in TRANSITIONS:
        if name != "broken" and name in tables:
            blocks += _details(tables[name].title, tables[name])
    compared: list[str | Table] = [sides_table(comparison)]
    for table in (differences_table(comparison), axes_table(comparison)):
        compared += [f"{table.title}:", table] if table.rows else []
    usual = PRESETS["pr"].rate
    stricter = f", which allows {usual * 100:g} % of false alarms" if comparison.rule.rate != usual else ""
    outside = any(_is_outside(run.path) for _, runs in comparison.sides for run in runs)
    where = ", in the folder that holds these" if outside else ""
    compared += [explanation(comparison), f"{as_code(command(comparison))}{where}{stricter}"]
    blocks += _details("What was compared", *compared)
    others = [cell for cell in comparison.cells if cell.metric not in comparison.gating]
    everything = cells_table(comparison, "all", [*ordered(comparison.gating_cells, sort), *others])
    blocks += _details(f"All cells and metrics ({len(everything.rows)})", everything)
    return [block for block in blocks if block and (isinstance(block, str) or block.rows or block.kind == "all")]


def _broken(comparison: Comparison) -> str:
    """A line for each broken cell; cells of a variant that broke in the same way, as at an edge case, share one."""
    alike: dict[tuple[str, str], list[str]] = {}
    for cell in comparison.broken:
        operator, variant, point = split_key(cell.key)
        alike.setdefault((f"{operator}/{variant}", cell.head), []).append(spaced(point))
    lines = [
        f"- **{as_text(variant)}** {as_text(where[0]) if len(where) == 1 else f'({len(where)} cells)'}: {_line(how)}"
        for (variant, how), where in alike.items()
    ]
    more = sum(len(where) for where in [*alike.values()][MOST_BROKEN:])
    return "\n".join([*lines[:MOST_BROKEN], *([f"- and {counted(more, 'cell')} more"] if more else [])])


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_line(line)}" for line in lines)


def _details(summary: str, *blocks: str | Table) -> list[str | Table]:
    return [f"<details>\n<summary>{summary}</summary>", *blocks, "</details>"]


def _rendered(blocks: Sequence[str | Table], most: int, folded: int) -> str:
    """folded: rows of the table of all cells; most: of every other that grows with the cells."""
    parts = []
    for block in blocks:
        if isinstance(block, str):
            parts.append(block)
            continue
        shown = {"all": folded, "sides": None, "axes": None}.get(block.kind, most)
        parts.append("\n".join(markdown_rows(block, shown)))
        if shown is not None and len(block.rows) > shown:
            parts.append(
                f"{len(block.rows) - shown} more are left out to keep this comment within its size limit; "
                "comparison.json and comparison.html (`--json`, `--html`) have all."
            )
    return "\n\n".join(parts) + "\n"


# --- terminal ---------------------------------------------------------------------------------------------------------


def comparison_console(comparison: Comparison, console: Console, sort: Sort = "change") -> None:
    """Print the comparison to a terminal; unchanged cells are counted, not listed."""
    if comparison.upstream:
        print_text(console, title(comparison), "bold")
    print_text(console, headline(comparison), OUTCOME_STYLES[comparison.outcome])
    print_text(console, basis(comparison))
    for line in comparison.warnings:
        print_text(console, spaced(f"warning: {line}"), "bold red")
    tables = [sides_table(comparison), differences_table(comparison), variants_table(comparison)]
    tables += decision_tables(comparison, sort, joined=True)
    print_tables(console, [table for table in tables if table.rows])
    console.print()
    for line in (*comparison.unclear, *notes(comparison), explanation(comparison)):
        print_text(console, spaced(line), "dim")


def comparison_html(comparison: Comparison, picture: str | None = None, sort: Sort = "change") -> str:
    """What the terminal shows, as a page without external files.

    picture: the SVG document of regression/plots/regression.py, None where there is none.
    """
    console = PrintableConsole(record=True, file=io.StringIO(), width=HTML_COLUMNS, highlight=False)
    comparison_console(comparison, console, sort)
    drawing = picture[picture.index("<svg") :] if picture else ""
    style = "pre { font-size: 12px } svg { max-width: 100%; height: auto }"
    page = console.export_html().replace("</style>", f"{style}\n</style>")
    return page.replace("</body>", f"{drawing}</body>")


# --- JSON -------------------------------------------------------------------------------------------------------------


def comparison_json(comparison: Comparison) -> str:
    """Everything, for programs. Times in microseconds, changes as ratios head / base; null where there is no number."""
    rule = asdict(comparison.rule) | {"gating": comparison.gating}
    document = {
        "schema": JSON_SCHEMA,
        "outcome": comparison.outcome,
        "exit_code": comparison.exit_code,
        "unclear": comparison.unclear,
        "power": comparison.power,
        "threshold": comparison.threshold,
        "detect": comparison.detect,
        "rule": rule,
        "unit": comparison.unit,
        "pair": comparison.pair and {"base": comparison.pair[0], "head": comparison.pair[1]},
        "sides": {
            side: [
                {
                    "path": shown_path(run.path),
                    "name": run.header.name,
                    "started": run.header.started,
                    "seed": run.header.seed,
                    "environment": run.header.environment,
                }
                for run in runs
            ]
            for side, runs in comparison.sides
        },
        "machines": comparison.machines,
        "differences": [{"name": d.name, "base": d.ours, "head": d.theirs} for d in comparison.differences],
        "warnings": comparison.warnings,
        "summaries": [asdict(summary) | {"counts": dict(summary.counts)} for summary in comparison.summaries],
        "cells": [
            asdict(cell) | {"key": cell.key, "gating": cell.metric in comparison.gating, "fails": cell.fails}
            for cell in comparison.cells
        ],
        **{name: getattr(comparison, name) for name in TRANSITIONS},
    }
    # msgspec writes null for NaN.
    plain = msgspec.json.decode(msgspec.json.encode(document))
    return json.dumps(plain, indent=1, ensure_ascii=False) + "\n"


# --- values -----------------------------------------------------------------------------------------------------------


def _size(ratio: float) -> float:
    """Distance from 1 on a log scale; 0 for NaN, which sorts last."""
    return abs(math.log(ratio)) if ratio > 0 else 0.0


def _value(value: Any) -> str:
    """On one line, cut to VALUE_CHARACTERS; a dash where nothing was recorded."""
    text = "—" if value is None else " ".join(str(value).split())
    return text if len(text) <= VALUE_CHARACTERS else text[: VALUE_CHARACTERS - 1] + "…"


def _line(value: str) -> str:
    """A sentence for Markdown: one line, markup escaped."""
    text = " ".join(value.split())
    return as_text(text if len(text) <= LINE_CHARACTERS else text[: LINE_CHARACTERS - 1] + "…")


def commits(runs: Sequence[Run]) -> str:
    """The commits of the runs of a side."""
    environments = [run.header.environment for run in runs]
    dirty = " with uncommitted changes" if any(environment.dirty for environment in environments) else ""
    return f"{', '.join(dict.fromkeys(environment.commit or 'unknown commit' for environment in environments))}{dirty}"


def wrapped(runs: Sequence[Run]) -> str:
    """Packages that variants wrap, with version and checkout; the same for all runs of a side."""
    environment = runs[0].header.environment
    return ", ".join(f"{project(name)} {environment.package(name)}" for name in environment.packages)


def device(runs: Sequence[Run]) -> str:
    """The machines of the runs of a side."""
    machines = []
    for environment in (run.header.environment for run in runs):
        if environment.device == "cpu":
            machines.append(environment.processor)
        else:
            machines.append(f"{environment.gpu}, driver {environment.driver or 'unknown'}")
    return "; ".join(dict.fromkeys(machines))
