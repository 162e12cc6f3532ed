"""`bench.py list`: the operators, one of them with all that belongs to it, everything as JSON; a capture file."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.text import Text

from spec_decode_bench.harness.checks import CHECKS, WAIVABLE
from spec_decode_bench.harness.config.captured import CapturedPoint, points_of, read, told
from spec_decode_bench.harness.config.load import measuring
from spec_decode_bench.harness.contract import Axis, Operator, Variant
from spec_decode_bench.harness.discover import Catalog, unavailable
from spec_decode_bench.harness.import_by_content import SUITE
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.records.schema import label_parts
from spec_decode_bench.harness.records.sentences import of_reason
from spec_decode_bench.harness.report.console import print_checks, print_rows
from spec_decode_bench.harness.report.table import as_code, as_text
from spec_decode_bench.harness.tensors import Dimension, Tensors, tensors

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
    """What each operator does, and what is missing here."""
    rows, absent = [], {}
    for name, operator in catalog.operators.items():
        healthy = [variant for variant in catalog.of(name) if variant.defect is None]
        rows.append((name, str(len(healthy)), operator.summary))
        for variant in healthy:
            if reason := unavailable(variant, device):
                text = "needs the files of an engine" if variant.is_upstream else of_reason(reason)
                absent.setdefault(text, []).append(variant.name)
    print_rows(console, ("operator", "variants", "what it does"), rows)
    console.print()
    for reason, names in absent.items():
        unique = ", ".join(dict.fromkeys(names))
        console.print(Text(f"{counted(len(names), 'variant')} unavailable, {reason}: {unique}", style="dim"))
    if limited := [v.id for v in catalog.variants if v.known_failures]:
        text = f"{counted(len(limited), 'kernel')} of engines with known failures: {', '.join(limited)}"
        console.print(Text(text, style="dim"))
    console.print(Text("`list OPERATOR` shows its variants, tensors, axes, rules, edge cases and checks", style="dim"))
    _print_broken(console, catalog)


def listed_operator(console: Console, catalog: Catalog, operator: Operator, device: str) -> None:
    """Tables: variants, tensors, waived checks, axes, rules, edge cases, sequences, and what each check means."""
    console.print(Text(f"{operator.name}: {operator.summary}", style="bold"))
    if configurations := measuring(operator.name):
        console.print(Text(f"measured by {', '.join(configurations)}"))
    rows = [_row(variant, device) for variant in catalog.of(operator.name)]
    texts = ((row["variant"], _availability(row), _described(row)) for row in rows)
    print_rows(console, ("variant", "available", "what it is"), texts)
    console.print()
    print_rows(console, ("tensor", "dtype", "shape", ""), _tensors(operator))
    if limited := [(v.name, *limit) for v in catalog.of(operator.name) for limit in v.known_failures.items()]:
        console.print()
        print_rows(console, ("variant", "does not support", "because"), limited)
    # A defect fails one of them; `verify --defects` shows which.
    checks = {row["variant"]: _waivable(row) for row in rows if row["defect"] is None}
    if checks:
        console.print()
        print_checks(console, checks)
    defaults = operator.complete({})
    console.print()
    axes = ((a.name, a.label(defaults[a.name]) + " *" * callable(a.default), a.doc) for a in operator.axes)
    print_rows(console, ("axis", "default", "meaning"), axes)
    if any(callable(axis.default) for axis in operator.axes):
        console.print(Text("* follows from other axes", style="dim"))
    if operator.rules:
        console.print(Text("\nrules that every point must keep", style="bold"))
    for rule in operator.rules:
        console.print(Text(_in_words(rule.message)))
    console.print()
    case = ((h.name, operator.label(operator.complete(h.point))) for h in operator.edge_cases)
    print_rows(console, ("edge case", "axes that differ from their default"), case)
    if operator.sequences:
        console.print()
        steps = ((name, str(len(points))) for name, points in operator.sequences.items())
        print_rows(console, ("sequence", "steps"), steps)
    console.print(Text("\nwhat the checks mean", style="bold"))
    rows = ((c.name, "yes" if c.waivable else "no", c.tested, c.meaning) for c in CHECKS)
    print_rows(console, ("check", "waivable", "tested", "meaning"), rows)
    _print_broken(console, catalog)


def defined(operator: Operator) -> list[str]:
    """As Markdown: what it computes, from the docstring of the module that defines it."""
    specification = inspect.getdoc(_module(operator)) or ""
    lines = [f"## {operator.name}", ""]
    for paragraph in (f"{operator.summary[0].upper()}{operator.summary[1:]}.", *specification.split("\n\n")[1:]):
        lines += [paragraph if paragraph.startswith("    ") else _prose(paragraph), ""]
    return lines


def _module(operator: Operator) -> ModuleType | None:
    """That defines it; its classes may be another operator's."""
    file = operator.defined.rpartition(":")[0]
    return next(
        (one for one in list(sys.modules.values()) if getattr(one, "__dict__", {}).get("__file__") == file), None
    )


def _tensors(operator: Operator) -> list[tuple[str, str, str, str]]:
    """Rows of a table: name as kernels have it, dtype, dimensions, what else is declared of it."""
    rows, parts = [], getattr(_module(operator), "PARTS", None)
    of_parts = [_comments(part.operator.outputs) for part in parts.parts] if parts else []
    for bundle, kind in (("x", operator.inputs), ("out", operator.outputs)):
        comments = dict(item for one in (*of_parts, _comments(kind)) for item in one.items())
        for spec in tensors(kind).values():
            special, condition = spec.special, spec.special.where.__name__
            notes = [
                "on the CPU" if special.host and not special.uva else "",
                "in pinned memory of the host" if special.uva else "",
                "rows may lie apart" if special.strided else "",
                f"view of {special.buffer}" if special.buffer else "",
                f"consumers read [{', '.join(f':{_dimension(one)}' for one in special.read)}]" if special.read else "",
                f"only where {condition.strip('_')}" if condition != "<lambda>" else "",
                comments.get(spec.name, ""),
            ]
            shape = f"[{', '.join(map(_dimension, spec.typed.dims))}]"
            rows.append((f"{bundle}.{spec.name}", spec.dtype.name, shape, "; ".join(filter(None, notes))))
    return rows


def _dimension(dimension: Dimension) -> str:
    return dimension.__name__.strip("_") if callable(dimension) else str(dimension)


def _comments(kind: type[Tensors]) -> dict[str, str]:
    """Field -> the comment behind or above its declaration."""
    found = {}
    for cls in (
        cls for cls in reversed(kind.__mro__) if issubclass(cls, Tensors) and "<locals>" not in cls.__qualname__
    ):
        text = inspect.getsource(cls) if cls.__module__.startswith(f"{SUITE}.baselines") else ""
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                behind, above = (
                    lines[node.end_lineno - 1][node.end_col_offset :].strip(),
                    lines[node.lineno - 2].strip(),
                )
                found[node.target.id] = (behind or (above if above.startswith("#") else "")).lstrip("# ")
    return found


def _prose(paragraph: str) -> str:
    """A paragraph of a docstring, ``code`` in it, as Markdown."""
    parts = re.split(r"( ?)``(.+?)``( ?)", " ".join(paragraph.split()))  # text, space, code, space, text, ...
    kinds = (as_text, str, as_code, str)
    return "".join(kinds[i % 4](part) for i, part in enumerate(parts))


def listed_capture(console: Console, catalog: Catalog, file: str) -> None:
    """Where a capture file comes from, and a line for each operator in it. Raises CaptureError."""
    header, captured = read(file).header, points_of(file, catalog.operators)
    drafts = f", {header.speculative.method} with {header.speculative.num_drafts} drafts" if header.speculative else ""
    console.print(Text(f"{header.model}{drafts}, in {header.engine} {header.engine_version}", style="bold"))
    if made := [text for text in (header.gpu, header.created, header.commit and f"suite {header.commit}") if text]:
        console.print(Text(", ".join(made)))
    by_operator: dict[str, list[CapturedPoint]] = {}
    for one in captured:
        if one.point is not None:
            by_operator.setdefault(one.entry.operator, []).append(one)
    rows = []
    for operator, points in by_operator.items():
        steps = ", ".join(dict.fromkeys(str(one.entry.step) for one in points))
        size = sum(one.entry.size for one in points)
        rows.append((operator, steps, f"{size:,}", _axes_of(catalog.operators[operator], points)))
    if rows:
        print_rows(console, ("operator", "steps", "bytes", "axes that differ from their default"), rows)
    else:
        console.print(Text("no usable entry"))
    for sentence in told(file, captured):
        console.print(Text(sentence, style="red"))


def _axes_of(operator: Operator, points: Sequence[CapturedPoint]) -> str:
    """``batch_size=32,context_len=512 ... 530``: the smallest and the largest number of an axis that varies."""
    labels = [label_parts(operator.label(one.point)) for one in points]
    texts = []
    for axis in operator.axes:
        if any(axis.name in label for label in labels):
            values = {axis.label(one.point[axis.name]): one.point[axis.name] for one in points}
            is_sorted = all(isinstance(value, int | float) for value in values.values())
            shown = sorted(values, key=values.get) if is_sorted else list(values)
            texts.append(f"{axis.name}={shown[0] if len(shown) == 1 else f'{shown[0]} ... {shown[-1]}'}")
    return ",".join(texts)


def _print_broken(console: Console, catalog: Catalog) -> None:
    for complaint in catalog.complaints:
        console.print(Text(complaint, style="red"))


def _in_words(template: str) -> str:
    """A rule's message without the values of one point: ``next_n ({next_n}) must ...`` -> ``next_n must ...``."""
    template = re.sub(r" \([^()]*\{[^()]*\)", "", template)
    template = re.sub(r"\b(\w+) \{\1\}|\{(\w+)\} \2\b", r"\1\2", template)
    return re.sub(r"\{(\w+)[^}]*\}", r"\1", template)


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
        "unavailable": of_reason(reason) if (reason := unavailable(variant, device)) else None,
        "defect": variant.defect,
        "known_failures": dict(variant.known_failures),
        "checks": {c.name: "waived" if c.name in variant.waives else "required" for c in CHECKS},
    }


def _availability(row: dict[str, Any]) -> str:
    return f"no: {row['unavailable']}" if row["unavailable"] else "yes"


def _described(row: dict[str, Any]) -> str:
    return f"defect, never timed: {row['defect']}" if row["defect"] else row["doc"]


def _waivable(row: dict[str, Any]) -> dict[str, str]:
    """The checks in which variants may differ, and one column for all others."""
    return {name: row["checks"][name] for name in WAIVABLE} | {OTHERS: "required"}
