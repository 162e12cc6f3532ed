"""Renders a comparison as one HTML page that works offline: tables to sort and filter, plots inline."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from harness.analysis.compare import VERDICTS, CellComparison, Comparison, Summary
from harness.analysis.stats import slopes
from harness.records.schema import Run
from harness.report import comparison as words
from harness.wording import significant

#: Fields of the environment that the page lists, a row each.
ENVIRONMENT = (
    "gpu", "gpu_id", "driver", "cuda", "sm_clock_mhz", "power_limit_w", "processor", "python", "torch", "triton",
    "cuda_core", "commit", "dirty",
)  # fmt: skip
#: Of the small plot in a row, in its own units: 0 to WIDTH, 0 to HEIGHT.
WIDTH, HEIGHT = 160, 20
#: Changes that the small plots show: as many times the threshold.
SPAN = 4


def comparison_html(comparison: Comparison, picture: str | None = None, sort: words.Sort = "change") -> str:
    """picture: the SVG document of plots/regression.py, None where there is none."""
    gating = words.ordered(comparison.gating_cells, sort)
    others = [cell for cell in comparison.cells if cell.figure not in comparison.gating]
    values = {
        "comparison": comparison,
        "headline": words.headline(comparison),
        "basis": words.basis(comparison),
        "notes": words.notes(comparison),
        "warnings": comparison.warnings,
        "sides": comparison.sides,
        "names": words.side_names(comparison),
        "points": words.points(comparison),
        "sections": words.sections(comparison),
        "summaries": words.ordered_summaries(comparison),
        "cells": [*gating, *others],
        "figures": list(dict.fromkeys(cell.figure for cell in (*gating, *others))),
        "label": lambda cell: words.label(cell, comparison),
        "bar": lambda one: _bar(one, comparison),
        "dots": _dots,
        "verdicts": VERDICTS,
        "picture": Markup(_inline(picture)) if picture else None,
        "environment": _environment(comparison),
        "calibration": _calibration(comparison),
        "explanation": words.explanation(comparison),
        "command": words.command(comparison),
    }
    templates = words.templates()
    templates.filters["number"] = _number
    return templates.get_template("comparison.html.j2").render(values)


def _number(value: float, digits: int = 4) -> str:
    return "–" if not math.isfinite(value) else significant(value, digits)


def _inline(svg: str) -> str:
    """The svg element alone, without the comments that hold its texts, as wide as the page."""
    svg = re.sub(r"<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*"',
        r"<svg \1",
        re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", svg, count=1),
        count=1,
    )


def _bar(one: CellComparison | Summary, comparison: Comparison) -> Markup:
    """Interval and change on a logarithmic axis of ± SPAN thresholds, the threshold shaded; cut where it is longer."""
    reach = SPAN * math.log1p(comparison.threshold)

    def x(ratio: float) -> float:
        change = math.log(ratio) if ratio > 0 else 0.0
        return round((min(max(change / reach, -1), 1) + 1) / 2 * (WIDTH - 8) + 4, 1)

    left, right = x(1 - comparison.threshold), x(1 + comparison.threshold)
    parts = [
        f'<rect class="band" x="{left}" width="{right - left:.1f}" y="0" height="{HEIGHT}"/>',
        f'<line class="zero" x1="{x(1)}" x2="{x(1)}" y1="0" y2="{HEIGHT}"/>',
    ]
    middle = HEIGHT / 2
    if math.isfinite(one.ratio.low):
        parts.append(
            f'<line class="bar" x1="{x(one.ratio.low)}" x2="{x(one.ratio.high)}" y1="{middle}" y2="{middle}"/>'
        )
    if math.isfinite(one.ratio.median):
        parts.append(f'<circle class="dot" cx="{x(one.ratio.median)}" cy="{middle}" r="3.5"/>')
    return _svg(one.verdict, parts, f"change {words.change_text(one.ratio)} %")


def _dots(cell: CellComparison) -> Markup:
    """The median of every process: base above, head below, on a common linear axis."""
    values = [*cell.base_medians, *cell.head_medians]
    low, high = min(values), max(values)
    middle, reach = (low + high) / 2, max((high - low) / 2, 0.002 * low, 1e-9)

    def x(value: float) -> float:
        return round(((value - middle) / reach + 1) / 2 * (WIDTH / 2 - 8) + 4, 1)

    parts = [
        f'<circle class="{side}" cx="{x(value)}" cy="{y}" r="2.6"/>'
        for side, medians, y in (("base", cell.base_medians, 6), ("head", cell.head_medians, 14))
        for value in medians[:40]
    ]
    return _svg(cell.verdict, parts, f"{_number(low)} to {_number(high)} µs", WIDTH // 2)


def _svg(verdict: str, parts: Sequence[str], title: str, width: int = WIDTH) -> Markup:
    """Numbers and words of this module alone: nothing of a record is in it."""
    inside = "".join(parts)
    return Markup(
        f'<svg class="mini {verdict}" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" role="img">'
        f"<title>{title}</title>{inside}</svg>"
    )


def _runs(comparison: Comparison) -> list[tuple[str, Run]]:
    return [(side, run) for side, runs in comparison.sides for run in runs]


def _environment(comparison: Comparison) -> list[tuple[str, list[Any]]]:
    """(field, values by record), the records in the order of the page."""
    runs = [run for _, run in _runs(comparison)]
    rows: list[tuple[str, list[Any]]] = [
        ("record", [words.shown_path(run.path) for run in runs]),
        ("started", [run.header.started for run in runs]),
        ("seed", [run.header.seed for run in runs]),
    ]
    rows += [(name, [getattr(run.header.environment, name) for run in runs]) for name in ENVIRONMENT]
    return [(name, values) for name, values in rows if any(value is not None for value in values)]


def _calibration(comparison: Comparison) -> list[tuple[str, list[float]]]:
    """(calibration kernel, its graph slope in microseconds by record): the same work in every record."""
    calibrations = [run.header.calibration for _, run in _runs(comparison)]
    names = dict.fromkeys(name for one in calibrations if one for name in one.own)

    def slope(kernel: Any) -> float:
        found = slopes(kernel.graph_us) if kernel is not None else []
        return float(np.median(found)) if found else math.nan

    return [(name, [slope(one and one.own.get(name)) for one in calibrations]) for name in names]
