"""Legal points of an operator in which every pair of classes of values of any two axes meets.

Edge cases name the batches that broke implementations. What goes wrong only where two conditions meet (a window in one
of several groups, a row of 16 tokens in a batch of 128) or at size (a loop that ends too early, an index of 16 bits) is
tried here, in the space that the axes of an operator span.

The classes of a size are 0, 1, 2, each value that an engine uses (``Axis.used``), powers of two, one less or one more,
the sizes at which a variant takes another path (``@variant(..., sizes=)``) and those just below them, those just above,
the largest that the rules, ``Axis.largest`` and MOST_BYTES allow, and what lies between powers of two, of which a value
is drawn from each third. Of a class with several values every point takes the one that was taken least, and of those
the one that has met the fewest of its other values. Each is taken at least once. The classes of any other axis are its
examples. At ORDINARY further points no size is extreme.

The seed decides the values that are drawn, and where the buffers of a point begin: mostly all are aligned but one.

A greedy search pins one pair that has not met, gives every other axis the class with the most pairs that have not met,
and moves sizes until the rules hold and the bytes fit. A pair for which it finds no point is not legal.

A pair meets *with effect* where neither of its axes is idle (``Axis.idle``): a block of 128 tokens means nothing to a
step in which no block ends. Pairs that met without effect only are looked for again, MOST_LOOKS of them.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass

from spec_decode_bench.harness.contract import Axis, Operator, Point, Variant
from spec_decode_bench.harness.report.console import saying
from spec_decode_bench.harness.tensors import TensorSpec, tensors
from spec_decode_bench.harness.verify.edge_cases import reason_to_skip
from spec_decode_bench.harness.verify.fixture import Fixture
from spec_decode_bench.harness.verify.points import LARGEST, PointSearch, axes_of

#: Inputs and outputs of one point. A launch of this size takes a moment in PyTorch on a CPU and seconds in Triton's
#: interpreter; 16-bit and 20-bit counts overflow well below it.
MOST_BYTES = 4 << 20
#: Elements that some point has of every tensor that can have as many, and its bytes: rows x columns past 20 bits.
MANY, MANY_BYTES = 2**21, 32 << 20
#: Of the powers of two that are classes; what is larger is met by the largest size alone.
MOST_BITS = 16
#: Powers of two up to here are tried with both neighbours: the drafts of a step, and the tokens of a block.
MOST_WITH_BOTH = 32
#: Powers of two with an even exponent.
EVEN_POWERS = 0x55555555
#: Thirds of what lies between two powers of two, of each of which a value is drawn: the middle one comes first.
THIRDS = (1, 0, 2)
#: How often a pair meets at least, as the classes of most sizes have several values.
MEETINGS = 2
#: Pairs that are looked for once more, of those that met without effect.
MOST_LOOKS = 100
#: Legal classes of an axis that are tried for one with which no axis is idle.
MOST_TRIED = 6
#: Points at which no size is extreme: at most so many times its default.
ORDINARY, ORDINARY_LARGEST = 32, 32
#: Pairs that are tried for a variant that skips most of the array, of those that it has not met.
PAIRS_OF_ITS_OWN = 40


@dataclass(frozen=True)
class ValueClass:
    """values: sizes; of an axis that is not a size, the number of an example."""

    axis: str
    name: str
    values: tuple[int, ...]


#: Name of the class of what is drawn.
BETWEEN = "between"

#: Two classes, in the order of the operator's axes.
Pair = tuple[ValueClass, ValueClass]


@dataclass(frozen=True)
class CoveringArray:
    """by_label: label -> point, the cheapest first. pairs: label -> those that meet there; effective: with effect."""

    by_label: dict[str, Point]
    pairs: dict[str, frozenset[Pair]]
    effective: dict[str, frozenset[Pair]]

    @property
    def points(self) -> list[Point]:
        return list(self.by_label.values())

    @property
    def legal(self) -> frozenset[Pair]:
        """All pairs that meet somewhere."""
        return frozenset().union(*self.pairs.values())

    def met(self, labels: Iterable[str]) -> int:
        """How many pairs meet at some points of the array."""
        return len(frozenset().union(*(self.pairs[label] for label in labels)))

    def met_with_effect(self, labels: Iterable[str]) -> int:
        return len(frozenset().union(*(self.effective[label] for label in labels)))


def fixture_of(operator: Operator, point: Point, device: str, seed: int) -> Fixture:
    """A point of the array between canaries; its buffers begin where its axes and the seed say."""
    draw = random.Random(f"{operator.spelt_out(point)} {seed}")
    return Fixture(operator, point, device, seed, batches=2, shift=draw)


def covering_array(operator: Operator, variants: Sequence[Variant], seed: int = 0) -> CoveringArray:
    """The array of an operator. Engines' kernels have no say: it would depend on what is installed."""
    own = [variant for variant in variants if variant.defect is None and not variant.is_upstream]
    builder = _Builder(PointSearch(operator, MOST_BYTES), own, seed)
    with saying(f"choosing the points of the covering array of {operator.name}"):
        builder.cover(builder.all_pairs())
        for times in range(2, MEETINGS + 1):
            several = (pair for pair in builder.met if any(len(one.values) > 1 for one in pair))
            builder.cover([pair for pair in several if builder.met[pair] < times])
        builder.cover_with_effect()
        builder.take_all_values()
        builder.take_ordinary_points()
        builder.take_large_tensors()
        for variant in own:
            taken = [builder.pairs[label] for label, point in builder.found.items() if _takes(variant, point)]
            if 2 * len(taken) < len(builder.found):
                missing = builder.met.keys() - frozenset().union(*taken)
                builder.cover(missing, lambda point, variant=variant: _takes(variant, point), PAIRS_OF_ITS_OWN)
    points = dict(sorted(builder.found.items(), key=lambda one: operator.nbytes(one[1])))
    pairs = {label: builder.pairs[label] for label in points}
    return CoveringArray(points, pairs, {label: builder.with_effect(points[label], pairs[label]) for label in points})


def classes_of(search: PointSearch, axis: Axis, variants: Sequence[Variant], draw: random.Random) -> list[ValueClass]:
    """The classes of an axis, with the values that are legal at some point."""
    if axis not in search.sizes:
        examples = axis.examples_at(search.operator.complete({}))
        return [ValueClass(axis.name, str(n), (n,)) for n in range(len(examples))]
    bits = _largest_power(search, axis)
    last = _last(search, axis, bits)
    declared = sorted({size for variant in variants for size in variant.sizes.get(axis.name, ())})
    powers = [2**n for n in range(1, min(bits, MOST_BITS) + 1)]
    # One neighbour of each large one, as a kernel may be compiled for each value.
    before = [power - 1 for power in powers[1:] if power <= MOST_WITH_BOTH or not power & EVEN_POWERS]
    past = [power for power in powers[1:] if power <= MOST_WITH_BOTH or power & EVEN_POWERS]
    beside = sorted({*before, *filter(None, (_past(search, axis, power) for power in past))})
    named: dict[str, Iterable[int]] = {str(value): (value,) for value in (0, 1, *axis.used)}
    named |= {
        "2^n": powers,
        "2^n +- 1": beside,
        "sizes": (size + step for size in declared for step in (-1, 0)),
        "past sizes": (size + 1 for size in declared),
        "largest": (last,),
        BETWEEN: (size for size in _between(bits, draw) if size < last),
    }
    legal = {name: tuple(v for v in values if search.is_legal(axis, v)) for name, values in named.items()}
    return [ValueClass(axis.name, name, values) for name, values in legal.items() if values]


def _between(bits: int, draw: random.Random) -> list[int]:
    """Sizes that are no neighbours of a power of two, one in each third between any two of them, in turns. In the
    middle and last third they are multiples of some power, as are blocks of 48 tokens.
    """
    rounds = []
    for third in THIRDS:
        values = []
        for power in (2**n for n in range(3, bits + 1)):
            step = 2 ** draw.randrange(1, power.bit_length() - 1) if third else 1
            begin, end = (power + 2 + (power - 3) * one // 3 for one in (third, third + 1))
            values.append(max(draw.randrange(begin, end) // step, power // step + 1) * step)
        rounds.append(draw.sample(values, len(values)))
    return list(dict.fromkeys(itertools.chain.from_iterable(rounds)))


def _past(search: PointSearch, axis: Axis, power: int) -> int | None:
    """The smallest legal size past a power of two, by a smaller power."""
    past = (power + step for step in itertools.takewhile(lambda step: step < power, (2**n for n in itertools.count())))
    return next((size for size in past if search.is_legal(axis, size)), None)


def _largest_power(search: PointSearch, axis: Axis) -> int:
    """Exponent of the largest power of two, or the last number before the next, that is legal and fits."""
    low, high = 0, LARGEST.bit_length()
    while high - low > 1:
        middle = (low + high) // 2
        near = (2**middle, 2**middle + 1, 2**middle + 2 ** max(middle - 1, 0))
        size = next((size for size in near if search.is_legal(axis, size)), None)
        fits = size is not None and search.fitting({axis.name: size}, {}, frozenset({axis.name})) is not None
        low, high = (middle, high) if fits else (low, middle)
    return low


def _last(search: PointSearch, axis: Axis, bits: int) -> int:
    """The last legal size below 2^(bits + 1): a parser, a rule or ``largest`` may end without a round number. The power
    or one past it where that bound is not reached, as bytes then are what ends it.
    """
    low, high = 2**bits, 2 ** (bits + 1)
    if search.is_legal(axis, high):
        past = _past(search, axis, low)
        fits = past is not None and search.fitting({axis.name: past}, {}, frozenset({axis.name})) is not None
        return past if fits else low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if search.is_legal(axis, middle) else (low, middle)
    return low


def _takes(variant: Variant, point: Point) -> bool:
    with suppress(Exception):  # reported where the variant is verified
        return reason_to_skip(variant, point) is None
    return True


def _any_point(point: Point) -> bool:
    return True


class _Builder:
    """found: label -> a point. pairs: label -> those that meet there."""

    def __init__(self, search: PointSearch, variants: Sequence[Variant], seed: int) -> None:
        self.search, self.operator = search, search.operator
        self._rng = random.Random(f"{self.operator.name} {seed}")
        axes = [axis for axis in self.operator.axes if axis in (*search.sizes, *search.words)]
        self.classes = {axis.name: classes_of(search, axis, variants, self._rng) for axis in axes}
        self.found: dict[str, Point] = {}
        self.pairs: dict[str, frozenset[Pair]] = {}
        #: Pair -> at how many points it meets, and meets with effect.
        self.met: Counter[Pair] = Counter()
        self.effective: Counter[Pair] = Counter()
        self._sizes = {axis.name for axis in search.sizes}
        self._taken: Counter[tuple[str, int]] = Counter()
        #: An axis with its value -> the others with theirs at points of the array.
        self._together: defaultdict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
        self._failed: Counter[tuple[str, int]] = Counter()

    def all_pairs(self) -> list[Pair]:
        return [
            pair
            for first, second in itertools.combinations(self.classes.values(), 2)
            for pair in itertools.product(first, second)
        ]

    def cover(
        self, pairs: Iterable[Pair], takes: Callable[[Point], bool] = _any_point, most: float = float("inf")
    ) -> None:
        """Add points until every pair meets at one that ``takes`` accepts, as far as that is possible."""
        # A variant's own pairs come in the order of the array, not of a set.
        wanted = set(pairs)
        left = dict.fromkeys(pair for pair in self.all_pairs() if pair in wanted)
        gain = _Open(left)
        for pair in list(left):
            if pair not in left or most <= 0:
                continue
            most -= 1
            point = self._point_with(pair, gain, takes)
            if point is None:
                gain.close(pair)
                del left[pair]
                continue
            for one in self._add(point) & left.keys():
                gain.close(one)
                del left[one]

    def cover_with_effect(self) -> None:
        """Look for MOST_LOOKS of the pairs that met without effect only. After two in vain no other pair of the same
        class with the same axis is looked for, nor one of a class that was idle in both.
        """
        left = dict.fromkeys(pair for pair in self.all_pairs() if self.met[pair] and not self.effective[pair])
        gain, looks, vain = _Open(left), 0, Counter()
        for pair in list(left):
            causes = [*pair, *((one, other.axis) for one, other in itertools.permutations(pair))]
            if pair not in left or looks == MOST_LOOKS or any(vain[cause] >= 2 for cause in causes):
                continue
            looks += 1
            point = self._point_with(pair, gain)
            if point is not None and self._idle(point, pair) != (0,):
                point = self._point_with_example(pair) or point
            idle = {one.axis for one in pair} if point is None else self.operator.idle_axes(point)
            if not idle & {one.axis for one in pair}:
                for one in self.with_effect(point, self._add(point)) & left.keys():
                    gain.close(one)
                    del left[one]
            vain.update(one for one in pair if one.axis in idle)
            vain.update((one, other.axis) for one, other in itertools.permutations(pair) if other.axis in idle)

    def take_all_values(self) -> None:
        """Add points until every value of every class was taken, where it fits, but of those that are drawn."""
        nothing_open = _Open(())
        for one in itertools.chain.from_iterable(self.classes.values()):
            for value in one.values if one.name != BETWEEN else ():
                if one.axis in self._sizes and not self._taken[one.axis, value]:
                    alone = ValueClass(one.axis, one.name, (value,))
                    point = self._point_with((alone,), nothing_open)
                    if point is not None:
                        self._add(point)

    def take_ordinary_points(self) -> None:
        """Add points at which all sizes lie between powers of two, what has a default by the sizes has that, and every
        other axis has its default half of the time. Where pairs meet the other axes often have extreme values, which
        may hide what goes wrong at an ordinary one.
        """
        drawn = {}
        for axis in self.search.sizes:
            if not callable(axis.default):
                between = (size for one in self.classes[axis.name] if one.name == BETWEEN for size in one.values)
                drawn[axis] = [size for size in between if size <= ORDINARY_LARGEST * max(axis.default, 1)]
        for n in range(ORDINARY):
            for _ in range(MOST_TRIED):
                values = {axis.name: sizes[n % len(sizes)] for axis, sizes in drawn.items() if sizes}
                values |= {axis.name: 0 for axis in drawn if axis.default == 0 and self._rng.random() < 0.5}
                words = [axis for axis in self.search.words if self._rng.random() < 0.5]
                picks = {axis.name: self._rng.choice(self.classes[axis.name]).values[0] for axis in words}
                if (point := self._fitting(values, picks)) is not None:
                    self._add(point)
                    break

    def with_effect(self, point: Point, pairs: frozenset[Pair]) -> frozenset[Pair]:
        idle = self.operator.idle_axes(point)
        return frozenset(pair for pair in pairs if not {one.axis for one in pair} & idle) if idle else pairs

    def take_large_tensors(self) -> None:
        """Add points until every tensor has MANY elements at one, where a point of MANY_BYTES has: sizes are doubled,
        from their defaults if that suffices, else at the point where it has most, with the defaults of all other axes
        where it exists there.
        """
        search = PointSearch(self.operator, MANY_BYTES)
        for spec in (*tensors(self.operator.inputs).values(), *tensors(self.operator.outputs).values()):

            def elements(point: Point, spec: TensorSpec = spec) -> int:
                return math.prod(spec.shape(point)) if spec.is_at(point) else 0

            largest = max(self.found.values(), key=elements)
            if elements(largest) >= MANY:
                continue
            plain = (self._moved(search, at, {}, words=False) for at in (search.complete({}, {}), largest))
            grown = (self._grown(search, begin, elements) for begin in (*filter(None, plain), largest))
            if (many := next((point for point in grown if elements(point) >= MANY), None)) is not None:
                self._add(many)

    def _grown(self, search: PointSearch, point: Point, elements: Callable[[Point], int]) -> Point:
        """The point, with sizes doubled until it has MANY elements, or as many as it can."""
        while elements(point) < MANY:
            doubled = (self._moved(search, point, {axis.name: 2 * point[axis.name]}) for axis in search.sizes)
            before, point = point, max((point, *filter(None, doubled)), key=elements)  # the first of several
            if point is before:
                break
        return point

    def _moved(self, search: PointSearch, point: Point, sizes: Mapping[str, int], words: bool = True) -> Point | None:
        """The point with other sizes, which may move others; words: else all that is no size has its default."""
        values = {axis.name: point[axis.name] for axis in search.sizes} | sizes
        picks = {axis.name: self._value_at(axis.name, point) for axis in search.words} if words else {}
        parse = all(search.parses(axis, sizes[axis.name]) for axis in search.sizes if axis.name in sizes)
        legal = search.legal(values, picks, frozenset(sizes)) if parse else None
        moved = None if legal is None else search.complete(legal, picks)
        is_tried = moved is not None and search.is_small(moved) and self._is_tried(moved)
        return moved if is_tried else None

    def _add(self, point: Point) -> frozenset[Pair]:
        """Add a point; returns the pairs that meet there."""
        here, label = self.pairs_at(point), self.operator.label(point)
        if label not in self.found:
            self.pairs[label] = here
            self.met.update(here)
            self.effective.update(self.with_effect(point, here))
        self.found[label] = point
        here_values = [(name, self._value_at(name, point)) for name in self.classes]
        self._taken.update(here_values)
        for one in here_values:
            self._together[one].update(other for other in here_values if other != one)
        return here

    def pairs_at(self, point: Point) -> frozenset[Pair]:
        here = [self._classes_at(name, classes, point) for name, classes in self.classes.items()]
        return frozenset(
            pair for first, second in itertools.combinations(here, 2) for pair in itertools.product(first, second)
        )

    def _classes_at(self, name: str, classes: Sequence[ValueClass], point: Point) -> list[ValueClass]:
        value = self._value_at(name, point)
        return [one for one in classes if value in one.values]

    def _value_at(self, name: str, point: Point) -> int:
        """Of a size; of any other axis, the number of its example."""
        examples = self.search.examples.get(name)
        return point[name] if examples is None else list(examples(point)).index(point[name])

    def _point_with(
        self, pair: tuple[ValueClass, ...], gain: _Open, takes: Callable[[Point], bool] = _any_point
    ) -> Point | None:
        """A point at which classes, two or one, meet, with effect if one is found: with the values taken least, then
        with their smallest ones, then so that every other axis has its default, as far as the rules allow. With the
        largest ones where none is legal so, as a capacity may be too small for a batch.
        """
        without_effect = None
        pinned = frozenset(one.axis for one in pair)
        least = tuple(map(self._least_taken, pair))
        smallest, largest = (tuple(end(one.values) for one in pair) for end in (min, max))
        for chosen, fill in dict.fromkeys(((least, True), (smallest, True), (smallest, False), (largest, False))):
            if chosen == largest and without_effect is not None:
                break
            start = self._start(pair, chosen, takes)
            if start is not None:
                values, picks = start
                if fill:
                    self._fill(pair, values, picks, gain, takes)
                if (point := self._fitting(values, picks, pinned, takes)) is not None:
                    if self._idle(point, pair) == (0,):
                        return point
                    without_effect = without_effect or point
                    continue
            self._failed.update((one.axis, value) for one, value in zip(pair, chosen, strict=True))
        return without_effect

    def _point_with_example(self, pair: Pair) -> Point | None:
        """A point at which classes meet with effect, with one example of another axis and defaults elsewhere."""
        values, picks, pinned = {}, {}, frozenset(one.axis for one in pair)
        for one in pair:
            self._put(values, picks, one.axis, min(one.values))
        others = (one for axis in self.search.words if axis.name not in pinned for one in self.classes[axis.name])
        for one in others:
            more = picks | {one.axis: one.values[0]}
            point = self._fitting(values, more, pinned)
            if point is not None and self._idle(point, pair) == (0,):
                return point
        return None

    def _fitting(
        self,
        values: Mapping[str, int],
        picks: Mapping[str, int],
        keep: frozenset[str] = frozenset(),
        takes: Callable[[Point], bool] = _any_point,
    ) -> Point | None:
        """The point to try with these sizes, which may move others; None where none is legal and fits."""
        fitting = self.search.fitting(values, picks, keep)
        point = None if fitting is None else self.search.complete(fitting, picks)
        return point if point is not None and self._is_tried(point, takes) else None

    def _start(
        self, pair: tuple[ValueClass, ...], chosen: tuple[int, ...], takes: Callable[[Point], bool]
    ) -> tuple[dict[str, int], dict[str, int]] | None:
        """Legal sizes and picks with these values of the classes: defaults elsewhere, or one more example where that is
        no point to try, as decode_len means nothing to lengths that come by request.
        """
        values, picks = {}, {}
        for one, value in zip(pair, chosen, strict=True):
            self._put(values, picks, one.axis, value)
        pinned = frozenset(one.axis for one in pair)
        others = [one for axis in self.search.words if axis.name not in pinned for one in self.classes[axis.name]]
        for more in ({}, *({one.axis: one.values[0]} for one in others)):
            legal = self.search.legal(values, picks | more, pinned)
            if legal is None:
                if not more and not self._depends_on_examples(self.search.complete(values, picks)):
                    return None
            elif self._is_tried(self.search.complete(legal, picks | more), takes):
                return legal, picks | more
        return None

    def _depends_on_examples(self, point: Point) -> bool:
        """Whether a rule that the point breaks names an axis that is no size."""
        broken = self.operator.broken_rule(point)
        return broken is not None and bool(axes_of(broken) & {axis.name for axis in self.search.words})

    def _idle(self, point: Point, *groups: Iterable[ValueClass]) -> tuple[int, ...]:
        """How many axes of each group of classes are idle at a point."""
        idle = self.operator.idle_axes(point)
        return tuple(sum(one.axis in idle for one in group) for group in groups)

    def _is_tried(self, point: Point, takes: Callable[[Point], bool] = _any_point) -> bool:
        return reason_to_skip(self.operator, point) is None and takes(point)

    def _least_taken(self, one: ValueClass, chosen: Set[tuple[str, int]] = frozenset()) -> int:
        """The value of a class to take. chosen: axis and value of other classes, or number of an example."""
        taken = [self._taken[one.axis, value] + self._failed[one.axis, value] for value in one.values]
        fewest = min(taken)
        least = [value for value, times in zip(one.values, taken, strict=True) if times == fewest]
        return min(least, key=lambda value: len(self._together[one.axis, value] & chosen))  # the first of several

    def _put(self, values: dict[str, int], picks: dict[str, int], axis: str, value: int) -> None:
        (values if axis in self._sizes else picks)[axis] = value

    def _fill(
        self,
        pair: tuple[ValueClass, ...],
        values: dict[str, int],
        picks: dict[str, int],
        gain: _Open,
        takes: Callable[[Point], bool],
    ) -> None:
        """Give every other axis the class that meets most open pairs, of those that leave the point legal and make no
        axis idle. Of several, the one whose value was taken least, then that which has met the fewest of the values
        chosen so far.
        """
        chosen = list(pair)
        others = [name for name in self.classes if name not in {one.axis for one in pair}]
        self._rng.shuffle(others)
        for name in others:
            known = {*values.items(), *picks.items()}
            best = {one: self._least_taken(one, known) for one in self.classes[name]}
            rank = {
                one: (
                    -gain.of(one, chosen),
                    self._taken[name, value],
                    len(self._together[name, value] & known),
                    self._rng.random(),
                )
                for one, value in best.items()
            }
            idle, found, tried = self._idle(self.search.complete(values, picks), pair, chosen), None, 0
            for one in sorted(best, key=rank.__getitem__):
                more = dict(values), dict(picks)
                self._put(*more, name, best[one])
                point = self.search.complete(*more)
                if self.operator.broken_rule(point) is not None:
                    continue
                if self.search.is_small(point) and self._is_tried(point, takes):
                    then = self._idle(point, pair, [*chosen, one])
                    found = (then, one) if found is None or then < found[0] else found
                tried += 1
                if found is not None and (tried == MOST_TRIED or (found[0][0] == 0 and found[0] <= idle)):
                    break
            if found is not None:
                self._put(values, picks, name, best[found[1]])
                chosen.append(found[1])


class _Open:
    """The pairs that have not met: how many a class would meet with others."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._with: dict[ValueClass, set[ValueClass]] = {}
        for first, second in pairs:
            self._with.setdefault(first, set()).add(second)
            self._with.setdefault(second, set()).add(first)

    def of(self, one: ValueClass, chosen: Sequence[ValueClass]) -> int:
        others = self._with.get(one, ())
        return sum(other in others for other in chosen)

    def close(self, pair: Pair) -> None:
        first, second = pair
        self._with[first].discard(second)
        self._with[second].discard(first)
