"""Counts what the covering arrays of ``verify`` cover, for docs/verification.md: docs/pairs.json.

    python -m tools.pairs && python -m tools.splice   # after a change of axes, rules, sizes= or the array; minutes
    python -m tools.pairs decode_flatten              # prints those of one operator, with the classes of its axes

Needs no GPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from spec_decode_bench.harness import interpreter
from spec_decode_bench.harness.contract import Operator
from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.verify.covering_array import MOST_BYTES, CoveringArray, covering_array
from spec_decode_bench.harness.verify.points import PointSearch
from tools.effect import pairs_with_effect

FILE = Path(__file__).parent.parent / "docs" / "pairs.json"


def counts_of(operator: Operator, array: CoveringArray) -> dict[str, int]:
    """What stands in docs/pairs.json for an operator. by_reference: pairs that the scalar reference shows to have an
    effect at a small point. MiB: inputs and outputs of all points.
    """
    search = PointSearch(operator, MOST_BYTES)
    mebibytes = sum(map(search.nbytes, array.points)) >> 20
    shown = frozenset().union(*pairs_with_effect(operator, array).values())
    pairs = {
        "pairs": len(array.legal),
        "with_effect": array.met_with_effect(array.by_label),
        "by_reference": len(shown),
    }
    return {"points": len(array.points)} | pairs | {"MiB": mebibytes}


def documented(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Sums of docs/pairs.json as a table in Markdown."""
    columns = ("points", "pairs", "with_effect", "by_reference", "MiB")
    sums = (f"{sum(one[key] for one in counts.values()):,}" for key in columns)
    head = (column.replace("_", " ") for column in columns)
    return [
        f"| operators | {' | '.join(head)} |",
        f"|{' ---: |' * (1 + len(columns))}",
        f"| {len(counts)} | {' | '.join(sums)} |",
    ]


def main(names: list[str]) -> int:
    interpreter.choose("cpu")
    catalog, counts = discover(), {}
    for name in names or catalog.operators:
        operator = catalog.operators[name]
        array = covering_array(operator, catalog.of(name))
        counts[name] = counts_of(operator, array)
        if names:
            classes: dict[str, list[str]] = {}
            for one in dict.fromkeys(one for pair in sorted(array.legal, key=repr) for one in pair):
                classes.setdefault(one.axis, []).append(one.name)
            print(
                name,
                json.dumps(counts[name]),
                *(f"  {axis}: {', '.join(of)}" for axis, of in classes.items()),
                sep="\n",
            )
    if not names:
        lines = (f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in counts.items())
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
