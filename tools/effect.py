"""Which axes have an effect at a point, by the scalar reference.

An axis has an effect where another value of it changes what a launch has to write: of the same inputs if the reference
reads the axis, else of inputs that are made for the changed point. Only small points are looked at, as references are
slow. ``verify`` goes by what operators declare instead (``Axis.idle``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point
from spec_decode_bench.harness.verify.covering_array import CoveringArray, Pair
from spec_decode_bench.harness.verify.points import PointSearch

#: Inputs and outputs of a small point, and of one that is changed.
MOST_BYTES, MOST_CHANGED_BYTES = 1 << 16, 1 << 20
SEED = 0


def pairs_with_effect(operator: Operator, array: CoveringArray) -> dict[str, frozenset[Pair]]:
    """Label of each small point -> the pairs that meet there, both of whose axes have an effect."""
    search, found = PointSearch(operator, MOST_BYTES), {}
    for label, point in array.by_label.items():
        if search.is_small(point):
            axes = axes_with_effect(operator, point)
            found[label] = frozenset(pair for pair in array.pairs[label] if {one.axis for one in pair} <= axes)
    return found


def axes_with_effect(operator: Operator, point: Point) -> set[str]:
    """Names of the axes of which another value changes what is written."""
    x = operator.make_inputs(point, SEED)
    expected = operator.reference(point, x)
    return {
        axis.name
        for axis in operator.axes
        if any(_differs(operator, changed, x, expected) for changed in _changed(operator, axis, point))
    }


def _changed(operator: Operator, axis: Axis, point: Point) -> Iterator[Point]:
    """The first legal and small point with another value of the axis: twice or half the size, or another example."""
    value, examples = point[axis.name], axis.examples_at(point)
    others = examples or ((2 * value, value // 2, value + 1) if isinstance(value, int) else ())
    for other in others:
        changed = Point({**point, axis.name: other})
        if other != value and _is_small(operator, axis, changed):
            yield changed
            return


def _is_small(operator: Operator, axis: Axis, point: Point) -> bool:
    try:
        legal = axis.parse(point[axis.name]) is not None and operator.broken_rule(point) is None
        return legal and operator.nbytes(point) <= MOST_CHANGED_BYTES
    except Exception:  # of a parse= such as int, or a rule that takes an earlier one for granted
        return False


def _differs(operator: Operator, changed: Point, x: Any, expected: Mapping[str, Expected]) -> bool:
    try:
        if not _equal(operator.reference(changed, x), expected):
            return True
    except Exception:  # the inputs have other shapes there
        pass
    try:
        return not _equal(operator.reference(changed, operator.make_inputs(changed, SEED)), expected)
    except Exception:  # no inputs can be made so
        return False


def _equal(one: Mapping[str, Expected], other: Mapping[str, Expected]) -> bool:
    same = (torch.equal(_written(one[name]), _written(other[name])) for name in one)
    return one.keys() == other.keys() and all(same)


def _written(expected: Expected) -> torch.Tensor:
    """The elements that a launch has to write."""
    masks = [mask for mask in (expected.untouched, expected.may_vary) if mask is not None]
    return expected.value[~torch.stack(masks).any(0)] if masks else expected.value
