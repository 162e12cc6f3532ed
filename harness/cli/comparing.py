"""``compare``: reads the sides, writes what was found, and prints it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from harness.analysis.compare import PRESETS, Comparison, Rule, check_rule, compare, compare_variants
from harness.records.sides import read_side
from harness.records.together import refuse_loops
from harness.report.comparison import Sort, comparison_console, comparison_json, comparison_markdown


def rule_of(options: argparse.Namespace) -> Rule:
    """The preset, with what the other flags say. Raises CompareError."""
    given = {"threshold": options.threshold, "floor_us": options.floor_us, "detect": options.detect}
    changed = {name: value for name, value in given.items() if value is not None}
    rule = replace(
        PRESETS[options.preset],
        **changed,
        figures=tuple(options.figure) if options.figure else None,
        only=tuple(options.only),
    )
    check_rule(rule)
    return rule


def compare_sides(base: str, head: str, rule: Rule) -> Comparison:
    """Raises RecordError and CompareError."""
    sides = read_side(base), read_side(head)
    refuse_loops([*sides[0], *sides[1]], "compare")
    return compare(*sides, rule)


def compare_two_variants(run: str, head: str, base: str, rule: Rule) -> Comparison:
    """Raises RecordError and CompareError."""
    side = read_side(run)
    refuse_loops(side, "compare")
    return compare_variants(side, head, base, rule)


def default_folder(path: str) -> Path:
    """Where the outputs go: the folder of the side, or that of its record."""
    return Path(path) if Path(path).is_dir() else Path(path).parent


def write_outputs(
    comparison: Comparison, folder: Path, html: bool = False, json: bool = False, sort: Sort = "change"
) -> list[Path]:
    """comparison.md, regression.png and .svg; comparison.html and comparison.json on request. Raises OSError."""
    from harness.report.comparison_page import comparison_html
    from plots.regression import draw

    folder.mkdir(parents=True, exist_ok=True)
    drawn = draw(comparison, folder / "regression")
    contents = {"comparison.md": comparison_markdown(comparison, drawn[0].name if drawn else None, sort)}
    if html:
        picture = drawn[1].read_text(encoding="utf-8") if drawn else None
        contents["comparison.html"] = comparison_html(comparison, picture, sort)
    if json:
        contents["comparison.json"] = comparison_json(comparison)
    for name, text in contents.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [*(folder / name for name in contents), *drawn]


def publish(
    console: Console,
    comparison: Comparison,
    folder: Path,
    html: bool = False,
    json: bool = False,
    sort: Sort = "change",
) -> int:
    """Print and write the comparison; the exit code. Raises OSError."""
    comparison_console(comparison, console, sort)
    written = write_outputs(comparison, folder, html, json, sort)
    console.print(Text(f"written: {', '.join(map(str, written))}"))
    return comparison.exit_code
