"""Renders a comparison as a comment for a pull request, for a terminal, as HTML, and as JSON. It derives no verdicts.

The same order everywhere: the outcome, a row for each variant, then cells that are slower, broken, faster, unsure or
missing. The HTML page is what the terminal shows.
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
from jinja2 import Environment as Templates
from jinja2 import FileSystemLoader, StrictUndefined
from rich.console import Console
from rich.text import Text

from harness.analysis.compare import (
    GATING,
    MIN_PROCESSES,
    POWER,
    PRESETS,
    VERDICTS,
    CellComparison,
    Comparison,
    Summary,
    Transition,
    identity,
)
from harness.analysis.stats import FIGURES, Interval
from harness.records.schema import Run, axis_texts, label_parts
from harness.report.columns import broken, room, spaced, widths
from harness.report.console import ROOMY, PrintableConsole, laid_out
from harness.report.escape import as_code, as_text
from harness.wording import counted

#: GitHub refuses a comment of more than 65,536 characters; what follows the tables of a bot must fit, too.
COMMENT_BYTES = 60_000
#: Longer values are cut in tables; the record holds them in full.
VALUE_CHARACTERS = 200
LINE_CHARACTERS = 1000
#: Width of the text in the HTML page.
HTML_COLUMNS = 140
#: Version of the JSON document; raised when a field changes its meaning or disappears.
JSON_SCHEMA = 1

STYLES = {"slower": "bold red", "faster": "green", "same": "dim", "unsure": "yellow"}
MARKS = {"slower": "🔴 slower", "faster": "🟢 faster", "same": "same", "unsure": "🟡 unsure"}
OUTCOMES = {"regression": "Regression", "fine": "No regression", "could not tell": "Could not tell"}
OUTCOME_MARKS = {"regression": "🔴", "fine": "🟢", "could not tell": "🟡"}
#: The order of cells: what needs a decision first.
URGENCY = ("slower", "faster", "unsure", "same")
Sort = Literal["change", "name", "time"]


# --- words ------------------------------------------------------------------------------------------------------------


def label(cell: CellComparison, comparison: Comparison) -> str:
    """The verdict in words: ``slower``, ``faster (below 0.1 µs)``."""
    changed = cell.verdict in ("slower", "faster")
    return f"{cell.verdict} (below {_floor(comparison)})" if changed and cell.below_floor else cell.verdict


def outcome(comparison: Comparison) -> str:
    """``Regression``; of two variants ``cuda_fused against triton_fused``."""
    if comparison.pair is None:
        return OUTCOMES[comparison.outcome]
    return f"{comparison.pair[1]} against {comparison.pair[0]}"


def side_names(comparison: Comparison) -> tuple[str, str]:
    """What stands above the times: base and head, or the two variants."""
    return comparison.pair or ("base", "head")


def headline(comparison: Comparison, strong: str = "") -> str:
    """``Regression: 2 slower, 1 faster, 40 same, 3 unsure``; strong: mark put around what makes it fail."""
    cells = comparison.gating_cells
    counts = comparison.counts(*comparison.gating)
    parts = [f"{strong}{len(comparison.broken)} broken{strong}"] if comparison.broken else []
    for verdict in VERDICTS:
        below = sum(cell.verdict == verdict and cell.below_floor for cell in cells) if verdict == "slower" else 0
        text = f"{counts[verdict]} {verdict}" + (f" ({below} of them below {_floor(comparison)})" if below else "")
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
    power = f"would be found with {_share(comparison.power)} probability"
    seen = f"a slow-down of {comparison.detect * 100:.3g} % in one cell {power}"
    return f"{what}; {seen}"


def _share(share: float) -> str:
    """A probability in per cent, rounded down, so that only certainty is 100 %."""
    return f"{math.floor(share * 100 + 1e-9)} %"


def processes(comparison: Comparison) -> str:
    return f"{len(comparison.base)} + {len(comparison.head)} processes"


def _floor(comparison: Comparison) -> str:
    return f"{comparison.rule.floor_us:g} µs"


def explanation(comparison: Comparison) -> str:
    threshold, rate = f"{comparison.threshold * 100:.3g} %", f"{comparison.rule.rate * 100:g} %"
    unit = "round" if comparison.unit == "round" else "process"
    return (
        f"slower: the interval lies above 0 and the change exceeds {threshold}; faster: the reverse; same: the "
        f"interval lies within ±{threshold}; unsure: anything else. A change below {_floor(comparison)} does not "
        f"fail. Each {unit} is one observation; spreads are moderated by cells of similar time. The intervals hold for "
        f"all cells together: on unchanged code at most {rate} of comparisons call any cell slower. "
        f"Exit code {comparison.exit_code}."
    )


def notes(comparison: Comparison) -> list[str]:
    """Why the comparison could not tell, the machines, cells that it is blind for, and the figures that do not gate."""
    found = list(comparison.unclear)
    if comparison.pair is None:
        both = {identity(run) for run in comparison.base} & {identity(run) for run in comparison.head}
        found += [f"Base and head have {counted(len(both), 'record')} in common."] if both else []
    if comparison.machines.why:
        found.append(comparison.machines.why)
    blind = [cell for cell in comparison.gating_cells if cell.noisy and cell.power < POWER and cell.verdict == "unsure"]
    if blind and len(comparison.base) >= MIN_PROCESSES:
        worst = sorted(blind, key=lambda cell: -cell.sd)
        where = points(comparison)
        named = "; ".join(f"{cell.operator}/{cell.variant} {where[cell.key]}" for cell in worst[:3])
        more = f" and {len(worst) - 3} more" if len(worst) > 3 else ""
        found.append(
            f"Processes differ more in {counted(len(blind), 'cell')} than in others of their time, and a slow-down of "
            f"{comparison.detect * 100:.3g} % may be missed there; the probability leaves them out: {named}{more}."
        )
    for figure in FIGURES:
        counts = comparison.counts(figure)
        if counts and figure not in comparison.gating:
            words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
            found.append(f"{figure}, which does not affect the exit code: {words}.")
    return found


def command(comparison: Comparison) -> str:
    """The command that repeats this comparison, with paths that name no machine."""
    rule, parts = comparison.rule, ["python", "bench.py", "compare"]
    parts += [shown_folder(runs) for _, runs in comparison.sides]
    if comparison.pair is not None:
        parts += ["--variants", comparison.pair[1], comparison.pair[0]]
    default = PRESETS["pr"]
    for flag, value, usual in (
        ("--threshold", rule.threshold, default.threshold),
        ("--floor-us", rule.floor_us, default.floor_us),
        ("--detect", rule.detect, default.detect),
    ):
        if value != usual:
            parts += [flag, f"{value:g}"]
    if comparison.gating != GATING[comparison.base[0].header.environment.device]:
        parts += [word for figure in comparison.gating for word in ("--figure", figure)]
    parts += [word for glob in rule.only for word in ("--only", glob)]
    parts += ["--any-config"] if rule.any_config else []
    return shlex.join(parts)


def shown_path(path: str) -> str:
    """Relative to the working directory; of a path outside of it the last two names."""
    relative = Path(os.path.relpath(path))
    if ".." not in relative.parts:
        return str(relative)
    return str(Path(*Path(os.path.abspath(path)).parts[1:][-2:]))


def shown_folder(runs: Sequence[Run]) -> str:
    """The folder of several records, the path of one."""
    if len(runs) == 1:
        return shown_path(runs[0].path)
    return shown_path(os.path.commonpath([os.path.dirname(os.path.abspath(run.path)) for run in runs]))


def sections(comparison: Comparison) -> list[tuple[str, list[Transition]]]:
    titled = {
        "Broken: passed in base, wrong or failing in head": comparison.broken,
        "Timed in base, no comparable time in head": comparison.lost,
        "In base only": comparison.base_only,
        "In head only": comparison.head_only,
        "Fixed": comparison.fixed,
    }
    return [(title, transitions) for title, transitions in titled.items() if transitions]


def ordered(cells: Iterable[CellComparison], sort: Sort = "change") -> list[CellComparison]:
    """By verdict (failing cells first), then by ``sort``: the largest change, the name, or the longest time first."""
    keys = {
        "change": lambda cell: -_size(cell.ratio.median),
        "name": lambda cell: (cell.operator, cell.variant),
        "time": lambda cell: -cell.base_us,
    }
    return sorted(cells, key=lambda cell: (not cell.fails, URGENCY.index(cell.verdict), keys[sort](cell)))


def changed(cells: Iterable[CellComparison], sort: Sort = "change") -> list[CellComparison]:
    return [cell for cell in ordered(cells, sort) if cell.verdict != "same"]


def ordered_summaries(comparison: Comparison) -> list[Summary]:
    """Of the gating figures: slower, faster, then the others, each the largest change first."""
    gating = [one for one in comparison.summaries if one.figure in comparison.gating]
    return sorted(gating, key=lambda one: (URGENCY.index(one.verdict), -_size(one.ratio.median)))


def verdict_counts(summary: Summary) -> str:
    return ", ".join(f"{summary.counts[verdict]} {verdict}" for verdict in VERDICTS if summary.counts[verdict])


def points(comparison: Comparison) -> dict[str, str]:
    """Key of a cell -> its point with every axis that a label of its operator names: a label leaves out an axis at its
    default, so ``batch_size=32`` would be missing beside ``batch_size=128``.
    """
    named: dict[str, dict[str, None]] = {}
    for cell in comparison.cells:
        named.setdefault(cell.operator, {}).update(dict.fromkeys(label_parts(cell.point)))
    found = {}
    for cell in comparison.cells:
        texts = axis_texts(cell.point, cell.axes)
        spelled = [f"{axis}={texts[axis]}" for axis in named[cell.operator] if axis in texts]
        found[cell.key] = ", ".join(spelled) or spaced(cell.point)
    return found


def common_axes(cells: Sequence[CellComparison]) -> str:
    """``axis=value`` of all axes that every cell of an operator has in common, for the one who must repeat a cell."""
    shared: dict[str, Any] = dict(cells[0].axes)
    for cell in cells[1:]:
        shared = {name: value for name, value in shared.items() if cell.axes.get(name) == value}
    return ", ".join(f"{name}={_axis(value)}" for name, value in shared.items())


def _axis(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)


# --- Markdown ---------------------------------------------------------------------------------------------------------


def templates() -> Templates:
    made = Templates(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "change": change_text,
        "percent": percent,
        "cell": _cell,
        "line": _line,
        "spaced": spaced,
        "commits": commits,
        "device": device,
        "path": shown_path,
        "folder": shown_folder,
        "counts": verdict_counts,
    }
    return made


def comparison_markdown(comparison: Comparison, picture: str | None = None, sort: Sort = "change") -> str:
    """A comment for a pull request in GitHub's Markdown, cut to COMMENT_BYTES.

    picture: relative link to the plot, None where there is none.
    """
    gating = comparison.gating_cells
    by_operator: dict[str, list[CellComparison]] = {}
    for cell in gating:
        by_operator.setdefault(cell.operator, []).append(cell)
    values = {
        "comparison": comparison,
        "headline": headline(comparison, "**"),
        "mark": OUTCOME_MARKS[comparison.outcome],
        "basis": basis(comparison),
        "picture": picture,
        "sides": comparison.sides,
        "names": side_names(comparison),
        "points": points(comparison),
        "sections": sections(comparison),
        "changed": changed(gating, sort),
        "everything": [
            *ordered(gating, sort),
            *(cell for cell in comparison.cells if cell.figure not in comparison.gating),
        ],
        "summaries": ordered_summaries(comparison),
        "axes": {operator: common_axes(cells) for operator, cells in by_operator.items()},
        "notes": notes(comparison),
        "warnings": comparison.warnings,
        "marks": MARKS,
        "label": lambda cell: MARKS[cell.verdict] + label(cell, comparison).removeprefix(cell.verdict),
        "explanation": explanation(comparison),
        "command": as_code(command(comparison)),
    }
    template = templates().get_template("comparison.md.j2")
    longest = max(map(len, (comparison.cells, comparison.differences, *(rows for _, rows in sections(comparison)))))
    # First the folded list of all cells is cut, then the others.
    most, folded = longest, longest
    while len((text := template.render(values, most=most, folded=folded)).encode()) > COMMENT_BYTES and most:
        if folded:
            folded = folded * 4 // 5
        else:
            most = most * 4 // 5
    return text


# --- terminal ---------------------------------------------------------------------------------------------------------


def comparison_console(comparison: Comparison, console: Console, sort: Sort = "change") -> None:
    """Print the comparison to a terminal; unchanged cells are counted, not listed."""
    colour = {"regression": "bold red", "fine": "bold green", "could not tell": "bold yellow"}[comparison.outcome]
    console.print(Text(broken(headline(comparison), console.width), style=colour))
    console.print(Text(broken(basis(comparison), console.width)))
    for side, runs in comparison.sides:
        text = f"{side}  {commits(runs)}  {device(runs)}  {counted(len(runs), 'record')}: {shown_folder(runs)}"
        console.print(text, markup=False, highlight=False)
    for line in comparison.warnings:
        console.print(
            broken(spaced(f"warning: {line}"), console.width), style="bold red", markup=False, highlight=False
        )
    if comparison.differences:
        rows = [(one.name, _value(one.base), _value(one.head)) for one in comparison.differences]
        _print(console, "Not the same on both sides", ("field", "base", "head"), rows)
    if means := ordered_summaries(comparison):
        _print(console, f"Per variant ({', '.join(comparison.gating)})", *_variant_rows(means, console.width < ROOMY))
    compared = changed(comparison.gating_cells, sort)
    _print_cells(console, comparison, "Slower", [cell for cell in compared if cell.verdict == "slower"])
    _print_transitions(console, "Broken: passed in base, wrong or failing in head", comparison.broken)
    _print_cells(console, comparison, "Faster", [cell for cell in compared if cell.verdict == "faster"])
    _print_cells(console, comparison, "Unsure", [cell for cell in compared if cell.verdict == "unsure"])
    for title, transitions in sections(comparison):
        if transitions is not comparison.broken:
            _print_transitions(console, title, transitions)
    console.print()
    for line in (*notes(comparison), explanation(comparison)):
        console.print(broken(spaced(line), console.width), style="dim", highlight=False, markup=False)


def comparison_html(comparison: Comparison, picture: str | None = None, sort: Sort = "change") -> str:
    """What the terminal shows, as a page without external files.

    picture: the SVG document of plots/regression.py, None where there is none.
    """
    console = PrintableConsole(record=True, file=io.StringIO(), width=HTML_COLUMNS, highlight=False)
    comparison_console(comparison, console, sort)
    figure = picture[picture.index("<svg") :] if picture else ""
    page = console.export_html().replace("</style>", "svg { max-width: 100%; height: auto }\n</style>")
    return page.replace("</body>", f"{figure}</body>")


def _variant_rows(means: Sequence[Summary], narrow: bool) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the table of variants; narrow: what belongs together stands in one column."""
    rows = [
        [
            f"{one.operator}/{one.variant}",
            change_text(one.ratio),
            percent(one.least),
            percent(one.greatest),
            one.verdict,
            verdict_counts(one),
        ]
        for one in means
    ]
    columns = ["variant", ">geometric mean, % [interval]", ">least, %", ">most, %", "verdict", "cells"]
    if not narrow:
        return columns, rows
    joined = [
        [name, f"{mean} {least} {most}", f"{verdict} ({cells})"] for name, mean, least, most, verdict, cells in rows
    ]
    return ["variant", ">mean, % [interval] least most", "verdict"], joined


def _print_cells(console: Console, comparison: Comparison, title: str, cells: Sequence[CellComparison]) -> None:
    base, head = side_names(comparison)
    columns = ("cell", f">{base}, µs", f">{head}, µs", ">change, % [interval]", "verdict")
    where = points(comparison)
    rows = [
        (f"{c.operator}/{c.variant} {where[c.key]}", *c.texts, change_text(c.ratio), label(c, comparison))
        for c in cells
    ]
    if rows:
        _print(console, f"{title} ({len(rows)})", columns, rows)


def _print_transitions(console: Console, title: str, transitions: Sequence[Transition]) -> None:
    rows = [(spaced(one.key), _value(one.base), _value(one.head)) for one in transitions]
    if rows:
        _print(console, f"{title} ({len(rows)})", ("cell", "base", "head"), rows)


def _print(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A column whose name starts with ``>`` holds numbers: flush right. A verdict is coloured."""
    rows = list(rows)
    texts = [[name.removeprefix(">"), *(row[i] for row in rows)] for i, name in enumerate(columns)]
    given = widths(texts, room(console.width, len(columns)))
    shown = []
    for row in rows:
        cells = [broken(text, given_width) for text, given_width in zip(row, given, strict=True)]
        shown.append(
            [Text(text, style=STYLES.get(words.partition(" (")[0], "")) for text, words in zip(cells, row, strict=True)]
        )
    numbers = [i for i, name in enumerate(columns) if name.startswith(">")]
    console.print(f"\n{title}", style="bold", markup=False, highlight=False)
    console.print(laid_out([head for head, *_ in texts], shown, given, right=numbers))


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
                    "environment": msgspec.to_builtins(run.header.environment),
                }
                for run in runs
            ]
            for side, runs in comparison.sides
        },
        "machines": asdict(comparison.machines),
        "differences": [asdict(one) for one in comparison.differences],
        "warnings": comparison.warnings,
        "summaries": [asdict(one) | {"counts": dict(one.counts)} for one in comparison.summaries],
        "cells": [
            asdict(cell) | {"key": cell.key, "gating": cell.figure in comparison.gating, "fails": cell.fails}
            for cell in comparison.cells
        ],
        **{name: [asdict(one) for one in getattr(comparison, name)] for name in TRANSITIONS},
    }
    return json.dumps(_finite(document), indent=1, ensure_ascii=False, default=str) + "\n"


TRANSITIONS = ("broken", "fixed", "lost", "base_only", "head_only")


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _finite(inner) for name, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value


# --- values -----------------------------------------------------------------------------------------------------------


def _size(ratio: float) -> float:
    """Distance from 1 on a log scale; 0 for NaN, which sorts last."""
    return abs(math.log(ratio)) if ratio > 0 else 0.0


def percent(ratio: float) -> str:
    return "no ratio" if math.isnan(ratio) else f"{(ratio - 1) * 100:+z.1f}"


def change_text(ratio: Interval) -> str:
    bounds = "no interval" if math.isnan(ratio.low) else f"{percent(ratio.low)}, {percent(ratio.high)}"
    return f"{percent(ratio.median)} [{bounds}]"


def _value(value: Any) -> str:
    """On one line, cut to VALUE_CHARACTERS; a dash where nothing was recorded."""
    text = "—" if value is None else " ".join(str(value).split())
    return text if len(text) <= VALUE_CHARACTERS else text[: VALUE_CHARACTERS - 1] + "…"


def _line(value: str) -> str:
    """A sentence for Markdown: one line, markup escaped."""
    text = " ".join(value.split())
    return as_text(text if len(text) <= LINE_CHARACTERS else text[: LINE_CHARACTERS - 1] + "…")


def _cell(value: Any) -> str:
    """A value for a Markdown table: one line, markup escaped."""
    return as_text(_value(value))


def commits(runs: Sequence[Run]) -> str:
    environments = [run.header.environment for run in runs]
    dirty = " with uncommitted changes" if any(one.dirty for one in environments) else ""
    return f"{', '.join(dict.fromkeys(one.commit or 'unknown commit' for one in environments))}{dirty}"


def device(runs: Sequence[Run]) -> str:
    found = []
    for environment in (run.header.environment for run in runs):
        if environment.device == "cpu":
            found.append(environment.processor)
        else:
            found.append(f"{environment.gpu}, driver {environment.driver or 'unknown'}")
    return "; ".join(dict.fromkeys(found))
