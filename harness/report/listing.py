"""`bench.py list`: every operator, variant and contract there is, for people and for programs."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.text import Text

from harness.checks import CHECKS, Check
from harness.contract import Axis, Variant
from harness.discover import Catalog, unavailable
from harness.report.console import print_checks, print_rows


def listed_json(catalog: Catalog, device: str) -> str:
    """The catalogue for programs; ``device``: "cuda" or "cpu", for which availability is told."""
    operators = [
        {"name": o.name, "summary": o.summary, "axes": {a.name: _axis(a) for a in o.axes}}
        for o in catalog.operators.values()
    ]
    variants = [_row(variant, device) for operator in catalog.operators for variant in catalog.of(operator)]
    return json.dumps(
        {"device": device, "operators": operators, "variants": variants, "unavailable_files": catalog.broken}, indent=2
    )


def listed_console(console: Console, catalog: Catalog, device: str) -> None:
    """The same in tables: for each operator its variants and what they promise, and below all what the contracts
    mean.
    """
    for name, operator in catalog.operators.items():
        console.print(Text(f"\n{name}: {operator.summary}", style="bold"))
        rows = [_row(variant, device) for variant in catalog.of(name)]
        texts = ((row["variant"], _availability(row), _described(row)) for row in rows)
        print_rows(console, ("variant", "available", "what it is"), texts)
        # A defect promises what it breaks.
        promised = {row["variant"]: _promised(row) for row in rows if row["defect"] is None}
        if promised:
            console.print()
            print_checks(console, "promised by", promised, first=max(map(len, promised)))
    console.print(Text("\ncontracts: promised by every variant that does not waive them", style="bold"))
    print_rows(console, ("contract", "may be waived", "checked", "meaning"), map(_contract_row, CHECKS))
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
        "contracts": {c.name: "waived" if c.name in variant.waives else "promised" for c in CHECKS},
    }


def _availability(row: dict[str, Any]) -> str:
    return f"no: {row['unavailable']}" if row["unavailable"] else "yes"


def _promised(row: dict[str, Any]) -> dict[str, str]:
    return {name: "yes" if state == "promised" else state for name, state in row["contracts"].items()}


def _contract_row(contract: Check) -> tuple[str, str, str, str]:
    return (
        contract.name,
        "yes" if contract.waivable else "no",
        "on a GPU" if contract.needs_device else "everywhere",
        contract.meaning,
    )


def _described(row: dict[str, Any]) -> str:
    return f"defect, never timed: {row['defect']}" if row["defect"] else row["doc"]
