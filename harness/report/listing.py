"""`bench.py list`: every operator, variant and check, as tables or as JSON."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.text import Text

from harness.checks import CHECKS, WAIVABLE
from harness.contract import Axis, Variant
from harness.discover import Catalog, unavailable
from harness.report.console import print_checks, print_rows

#: Column for the checks that no variant can waive.
OTHERS = f"other {len(CHECKS) - len(WAIVABLE)} checks"


def listed_json(catalog: Catalog, device: str) -> str:
    """The catalog as JSON. device: "cuda" or "cpu", for which availability is given."""
    operators = [
        {"name": o.name, "summary": o.summary, "axes": {a.name: _axis(a) for a in o.axes}}
        for o in catalog.operators.values()
    ]
    variants = [_row(variant, device) for operator in catalog.operators for variant in catalog.of(operator)]
    checks = [{"name": c.name, "waivable": c.waivable, "tested": c.tested, "meaning": c.meaning} for c in CHECKS]
    listed = {
        "device": device,
        "operators": operators,
        "variants": variants,
        "checks": checks,
        "unavailable_files": catalog.broken,
    }
    return json.dumps(listed, indent=2)


def listed_console(console: Console, catalog: Catalog, device: str) -> None:
    """Tables: for each operator its variants and the checks they waive, then all checks with their meaning."""
    for name, operator in catalog.operators.items():
        console.print(Text(f"\n{name}: {operator.summary}", style="bold"))
        rows = [_row(variant, device) for variant in catalog.of(name)]
        texts = ((row["variant"], _availability(row), _described(row)) for row in rows)
        print_rows(console, ("variant", "available", "what it is"), texts)
        # A defect fails one of them; `verify --defects` shows which.
        checks = {row["variant"]: _waivable(row) for row in rows if row["defect"] is None}
        if checks:
            console.print()
            print_checks(console, checks)
    console.print(Text("\nchecks: what can reject a variant", style="bold"))
    rows = ((c.name, "yes" if c.waivable else "no", c.tested, c.meaning) for c in CHECKS)
    print_rows(console, ("check", "waivable", "tested", "meaning"), rows)
    for file, reason in catalog.broken.items():
        console.print(Text(f"{file} is unavailable: {reason}", style="red"))


def _axis(axis: Axis) -> dict[str, Any]:
    """default: as a key spells it; None where it follows from the axes before."""
    return {"meaning": axis.doc, "default": None if callable(axis.default) else axis.label(axis.default)}


def _row(variant: Variant, device: str) -> dict[str, Any]:
    return {
        "operator": variant.operator,
        "variant": variant.name,
        "doc": variant.doc,
        "module": variant.origin,
        "requires": list(variant.requires),
        "unavailable": unavailable(variant, device),
        "defect": variant.defect,
        "checks": {c.name: "waived" if c.name in variant.waives else "required" for c in CHECKS},
    }


def _availability(row: dict[str, Any]) -> str:
    return f"no: {row['unavailable']}" if row["unavailable"] else "yes"


def _described(row: dict[str, Any]) -> str:
    return f"defect, never timed: {row['defect']}" if row["defect"] else row["doc"]


def _waivable(row: dict[str, Any]) -> dict[str, str]:
    """The checks in which variants may differ, and one column for all others."""
    return {name: row["checks"][name] for name in WAIVABLE} | {OTHERS: "required"}
