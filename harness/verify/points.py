"""Legal points near given sizes: what the covering array is made of. Names no operator.

An axis is a *size* if it takes whole numbers. All others take one of their examples, which may depend on the sizes (see
harness.contract.Axis).
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

from spec_decode_bench.harness.contract import Axis, Operator, Point, Rule

#: Sizes are int32 in kernels.
LARGEST = 2**31 - 1
#: By how many powers of two a size is moved, until a rule holds.
DOUBLINGS = (*range(1, 10), 12, 16, 20, 24, 31)


class PointSearch:
    """Finds legal points of an operator with at most ``most_bytes`` of inputs and outputs.

    ``sizes``: the axes that take whole numbers. ``words``: those that have examples.
    """

    def __init__(self, operator: Operator, most_bytes: int) -> None:
        self.operator, self.most_bytes = _quick(operator), most_bytes
        default = operator.complete({})
        #: Of each axis that has any: (point) -> its examples there.
        self.examples = {a.name: remembered(a.examples_at) for a in operator.axes if a.examples_at(default)}
        axes = self.operator.axes
        self.words = [axis for axis in axes if axis.name in self.examples]
        self.sizes = [axis for axis in axes if axis.name not in self.examples and type(default[axis.name]) is int]
        self._points: dict[tuple[frozenset[tuple[str, int]], ...], Point] = {}
        self._nbytes = [remembered(tensors.nbytes) for tensors in (operator.inputs, operator.outputs)]

    def complete(self, values: Mapping[str, int], picks: Mapping[str, int]) -> Point:
        """The point with these sizes. picks: axis -> number of its example, counted over their end. The others have
        their default if that is an example, else the first.
        """
        key = (frozenset(values.items()), frozenset(picks.items()))
        if key not in self._points:
            self._points[key] = self._completed(values, picks)
        return self._points[key]

    def _completed(self, values: Mapping[str, int], picks: Mapping[str, int]) -> Point:
        point, chosen = self.operator.complete(values), dict(values)
        if picks:
            picked = [(name, examples(point)) for name, examples in self.examples.items() if name in picks]
            chosen |= {name: examples[picks[name] % len(examples)] for name, examples in picked}
            point = self.operator.complete(chosen)
        rest = [(name, examples(point)) for name, examples in self.examples.items() if name not in picks]
        first = {name: examples[0] for name, examples in rest if point[name] not in examples}
        return self.operator.complete({**chosen, **first}) if first else point

    def parses(self, axis: Axis, value: int) -> bool:
        if value > (axis.largest or LARGEST):
            return False
        try:
            return axis.parse(value) == value
        except Exception:  # a parse= such as int raises TypeError as well
            return False

    def is_legal(self, axis: Axis, value: int) -> bool:
        """Whether a size is legal at some point."""
        return self.parses(axis, value) and self.legal({axis.name: value}, {}, frozenset({axis.name})) is not None

    def legal(
        self, values: Mapping[str, int], picks: Mapping[str, int], keep: frozenset[str] = frozenset()
    ) -> dict[str, int] | None:
        """``values``, with other sizes raised or lowered until no rule is broken; None where that takes too much.

        keep: axes that are not moved.
        """
        values = dict(values)
        for _ in range(2 * len(self.operator.rules) + 1):
            broken = self.operator.broken_rule(self.complete(values, picks))
            if broken is None:
                return values
            moves = self._moves(values, picks, keep, broken)
            if (move := next(moves, None)) is None:
                return None
            values |= move
        return None

    def _moves(
        self, values: Mapping[str, int], picks: Mapping[str, int], keep: frozenset[str], rule: Rule
    ) -> Iterator[dict[str, int]]:
        """Changes of one size that the rule's message names, after which it holds; the smallest first. Capacities are
        raised before anything is lowered: a step that is too large for its buffers gets larger ones.
        """
        point = self.complete(values, picks)
        names = axes_of(rule)
        axes = [axis for axis in self.sizes if axis.name in names] or self.sizes
        for up in (True, False):
            for doublings in DOUBLINGS:
                for axis in axes:
                    size = point[axis.name]
                    moved = min(max(size, 1) << doublings, axis.largest or LARGEST) if up else size >> doublings
                    if axis.name in keep or moved == size or not self.parses(axis, moved):
                        continue
                    if _holds(rule, self.complete({**values, axis.name: moved}, picks)):
                        yield {axis.name: moved}

    def fitting(
        self, values: Mapping[str, int], picks: Mapping[str, int], keep: frozenset[str]
    ) -> dict[str, int] | None:
        """``values``, made legal, with at most ``most_bytes`` of inputs and outputs; None where that takes too much.

        Other sizes are halved one after another until the bytes are few enough.
        """
        values = self.legal(values, picks, keep)
        if values is None:
            return None
        turns = [axis for axis in self._elastic if axis.name not in keep]
        while (excess := self.nbytes(self.complete(values, picks)) / self.most_bytes) > 1 and turns:
            # As many at once as it takes at least.
            for axis in [turns.pop(0) for _ in range(min(math.ceil(math.log2(excess)), len(turns)))]:
                size = self.complete(values, picks)[axis.name]
                if size and self.parses(axis, size >> 1):
                    halved = self.legal({**values, axis.name: size >> 1}, picks, keep | {axis.name})
                    # Where another size has to grow for it, nothing may be won.
                    if halved is not None and self._takes_less(halved, values, picks):
                        values = halved
                        turns.append(axis)
        return values if excess <= 1 else None

    def _takes_less(self, values: Mapping[str, int], than: Mapping[str, int], picks: Mapping[str, int]) -> bool:
        return self.nbytes(self.complete(values, picks)) < self.nbytes(self.complete(than, picks))

    @cached_property
    def _elastic(self) -> list[Axis]:
        """Sizes that the bytes depend on."""
        default = self.operator.complete({})
        nbytes, elastic = self.nbytes(default), []
        for axis in self.sizes:
            halved = self.operator.complete({axis.name: default[axis.name] >> 1})
            legal = self.parses(axis, halved[axis.name]) and self.operator.broken_rule(halved) is None
            if legal and self.nbytes(halved) < nbytes:
                elastic.append(axis)
        return elastic

    def is_small(self, point: Point) -> bool:
        """Whether it takes at most ``most_bytes``."""
        return self.nbytes(point) <= self.most_bytes

    def nbytes(self, point: Point) -> int:
        """Of its inputs and outputs."""
        return sum(nbytes(point) for nbytes in self._nbytes)


class _Traced(Point):
    """Notes which axes are read."""

    __slots__ = ("read",)

    def __init__(self, values: dict[str, Any]) -> None:
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "read", {})

    def __getitem__(self, name: str) -> Any:
        self.read[name] = self._values[name]
        return self.read[name]

    def __getattr__(self, name: str) -> Any:
        self.read[name] = super().__getattr__(name)
        return self.read[name]


def remembered(function: Callable[[Point], Any]) -> Callable[[Point], Any]:
    """A function of an operator's points that is called once for all that agree in the axes that it reads there."""
    if hasattr(function, "known"):
        return function  # another search's
    #: Axes that it has read somewhere -> their values -> what it returned.
    known: dict[tuple[str, ...], dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]]] = {}

    def of(point: Point) -> Any:
        for axes, results in known.items():
            key = tuple(map(point._values.__getitem__, axes))
            try:
                found = results.get(key)
            except TypeError:
                found = results.get(_by_id(key))
            if found is not None:
                return found[0]
        traced = _Traced(point._values)
        result, key = function(traced), tuple(traced.read.values())
        # With the values, which so keep their ids.
        known.setdefault(tuple(traced.read), {})[_by_id(key)] = result, key
        return result

    of.known = known
    return of


def _by_id(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """By its id what has no hash, such as a distribution of lengths."""
    return tuple(id(value) if type(value).__hash__ is None else value for value in values)


def _quick(operator: Operator) -> Operator:
    """The operator with rules and axes that are remembered."""
    of = lambda function: function if function is Axis.idle else remembered(function)  # noqa: E731
    axes = [
        replace(axis, default=of(axis.default) if callable(axis.default) else axis.default, idle=of(axis.idle))
        for axis in operator.axes
    ]
    rules = [replace(rule, holds=of(rule.holds)) for rule in operator.rules]
    return replace(operator, axes=axes, rules=rules, redundant=of(operator.redundant))


def axes_of(rule: Rule) -> frozenset[str]:
    """The axes that a rule's message names."""
    return _names(rule.message)


@cache
def _names(template: str) -> frozenset[str]:
    return frozenset(name for _, name, _, _ in string.Formatter().parse(template) if name)


def _holds(rule: Rule, point: Point) -> bool:
    """Whether a rule holds at a point that may break an earlier one, which a rule may take for granted."""
    try:
        return rule.holds(point)
    except Exception:
        return False
