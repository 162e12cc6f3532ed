"""From grids to points to cells: which operator runs where, with which variants."""

from __future__ import annotations

import itertools
import math
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from spec_decode_bench.harness.config.captured import check_names, expanded
from spec_decode_bench.harness.config.load import ConfigError, LoadedConfig, measuring
from spec_decode_bench.harness.config.work_items import Task
from spec_decode_bench.harness.contract import CAPTURE, Axis, Operator, Point, Rule, Variant
from spec_decode_bench.harness.discover import operator_names
from spec_decode_bench.harness.errors import did_you_mean, first_line
from spec_decode_bench.harness.records.schema import cell_key
from spec_decode_bench.harness.records.select import Selector

#: Points of a sweep, counted before the grids are united. Far more than anyone can measure, and expanded in seconds.
MAX_POINTS = 100_000


def task_of(
    operator: Operator,
    point: Point,
    variants: Sequence[Variant],
    baseline: str | None = None,
) -> Task:
    """The unit of work of some variants at a point. baseline: where it is not the operator's own."""
    return Task(
        operator=operator.name,
        variants=tuple(variant.name for variant in variants),
        axes=dict(point),
        point=operator.label(point),
        baseline=baseline or operator.baseline,
        phase=operator.phase,
        known_failures={variant.name: dict(variant.known_failures) for variant in variants if variant.known_failures},
    )


def expand(source: LoadedConfig, operators: Mapping[str, Operator]) -> list[tuple[Operator, Point]]:
    """All points of the sweep, each once, operator by operator and in the order of the file.

    Raises ConfigError with the faulty key.
    """
    chosen = []
    for i, name in enumerate(source.config.operators):
        if name not in operators:
            raise source.unknown(f"operators[{i}]", "operator", name, dict.fromkeys((*operator_names(), *operators)))
        chosen.append(operators[name])
    axes: dict[str, Axis] = {axis.name: axis for operator in chosen for axis in operator.axes}
    points: dict[tuple[str, str], tuple[Operator, Point]] = {}
    planned = 0
    check_names(source)
    for g, grid in enumerate(source.config.sweep):
        if not grid:
            raise source.error(f"sweep[{g}]", "is empty: give at least one axis")
        if CAPTURE in grid:
            for operator, point in expanded(source, g, {operator.name: operator for operator in chosen}):
                points.setdefault((operator.name, operator.label(point)), (operator, point))
            continue
        values = {name: _values(source, axes, f"sweep[{g}].{name}", name, given) for name, given in grid.items()}
        for operator in chosen:
            grid_values = {
                name: options for name, options in values.items() if any(axis.name == name for axis in operator.axes)
            }
            planned += math.prod(map(len, grid_values.values()))
            if planned > MAX_POINTS:
                raise source.error(f"sweep[{g}]", f"makes {planned:,} points; a sweep may have {MAX_POINTS:,}")
            for combination in itertools.product(*grid_values.values()):
                try:
                    point = operator.complete(dict(zip(grid_values, combination, strict=True)))
                    _check_rules(source, f"sweep[{g}]", operator, point, grid_values)
                    points.setdefault((operator.name, operator.label(point)), (operator, point))
                except ConfigError:
                    raise
                except Exception as error:  # defaults, rules and labels of an operator may be a user's code
                    raise source.error(
                        f"sweep[{g}]", f"{operator.name}: cannot make a point of this: {first_line(error)}"
                    ) from None
    return sorted(points.values(), key=lambda pair: source.config.operators.index(pair[0].name))


def _values(source: LoadedConfig, axes: Mapping[str, Axis], key: str, name: str, given: Any) -> list[Any]:
    if name not in axes:
        raise source.unknown(key, "axis", name, axes)
    options = given if isinstance(given, list) else [given]
    if not options:
        raise source.error(key, "is empty: give at least one value")
    parsed = []
    for i, option in enumerate(options):
        try:
            parsed.append(axes[name].parse(option))
        except Exception as error:  # a parse= such as int raises TypeError as well
            message = error if isinstance(error, ValueError) else first_line(error)
            raise source.error(
                f"{key}[{i}]" if isinstance(given, list) else key, f"{message}, got {option!r}"
            ) from None
    return parsed


def _check_rules(source: LoadedConfig, grid: str, operator: Operator, point: Point, given: Mapping[str, Any]) -> None:
    rule = operator.broken_rule(point)
    if rule is not None:
        raise source.error(_key_of_rule(grid, rule, given), f"{operator.name}: {rule.message.format_map(point)}")


def _key_of_rule(grid: str, rule: Rule, given: Mapping[str, Any]) -> str:
    """The key at which a broken rule is reported: the first axis in its message that the grid sets."""
    named = [field for _, field, _, _ in string.Formatter().parse(rule.message) if field]
    return next((f"{grid}.{name}" for name in named if name in given), grid)


def select(source: LoadedConfig, variants: Sequence[Variant]) -> list[Variant]:
    """The variants of a run, in catalogue order: those that ``variants:`` keeps, without the defects."""
    healthy = [v for v in variants if v.defect is None and v.operator in source.config.operators]
    wanted = source.config.variants
    if wanted == "all":
        return healthy
    patterns = [wanted] if isinstance(wanted, str) else wanted
    selector = Selector(patterns)
    chosen = [v for v in healthy if selector.keeps((v.name, v.id))]
    if (unused := selector.unused) is not None:
        key = "variants" if isinstance(wanted, str) else f"variants[{patterns.index(unused)}]"
        hint = did_you_mean(unused, sorted({v.name for v in healthy}))
        raise source.error(key, f"no variant matches {unused!r}{hint}")
    if not chosen:
        raise source.error("variants", "every variant is left out; name one to keep")
    return chosen


def baselines(source: LoadedConfig, variants: Sequence[Variant]) -> dict[str, str]:
    """Operator -> the variant that ``baseline:`` names for it. Raises ConfigError.

    variants: of the run. A baseline that is not measured gives no ratio, so it has to be one of them.
    """
    given = source.config.baseline
    names = {name: [v.name for v in variants if v.operator == name] for name in source.config.operators}
    if isinstance(given, str):
        if not any(given in of_operator for of_operator in names.values()):
            known = sorted({name for of_operator in names.values() for name in of_operator})
            raise source.unknown("baseline", "variant", given, known)
        return {operator: given for operator, of_operator in names.items() if given in of_operator}
    for operator, name in (given or {}).items():
        if operator not in names:
            raise source.unknown(f"baseline.{operator}", "operator", operator, names)
        if name not in names[operator]:
            raise source.unknown(f"baseline.{operator}", "variant", name, names[operator])
    return dict(given or {})


def plan(
    source: LoadedConfig, operators: Mapping[str, Operator], variants: Sequence[Variant], only: Sequence[str] = ()
) -> list[Task]:
    """The work items of a sweep. Raises ConfigError.

    only: globs over variant, operator/variant or whole cell keys, the axes at their defaults left out or spelt out.
    Several are alternatives; those that begin with ``!`` leave cells out.
    """
    chosen = select(source, variants)
    references = baselines(source, chosen)
    items: list[Task] = []
    selector = Selector(only)
    for operator, point in expand(source, operators):
        labels = (operator.label(point), operator.spelt_out(point))
        selected = [
            v
            for v in chosen
            if v.operator == operator.name
            and selector.keeps([v.name, v.id, *(cell_key(v.operator, v.name, label) for label in labels)])
        ]
        if selected:
            items.append(task_of(operator, point, selected, references.get(operator.name)))
    if only:
        check_only(source, selector, items, "cell", sorted({name for v in chosen for name in (v.name, v.id)}))
    if not items:
        raise source.error("operators", f"no variant is known for {', '.join(source.config.operators)}")
    return items


def check_only(source: LoadedConfig, selector: Selector, kept: Sequence[Any], kind: str, names: Sequence[str]) -> None:
    """Raises ConfigError for a glob of --only that matched nothing, and where they keep nothing. names: what the globs
    may have meant.
    """
    if (unused := selector.unused) is not None:
        operator = unused.partition("/")[0]
        if source.section is None and operator not in source.config.operators and (others := measuring(operator)):
            what = f"{source.config.name} does not measure {operator}"
            raise source.error("", f"--only {unused}: {what}; these configurations do: {', '.join(others)}")
        raise source.error("", f"--only {unused} matches no {kind}{did_you_mean(unused, names)}")
    if not kept:
        raise source.error("", f"--only leaves out every {kind}; name some to keep")


# --- shards -----------------------------------------------------------------------------------------------------------


def parse_shard(text: str) -> tuple[int, int]:
    """``2/8`` -> (2, 8). Raises ConfigError."""
    numbers = re.fullmatch(r"(\d{1,100})/(\d{1,100})", text)
    if not numbers or not 1 <= int(numbers[1]) <= int(numbers[2]):
        raise ConfigError(f"--shard {text}: expected I/N such as 2/8, counted from 1")
    return int(numbers[1]), int(numbers[2])


def shard_of(items: Sequence[Task], piece: int, pieces: int) -> list[Task]:
    """Every ``pieces``-th point: neighbours in a sweep cost about the same, so all pieces take about as long.

    Raises ConfigError where there are more pieces than points, whichever piece is asked for.
    """
    if pieces > len(items):
        raise ConfigError(
            f"--shard {piece}/{pieces}: the sweep has {len(items)} points; use {len(items)} shards at most"
        )
    return list(items[piece - 1 :: pieces])
