"""Points at capacity: what they reach, that healthy variants pass them, and flaws that show nowhere else."""

from functools import cache

import pytest
import torch

from harness.checks import Mismatch
from harness.contract import Axis, Operator, Rule
from harness.discover import discover
from harness.verify.capacity import MOST_BYTES, capacity_points
from harness.verify.edge_cases import check_variant
from harness.verify.fixture import Fixture, verify_cell
from harness.verify.points import tensor_bytes
from tests.harness.verify.mutants import MUTANTS
from tests.runnable import DEVICE, healthy
from tests.tier import FULL

CATALOG = discover()
SEED = 5
#: Looking for the points of all operators takes minutes.
OPERATORS = list(CATALOG.operators) if FULL else ["decode_native", "draft_inputs"]


@cache
def points_of(name):
    return capacity_points(CATALOG.operators[name], CATALOG.of(name), SEED)


@pytest.mark.parametrize("name", OPERATORS)
def test_points_are_legal_and_large(name):
    operator, points = CATALOG.operators[name], points_of(name)
    assert len({operator.label(point) for point in points}) == len(points) > 50
    for point in points:
        assert operator.broken_rule(point) is None
        assert operator.redundant(point) is None
        assert all(axis.parse(point[axis.name]) is not None for axis in operator.axes)
    largest = max(point.batch_size for point in points)
    assert largest > 2000


@pytest.mark.parametrize("name", OPERATORS)
def test_every_choice_meets_a_large_batch(name):
    operator, points = CATALOG.operators[name], points_of(name)
    for axis in operator.axes:
        for value in axis.examples_at(operator.complete({})) if axis.name != "context_len" else ():
            assert any(point[axis.name] == value and point.batch_size > 500 for point in points), (axis.name, value)


@pytest.mark.parametrize("name", OPERATORS)
def test_declared_sizes_are_tried_with_their_neighbours(name):
    declared = [(axis, size) for v in CATALOG.of(name) for axis, sizes in v.sizes.items() for size in sizes]
    seen = {(axis, point[axis]) for point in points_of(name) for axis in point if axis != "context_len"}
    assert {(axis, size + step) for axis, size in declared for step in (-1, 0, 1)} <= seen


@pytest.mark.parametrize("name", OPERATORS)
def test_pytorch_variants_pass(name):
    """At every point on a GPU. On a CPU at one in six, as the scalar references take minutes for all."""
    operator = CATALOG.operators[name]
    variants = [v for v in healthy(name) if v.origin.startswith("baselines.")]
    assert variants
    for point in points_of(name)[:: 1 if DEVICE == "cuda" else 6]:
        fixture = Fixture(operator, point, DEVICE, SEED, batches=2)
        assert fixture.nbytes <= MOST_BYTES
        for variant in variants:
            if not variant.skip(point):
                try:
                    verify_cell(fixture, variant, once=True)
                except Mismatch as mismatch:
                    raise AssertionError(f"{variant.id} at {operator.label(point)}: {mismatch}") from None


@pytest.mark.parametrize(
    "variant", [v for v in healthy() if v.origin.startswith("kernels.") and v.operator in OPERATORS], ids=lambda v: v.id
)
def test_fused_variants_pass_a_sample(variant):
    operator = CATALOG.operators[variant.operator]
    taken = [point for point in points_of(operator.name) if point.batch_size <= 300 and not variant.skip(point)]
    taken.sort(key=lambda point: tensor_bytes(operator.make_outputs(point)))
    for point in taken[:30:5]:  # small ones, for the interpreter
        verify_cell(Fixture(operator, point, DEVICE, SEED, batches=2), variant, once=True)
    assert len(taken) > 30


@pytest.mark.parametrize("mutant", [one for one in MUTANTS if one.variant.operator in OPERATORS], ids=lambda m: m.name)
def test_a_flaw_at_size_passes_all_edge_cases_and_fails_at_capacity(mutant):
    variant = mutant.variant
    operator = CATALOG.operators[variant.operator]
    findings = list(check_variant(operator, variant, DEVICE, SEED))
    assert {finding.status for finding in findings} <= {"passed", "skipped"}
    assert any(finding.status == "passed" for finding in findings)
    assert any(_is_rejected(operator, variant, point) for point in points_of(operator.name) if not variant.skip(point))


def _is_rejected(operator, variant, point):
    try:
        verify_cell(Fixture(operator, point, DEVICE, SEED, batches=2), variant, once=True)
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
    from dataclasses import make_dataclass

    tensors = make_dataclass("Tensors", ["data"])
    make = lambda point, *seed: tensors(torch.empty(size(point), dtype=torch.int32))  # noqa: E731
    return Operator("mine", "", axes, make, make, None, None, None, "", rules=rules)


def sizes(operator, axis, variants=()):
    return sorted({point[axis] for point in capacity_points(operator, variants, 0)})


def test_a_size_grows_to_the_bytes_that_are_allowed():
    found = sizes(an_operator([Axis("rows", whole, 8, "")]), "rows")
    assert found[:4] == [1, 2, 3, 5]
    assert max(found) * 8 <= MOST_BYTES < max(found) * 16
    assert {2**k + 1 for k in range(1, 18)} <= set(found)


def test_a_size_without_bytes_ends_at_its_bound_or_at_int32():
    axes = [Axis("rows", whole, 8, ""), Axis("layers", whole, 4, "", largest=100), Axis("ratio", whole, 1, "")]
    operator = an_operator(axes)
    assert max(sizes(operator, "layers")) == 100
    assert max(sizes(operator, "ratio")) == 2**31 - 1


def test_a_limit_that_is_no_power_of_two_is_reached():
    rule = Rule("rows ({rows})", lambda p: p.rows <= 4095)
    assert max(sizes(an_operator([Axis("rows", whole, 8, "")], [rule]), "rows")) == 4095


def test_a_capacity_grows_with_what_it_holds():
    rule = Rule("rows ({rows}) fit capacity ({capacity})", lambda p: p.rows <= p.capacity)
    operator = an_operator([Axis("rows", whole, 8, ""), Axis("capacity", whole, 16, "")], [rule])
    assert max(sizes(operator, "rows")) > 10_000


def test_values_that_only_powers_of_two_may_have():
    rule = Rule("rows ({rows})", lambda p: p.rows & (p.rows - 1) == 0)
    found = sizes(an_operator([Axis("rows", whole, 8, "")], [rule]), "rows")
    assert found[0] == 1
    assert all(size & (size - 1) == 0 for size in found)
    assert max(found) * 8 <= MOST_BYTES


def test_a_seed_gives_the_same_points_in_the_same_order():
    operator = CATALOG.operators["decode_native"]
    first, again, other = (capacity_points(operator, [], seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
