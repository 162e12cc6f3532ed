"""Random legal batches, on which the scalar references keep their promises."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from hypothesis import HealthCheck, settings

from spec_decode_bench.harness.contract import Operator, Point
from spec_decode_bench.harness.verify.points import PointSearch
from tests.tier import examples


def run_examples(count: int) -> Callable[[Callable], Callable]:
    """Hypothesis settings: ``count`` examples of the full tier, no deadline."""
    return settings(max_examples=examples(count), deadline=None, suppress_health_check=[HealthCheck.too_slow])


#: Sizes of a small point where it is legal with them; inputs and outputs of it.
SIZES, MOST_BYTES = (0, 1, 1, 2, 2, 3, 4, 5, 7, 8, 12, 16, 17, 33, 64, 130, 300), 1 << 15


def small_points(operator: Operator, count: int, **fixed: Any) -> Iterator[Point]:
    """Legal points with sizes and examples of the axes at random, of random contents; ``fixed`` as given."""
    search, draw = PointSearch(operator, MOST_BYTES), random.Random(operator.name)
    fixed = {"contents": "random"} | fixed if "contents" in operator.complete({}) else fixed
    sizes = {a.name: [n for n in SIZES if search.parses(a, n)] for a in search.sizes if a.name not in fixed}
    while count:
        values = {name: draw.choice(legal) for name, legal in sizes.items() if legal and draw.random() < 0.9}
        picks = {axis.name: draw.randrange(60) for axis in search.words if axis.name not in fixed}
        found = search.fitting(fixed | values, picks, frozenset(fixed))
        if found is not None:
            count -= 1
            yield search.complete(found, picks)


def each_batch(operator: Operator, count: int, **fixed: Any) -> Callable[[Callable], Callable]:
    """Makes a test of a function of (point, inputs): ``count`` random batches in the full tier. See small_points."""

    def decorate(test: Callable[[Point, Any], None]) -> Callable[[], None]:
        def run() -> None:
            for seed, point in enumerate(small_points(operator, examples(count), **fixed)):
                try:
                    test(point, operator.make_inputs(point, seed))
                except Exception as error:
                    error.add_note(f"{operator.name}, seed {seed}: {operator.spelt_out(point)}")
                    raise

        return run

    return decorate


def legal_point(operator: Operator, axes: Mapping[str, Any]) -> Point:
    """The point with all axes. Asserts that it is legal: a strategy must not draw illegal ones."""
    point = operator.complete(axes)
    assert operator.broken_rule(point) is None
    return point


def drawn(operator: Operator, axes: Mapping[str, Any], batch_seed: int) -> tuple[Point, Any]:
    """A legal point and a batch of it."""
    point = legal_point(operator, axes)
    return point, operator.make_inputs(point, batch_seed)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)
