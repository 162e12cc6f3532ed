"""Points at capacity: legal points at which sizes are large, found from the axes, rules and variants of an operator.

Edge cases name the batches that broke implementations, and they are small. What goes wrong at size (a loop that ends
too early, a grid that is limited, an index of 16 bits, the third level of a search) is found here:

* every size of an operator at one past each power of two, from the smallest legal value to the largest that fits, with
  alternating examples of the other axes, until every variant takes one of these points;
* the sizes that its variants declare (``@variant(..., sizes=)``), one less and one more;
* at the largest value of each size, and at a multiple of a large power of two, every example of every other axis
  (layouts, modes, paddings, context lengths);
* points in which several sizes are large together.

A size is as large as the rules of the operator, ``Axis.largest`` and MOST_BYTES of inputs and outputs allow. Where a
value breaks a rule or takes too many bytes, the other sizes move: buffers grow, the rest shrinks.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from harness.contract import Axis, Operator, Point, Variant
from harness.verify.edge_cases import reason_to_skip
from harness.verify.points import LARGEST, PointSearch

#: Inputs and outputs of one point. A launch of this size takes a moment in PyTorch on a CPU and seconds in Triton's
#: interpreter; 16-bit and 20-bit counts overflow well below it.
MOST_BYTES = 8 << 20
#: Points in which several sizes are large.
GROWN = 12
#: How often other examples are drawn where a point is redundant, and how often a point may fail to grow.
ATTEMPTS = 8
#: Points with one size, so that every variant takes one of them.
TURNS = 4


def capacity_points(operator: Operator, variants: Sequence[Variant], seed: int) -> list[Point]:
    """The points at capacity of an operator, each once, in random order.

    The seed decides which examples meet at a point, which sizes shrink where bytes are short, and the order.
    """
    rng = random.Random(f"{operator.name} {seed}")
    search = PointSearch(operator, MOST_BYTES)
    points: dict[str, Point] = {}
    for axis in search.sizes:
        declared = [size for variant in variants for size in variant.sizes.get(axis.name, ())]
        # An engine's kernel has no say: the points would depend on what is installed, and its skip= may ask the GPU.
        healthy = [variant for variant in variants if variant.defect is None and not variant.is_upstream]
        of_axis = search, axis, healthy, rng
        for point in (*_one_size(*of_axis), *_declared(*of_axis, declared)):
            points.setdefault(operator.label(point), point)
    for _ in range(GROWN):
        point = _grown(search, rng)
        if point is not None and reason_to_skip(operator, point) is None:
            points.setdefault(operator.label(point), point)
    shuffled = list(points.values())
    rng.shuffle(shuffled)
    return shuffled


@dataclass(frozen=True)
class _Candidate:
    """A point, the sizes that were set for it, and axis -> number of its example."""

    sizes: Mapping[str, int]
    picks: Mapping[str, int]
    point: Point


def _fitting(
    search: PointSearch,
    sizes: Mapping[str, int],
    keep: str,
    rng: random.Random,
    pinned: Mapping[str, int] | None = None,
) -> _Candidate | None:
    """A point that fits with the size ``keep`` as it is, and is not redundant; None where none is found.

    pinned: axis -> number of its example; the others have random ones.
    """
    for _ in range(ATTEMPTS):
        picks = _picks(search, rng, pinned or {})
        fitting = search.fitting(sizes, picks, frozenset({keep}))
        if fitting is None:
            return None
        point = search.complete(fitting, picks)
        if reason_to_skip(search.operator, point) is None:
            return _Candidate(fitting, picks, point)
    return None


def _picks(search: PointSearch, rng: random.Random, pinned: Mapping[str, int]) -> dict[str, int]:
    """Axis -> number of a random example, drawn again where these exclude each other at any size."""
    for _ in range(ATTEMPTS):
        picks = {axis.name: rng.randrange(count) for axis, count in _examples(search).items()} | dict(pinned)
        if search.legal({}, picks) is not None:
            break
    return picks


def _fitting_all(
    search: PointSearch, sizes: Mapping[str, int], keep: str, variants: Sequence[Variant], rng: random.Random
) -> Iterator[_Candidate]:
    """What _fitting finds, until no variant is left that skips all of it; TURNS times at most.

    The second time all other axes have their default, which most variants take.
    """
    pending = list(variants)
    for turn in range(TURNS):
        candidate = _fitting(search, sizes, keep, rng, _defaults(search) if turn == 1 else None)
        if candidate is None:
            return
        skipping = [variant for variant in pending if _skips(variant, candidate.point)]
        if turn == 0 or len(skipping) < len(pending):
            yield candidate
        pending = skipping
        if not pending:
            return


def _skips(variant: Variant, point: Point) -> bool:
    with suppress(Exception):  # reported where the variant is verified
        return reason_to_skip(variant, point) is not None
    return False


def _defaults(search: PointSearch) -> dict[str, int]:
    """Axis that is not a size -> number of the example that is its default, if any."""
    default = search.operator.complete({})
    examples = {axis.name: list(axis.examples_at(default)) for axis in search.words}
    return {name: values.index(default[name]) for name, values in examples.items() if default[name] in values}


def _examples(search: PointSearch) -> dict[Axis, int]:
    """Axis that is not a size -> how many examples it has."""
    default = search.operator.complete({})
    return {axis: len(axis.examples_at(default)) for axis in search.words}


def _ladder(search: PointSearch, axis: Axis) -> Iterator[int]:
    """Ascending values: 0, 1 and one legal step past each power of two (or the power itself), where they are legal."""
    yield from (value for value in (0, 1) if _is_legal(search, axis, value))
    for bits in range(LARGEST.bit_length()):
        past = [*(2**bits + 2**step for step in range(max(bits, 1))), 2**bits]
        yield from itertools.islice((value for value in past if _is_legal(search, axis, value)), 1)


def _is_legal(search: PointSearch, axis: Axis, value: int) -> bool:
    return search.parses(axis, value) and search.legal({axis.name: value}, {}, frozenset({axis.name})) is not None


def _one_size(search: PointSearch, axis: Axis, variants: Sequence[Variant], rng: random.Random) -> Iterator[Point]:
    """Points with this size on its ladder, and with every example of the other axes at the largest that fits."""
    name, default = axis.name, search.operator.complete({})
    # The sizes that were set for each value, from the default on. What had to move for one has to for a larger one.
    steps: list[Mapping[str, int]] = [{}]
    largest = None
    for value in _ladder(search, axis):
        # From the last sizes on, or those before where they lead no further, as when a row has shrunk to one token.
        tries = ({**sizes, name: value} for sizes in steps[:-3:-1])
        fitting = (list(_fitting_all(search, sizes, name, variants, rng)) for sizes in tries)
        candidates = next(filter(None, fitting), ())
        yield from (candidate.point for candidate in candidates)
        if candidates:
            largest = value
            if value >= default[name]:
                steps.append(candidates[0].sizes)
        elif largest is not None or value > default[name]:
            break
    if largest is None:
        return
    end = _last_legal(search, axis, largest)
    if end > largest and (candidate := _fitting(search, {**steps[-1], name: end}, name, rng)):
        steps.append(candidate.sizes)
        largest = end
        yield candidate.point
    # Also a multiple of a large power of two: kernels take wide accesses there.
    even = {**steps[-1], name: 3 << (largest // 3).bit_length() - 1 if largest >= 3 else largest}
    if search.parses(axis, even[name]) and (candidate := _fitting(search, even, name, rng)):
        yield candidate.point
    left = {(word.name, number): None for word, count in _examples(search).items() for number in range(count)}
    while left:
        word, number = next(iter(left))
        del left[word, number]
        # Some examples only differ from others where no other size has shrunk to 1: at the largest value that leaves
        # them room.
        tries = (_fitting(search, sizes, name, rng, {word: number}) for sizes in reversed(steps[1:]))
        if candidate := next((candidate for candidate in tries if candidate), None):
            yield candidate.point
            for pair in candidate.picks.items():
                left.pop(pair, None)


def _last_legal(search: PointSearch, axis: Axis, low: int) -> int:
    """The last legal value from ``low`` to less than twice as much, where the next power of two is none; else ``low``.

    A size may be limited by its parser, a rule or ``largest`` without a round number, such as 4095 requests.
    """
    high = 2 * low + 2
    if _is_legal(search, axis, high):
        return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _is_legal(search, axis, middle) else (low, middle)
    return low


def _declared(
    search: PointSearch, axis: Axis, variants: Sequence[Variant], rng: random.Random, sizes: Sequence[int]
) -> Iterator[Point]:
    for value in dict.fromkeys(near for size in sizes for near in (size - 1, size, size + 1)):
        if search.parses(axis, value):
            for candidate in _fitting_all(search, {axis.name: value}, axis.name, variants, rng):
                yield candidate.point


def _grown(search: PointSearch, rng: random.Random) -> Point | None:
    """A point whose sizes were doubled in random order, from the smallest ones on, until nothing more fits."""
    picks = {axis.name: rng.randrange(count) for axis, count in _examples(search).items()}
    small: dict[str, int] = {}
    for axis in search.sizes:
        value = next(_ladder(search, axis), None)
        if value is not None and (more := search.legal({**small, axis.name: value}, picks)) is not None:
            small = more
    values, failed = search.fitting(small, picks, frozenset(small)), 0
    while values is not None and failed < ATTEMPTS:
        before, axis = search.complete(values, picks), rng.choice(search.sizes)
        more = 2 * before[axis.name] + rng.randrange(2)
        grown = {size.name: before[size.name] for size in search.sizes} | {axis.name: more}
        grown = search.legal(grown, picks, frozenset({axis.name})) if search.parses(axis, more) else None
        shrunk = grown is None or any(size < before[name] for name, size in grown.items())
        if shrunk or search.fitting(grown, picks, frozenset(grown)) is None:
            failed += 1
        else:
            values = grown
    return None if values is None else search.complete(values, picks)
