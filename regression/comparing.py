"""``compare`` and ``gate``: the rule of their flags; prints and writes what was found."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from spec_decode_bench.harness.report.console import saying
from spec_decode_bench.regression.comparison import PRESETS, Comparison, Rule, check_rule
from spec_decode_bench.regression.comparison_report import (
    Sort,
    comparison_console,
    comparison_html,
    comparison_json,
    comparison_markdown,
)


def rule_of(options: argparse.Namespace) -> Rule:
    """The preset, with what the other flags say. Raises CompareError."""
    preset = PRESETS[options.preset]
    rule = replace(
        preset,
        threshold=preset.threshold if options.threshold is None else options.threshold,
        min_change_us=preset.min_change_us if options.min_change_us is None else options.min_change_us,
        detect=preset.detect if options.detect is None else options.detect,
        metrics=tuple(options.metric) if options.metric else None,
        only=tuple(options.only),
    )
    check_rule(rule)
    return rule


def publish(
    console: Console,
    comparison: Comparison,
    folder: Path,
    html: bool = False,
    json: bool = False,
    sort: Sort = "change",
) -> int:
    """Print the comparison, and write comparison.md, regression.png and .svg; comparison.html and comparison.json on
    request. Returns the exit code. Raises OSError.
    """
    from spec_decode_bench.regression.plots.regression import draw

    comparison_console(comparison, console, sort)
    folder.mkdir(parents=True, exist_ok=True)
    with saying("drawing the comparison"):
        drawn = draw(comparison, folder / "regression")
    contents = {"comparison.md": comparison_markdown(comparison, drawn[0].name if drawn else None, sort)}
    if html:
        picture = drawn[1].read_text(encoding="utf-8") if drawn else None
        contents["comparison.html"] = comparison_html(comparison, picture, sort)
    if json:
        contents["comparison.json"] = comparison_json(comparison)
    for name, text in contents.items():
        (folder / name).write_text(text, encoding="utf-8")
    written = [*(folder / name for name in contents), *drawn]
    console.print(Text(f"written: {', '.join(map(str, written))}"))
    return comparison.exit_code
