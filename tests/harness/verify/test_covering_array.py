"""The covering array: what meets in it, that healthy variants pass it, and flaws that show nowhere else."""

import itertools
import json
import math
import random

import pytest

from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.contract import Axis, Operator, Rule, Variant
from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.tensors import I32, Tensors, tensors
from spec_decode_bench.harness.verify import covering_array as arrays
from spec_decode_bench.harness.verify.covering_array import MOST_BYTES, classes_of, covering_array, fixture_of
from spec_decode_bench.harness.verify.edge_cases import EdgeCaseChecks
from spec_decode_bench.harness.verify.fixture import verify_cell
from spec_decode_bench.harness.verify.points import PointSearch
from tests.arrays import array_of
from tests.harness.verify.mutants import MUTANTS
from tests.runnable import DEVICE, healthy
from tests.tier import FULL, few
from tools import pairs

CATALOG = discover()
SEED = 5
#: The arrays of all operators take a minute.
OPERATORS = list(CATALOG.operators) if FULL else ["decode_native", "draft_inputs"]


def points_of(name):
    return array_of(name).points


@pytest.mark.parametrize("name", OPERATORS)
def test_points_are_legal_and_large(name):
    operator, points = CATALOG.operators[name], points_of(name)
    assert len({operator.label(point) for point in points}) == len(points) > 50
    for point in points:
        assert operator.broken_rule(point) is None
        assert operator.redundant(point) is None
        assert all(axis.parse(point[axis.name]) is not None for axis in operator.axes)
    assert max(point.batch_size for point in points) > 2000


@pytest.mark.parametrize("name", OPERATORS)
def test_every_pair_of_legal_values_meets(name):
    """Of those that need no other size to move: at a point with defaults elsewhere, which is a pair of the array."""
    operator, array = CATALOG.operators[name], array_of(name)
    search = PointSearch(operator, MOST_BYTES)
    met = {tuple(sorted((one.axis, one.name) for one in pair)) for pair in array.legal}
    sizes = {axis.name: classes_of(search, axis, (), random.Random(0)) for axis in search.sizes}
    for first, second in itertools.combinations(sizes, 2):
        for one, other in itertools.product(sizes[first], sizes[second]):
            point = operator.complete({first: one.values[0], second: other.values[0]})
            if (
                operator.broken_rule(point) is None
                and search.nbytes(point) <= MOST_BYTES
                and not operator.redundant(point)
            ):
                assert tuple(sorted(((first, one.name), (second, other.name)))) in met


@pytest.mark.parametrize("name", OPERATORS)
def test_tensors_have_more_elements_than_20_bits_count(name):
    """Every one that has as many at a point of MANY_BYTES: native's rows, the drafter's tokens. Hidden rows have them
    within MOST_BYTES.
    """
    operator, points = CATALOG.operators[name], points_of(name)
    specs = (*tensors(operator.inputs).values(), *tensors(operator.outputs).values())
    many = {
        spec.name
        for spec in specs
        if any(spec.is_at(point) and math.prod(spec.shape(point)) > 2**20 for point in points)
    }
    assert many >= {"decode_native": {"buffer"}, "draft_inputs": {"hidden_states", "draft_tokens"}}.get(name, set())
    search = PointSearch(operator, MOST_BYTES)
    large = [point for point in points if not search.is_small(point)]
    assert len(large) <= len(specs)
    assert all(PointSearch(operator, arrays.MANY_BYTES).is_small(point) for point in large)
    if name == "decode_native":
        assert any(point.context_len == {"uniform": [1, 163840]} for point in large)  # no row is empty


def test_drawn_sizes_meet_ordinary_ones():
    """Of pairs the other sizes are often extreme: a step of 12 drafts whose requests decode one token each."""
    rows = [p for p in points_of("decode_native") if p.next_n == p.max_decode_len and p.batch_size > 8]
    ordinary = [point.next_n for point in rows if max(point.compress_ratio, point.next_n) < 128]
    assert {n.bit_length() for n in ordinary if n & (n - 1)} >= {4, 5, 6}


@pytest.mark.parametrize("name", OPERATORS)
def test_few_points_hide_what_a_share_decides(name):
    """Nothing accepted, copied or new at most points would hide the tables that depend on it."""
    operator, points = CATALOG.operators[name], points_of(name)
    shares = [axis.name for axis in operator.axes if axis.parse.__name__ in ("probability", "crossing_share")]
    for share in shares:
        hidden = sum(point[share] == 0 for point in points)
        assert hidden < len(points) / 2 or operator.complete({})[share] == 0, share


def test_pairs_that_met_without_effect_are_looked_for():
    """A width means nothing to a single row, and mode "off" has none: each meets the others where it has an effect."""
    mode = Axis("mode", choice, "on", "")
    width = Axis("width", whole, 4, "", largest=64, idle=lambda p: p.rows == 1 or p.mode == "off")
    operator = an_operator([Axis("rows", whole, 8, "", largest=64), mode, width])
    array = covering_array(operator, ())
    without = {frozenset((one.axis, one.name) for one in pair) for pair in array.legal - effective(array)}
    widths = {one.name for pair in array.legal for one in pair if one.axis == "width"}
    of_one_row = {frozenset((("rows", "1"), ("width", name))) for name in widths}
    assert without == of_one_row | {frozenset((("mode", "1"), ("width", name))) for name in widths}
    assert array.met_with_effect(array.by_label) == len(array.legal) - len(without)


def effective(array):
    return frozenset().union(*array.effective.values())


def choice(value):
    return value


choice.examples = ("on", "off")


def test_pairs_are_counted_by_the_points_that_passed():
    array = array_of("decode_native")
    labels = list(array.by_label)
    assert array.met(labels) == len(array.legal) > array.met(labels[:10]) > array.met(labels[:1]) > 0 == array.met([])


@pytest.mark.parametrize("name", OPERATORS)
def test_the_counts_of_the_document_are_those_of_today(name):
    """Else: python -m tools.pairs && python -m tools.splice"""
    written = json.loads(pairs.FILE.read_text(encoding="utf-8"))
    assert list(written) == list(CATALOG.operators)
    assert written[name] == pairs.counts_of(CATALOG.operators[name], array_of(name))


@pytest.mark.parametrize("name", OPERATORS)
def test_every_choice_meets_a_large_batch(name):
    operator, points = CATALOG.operators[name], points_of(name)
    for axis in operator.axes:
        for value in axis.examples_at(operator.complete({})) if axis.name != "context_len" else ():
            assert any(point[axis.name] == value and point.batch_size > 120 for point in points), (axis.name, value)


@pytest.mark.parametrize("name", OPERATORS)
def test_declared_sizes_are_tried_with_their_neighbours(name):
    declared = [(axis, size) for v in CATALOG.of(name) for axis, sizes in v.sizes.items() for size in sizes]
    seen = {(axis, point[axis]) for point in points_of(name) for axis in point if axis != "context_len"}
    assert {(axis, size + step) for axis, size in declared for step in (-1, 0, 1)} <= seen


@pytest.mark.parametrize("name", OPERATORS)
def test_pytorch_variants_pass(name):
    """At every point on a GPU. On a CPU at one in six, or at eight, as the scalar references take minutes for all."""
    operator = CATALOG.operators[name]
    variants = [v for v in healthy(name) if v.folder == "baselines"]
    assert variants
    for point in points_of(name) if DEVICE == "cuda" else few(points_of(name)[::6], 8):
        fixture = fixture_of(operator, point, DEVICE, SEED)
        assert fixture.nbytes <= 1.5 * arrays.MANY_BYTES  # small inputs are not counted
        for variant in variants:
            if not variant.skip(point):
                try:
                    verify_cell(fixture, variant, once=True)
                except Mismatch as mismatch:
                    raise AssertionError(f"{variant.id} at {operator.label(point)}: {mismatch}") from None


@pytest.mark.parametrize(
    "variant", [v for v in healthy() if v.folder == "kernels" and v.operator in OPERATORS], ids=lambda v: v.id
)
def test_fused_variants_pass_a_sample(variant):
    operator = CATALOG.operators[variant.operator]
    # Small ones, for the interpreter.
    taken = [p for p in points_of(operator.name) if p.batch_size <= 300 and p.batch_size * p.get("next_n", 1) <= 3000]
    taken = [point for point in taken if not variant.skip(point)]
    taken.sort(key=lambda point: operator.outputs.nbytes(point))
    for point in taken[:30:5]:
        verify_cell(fixture_of(operator, point, DEVICE, SEED), variant, once=True)
    assert len(taken) > 30


@pytest.mark.parametrize("mutant", [one for one in MUTANTS if one.variant.operator in OPERATORS], ids=lambda m: m.name)
def test_a_flaw_at_size_passes_all_edge_cases_and_fails_in_the_array(mutant):
    variant = mutant.variant
    operator = CATALOG.operators[variant.operator]
    findings = list(EdgeCaseChecks(operator, variant, DEVICE, SEED))
    assert {finding.status for finding in findings} <= {"passed", "skipped"}
    assert any(finding.status == "passed" for finding in findings)
    assert any(_is_rejected(operator, variant, point) for point in points_of(operator.name) if not variant.skip(point))


def _is_rejected(operator, variant, point):
    try:
        verify_cell(fixture_of(operator, point, DEVICE, SEED), variant, once=True)
    except Mismatch as mismatch:
        return mismatch.check == "exact"
    return False


# --- the search, on operators of the tests ----------------------------------------------------------------------------


def whole(value):
    if value < 1:
        raise ValueError
    return value


def an_operator(axes, rules=(), size=lambda p: p.rows):
    """One whose inputs and outputs are int32 [size]."""

    class Data(Tensors):
        data: I32[size]

    make = lambda point, seed: Data.empty(point)  # noqa: E731
    return Operator("mine", "", axes, Data, Data, make, None, None, "", rules=rules)


def sizes(operator, axis, variants=()):
    return sorted({point[axis] for point in covering_array(operator, variants).points})


def test_a_size_grows_to_the_bytes_that_are_allowed():
    found = sizes(an_operator([Axis("rows", whole, 8, "")]), "rows")
    assert found[:5] == [1, 2, 3, 4, 5]
    *_, most, many = found  # the last for its elements alone
    assert most * 8 <= MOST_BYTES < most * 16
    assert 2**20 < many <= arrays.MANY_BYTES / 8
    assert {2**k for k in range(2, 17)} <= set(found)


ROWS, LAYERS, RATIO = Axis("rows", whole, 8, ""), Axis("layers", whole, 4, "", largest=100), Axis("ratio", whole, 1, "")
CAPACITY = Axis("capacity", whole, 16, "")


@pytest.mark.parametrize(
    ("axes", "rule", "axis", "least", "most"),
    [
        ([ROWS, LAYERS], None, "layers", 100, 100),
        ([ROWS, RATIO], None, "ratio", 2**31 - 1, 2**31 - 1),  # a size without bytes
        ([ROWS], lambda p: p.rows <= 4095, "rows", 4095, 4095),
        ([ROWS, CAPACITY], lambda p: p.rows <= p.capacity, "rows", 10_000, 2**31),  # a capacity grows with its contents
        ([ROWS], lambda p: p.rows & (p.rows - 1) == 0, "rows", MOST_BYTES // 16, 2**31),  # powers of two alone
    ],
)
def test_a_size_grows_to_what_its_rules_permit(axes, rule, axis, least, most):
    found = sizes(an_operator(axes, [Rule("the rows of it", rule)] if rule else ()), axis)
    assert found[0] == 1
    assert least <= max(found) <= most


def test_an_array_is_the_same_every_time_and_has_other_sizes_with_another_seed():
    first, operator = array_of("decode_native"), CATALOG.operators["decode_native"]
    again, other = (covering_array(operator, CATALOG.of(operator.name), seed) for seed in (0, 2))
    assert list(first.by_label) == list(again.by_label)
    sizes = [{point.batch_size for point in array.points} for array in (first, other)]
    assert sizes[0] != sizes[1]
    for found in sizes:
        between = {size for size in found if all(abs(size - 2**n) > 1 for n in range(16))} - set(native_sizes())
        assert len({size.bit_length() for size in between} & set(range(5, 15))) >= 8
        assert any(size % 16 == 0 for size in between)
        assert any(size % 2 for size in between)


def native_sizes():
    """Of batches, that variants declare, with their neighbours."""
    return (
        size + step
        for v in CATALOG.of("decode_native")
        for size in v.sizes.get("batch_size", ())
        for step in (-1, 0, 1)
    )


def test_most_points_have_one_buffer_alone_misaligned():
    operator = CATALOG.operators["decode_native"]
    alone, aligned = set(), 0
    for point in points_of("decode_native")[:40]:
        fixture = fixture_of(operator, point, "cpu", SEED)
        again = fixture_of(operator, point, "cpu", SEED)
        starts = {(id_, name): buffer.tensor.data_ptr() % 16 for id_, name, buffer in buffers_of(fixture)}
        assert starts == {(id_, name): buffer.tensor.data_ptr() % 16 for id_, name, buffer in buffers_of(again)}
        off = [key for key, start in starts.items() if start]
        aligned += not off
        alone |= set(off) if len(off) == 1 else set()
    assert aligned
    assert alone == {("in", "seq_lens"), ("in", "decode_lens"), ("out", "buffer")}


def buffers_of(fixture):
    for kind, guard in (("in", fixture.inputs), ("out", fixture.outputs)):
        for name, buffer in guard.buffers.items():
            yield kind, name, buffer


def test_a_variant_that_skips_most_points_gets_some_of_its_own(monkeypatch):
    monkeypatch.setattr(arrays, "MOST_BYTES", 1 << 16)
    operator = an_operator([Axis("rows", whole, 8, ""), Axis("width", whole, 4, "", largest=64)], size=lambda p: p.rows)
    picky = Variant("mine", "picky", None, "", "test", skip=lambda p: "no" if p.width != 3 else None)
    few = [p for p in covering_array(operator, ()).points if p.width == 3]
    assert len([p for p in covering_array(operator, (picky,)).points if p.width == 3]) > len(few)
