"""Which cells a change can reach: those whose code differs between two checkouts. For `gate`, which measures them, and
some others beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from spec_decode_bench.harness.dependencies import closure_hashes, engine, variant_files
from spec_decode_bench.harness.records.schema import split_key

#: Cells of unchanged code that a gate measures.
MOST_UNCHANGED = 6


def changed_cells(
    keys: Sequence[str], base: Path, head: Path, extra: Sequence[Path] = (), data: Iterable[Path] = ()
) -> list[str]:
    """The keys whose code differs: the files that define variant and operator with all that they depend on, or the
    engine's. A variant that is not in both checkouts, or that no ``@variant`` names, counts as changed.

    extra: files of --variants, relative to both checkouts or outside of them. data: what may be files that all cells
    read, such as traces, likewise.
    """
    data = tuple(data)
    if closure_hashes(base, (*engine(base), *data)) != closure_hashes(head, (*engine(head), *data)):
        return list(keys)
    definitions = [(root, variant_files(root, extra)) for root in (base, head)]
    same: dict[str, bool] = {}
    for operator, variant, _ in map(split_key, keys):
        name = f"{operator}/{variant}"
        if name not in same:
            of_operator = Path("baselines", operator, "operator.py")
            sides = [closure_hashes(root, (files[name], of_operator)) for root, files in definitions if name in files]
            same[name] = len(sides) == 2 and sides[0] == sides[1]
    return [key for key in keys if not same["/".join(split_key(key)[:2])]]


def some_of(keys: Sequence[str]) -> list[str]:
    """At most MOST_UNCHANGED of the keys, from the first to the last."""
    count = min(MOST_UNCHANGED, len(keys))
    return [keys[i * (len(keys) - 1) // max(count - 1, 1)] for i in range(count)]
