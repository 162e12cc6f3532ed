"""tests/baselines/random_batches.py: a seed draws the same batches again, and a failure names the variant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baselines.decode_native.chains import chain_clamp
from baselines.decode_native.operator import operator
from harness.checks import Mismatch
from harness.contract import Variant
from tests.baselines import random_batches
from tests.baselines.random_batches import check_random, run_examples


def drawn(monkeypatch, seed, count=30):
    monkeypatch.setattr(random_batches, "SEED", seed)
    numbers = []

    @run_examples(count)
    @given(st.integers(0, 2**64))
    def note(number):
        numbers.append(number)

    note()
    return numbers


def test_a_seed_draws_the_same_batches_again(monkeypatch):
    assert drawn(monkeypatch, 5) == drawn(monkeypatch, 5) != drawn(monkeypatch, 6)


def test_values_that_kernels_are_compiled_for_are_few_on_a_gpu_and_follow_from_the_seed(monkeypatch):
    def values(device, seed):
        monkeypatch.setattr(random_batches, "DEVICE", device)
        monkeypatch.setattr(random_batches, "SEED", seed)
        return set(random_batches.compiled_values(*range(10)).elements)

    assert values("cpu", None) == set(range(10))
    assert values("cuda", 1) == values("cuda", 1)
    assert {len(values("cuda", seed)) for seed in range(20)} == {random_batches.COMPILED_VALUES}
    assert set().union(*(values("cuda", seed) for seed in range(200))) == set(range(10))


def test_buffers_start_at_every_offset_with_seldom_variants_too(monkeypatch):
    offsets = {0: set(), 1: set()}

    def setup(point, x, out):
        offsets[seed % random_batches.SELDOM > 0].add(x.seq_lens.data_ptr() % 16)
        return chain_clamp(point, x, out)

    only(monkeypatch, "recording", setup)
    for seed in range(8 * random_batches.SELDOM):
        check_random(operator, {"batch_size": 2}, seed)
    assert offsets == {0: {0, 4, 8, 12}, 1: {0, 4, 8, 12}}


def test_a_few_batches_are_crowds(monkeypatch):
    sizes = []

    def setup(point, x, out):
        sizes.append((point.batch_size, point.next_n))
        return chain_clamp(point, x, out)

    only(monkeypatch, "recording", setup)
    for seed in range(400):
        check_random(
            operator,
            {"batch_size": 2, "next_n": 3},
            seed,
            crowds=[{"batch_size": 257}, {"batch_size": 300, "next_n": 1}],
        )
    assert set(sizes) == {(2, 3), (257, 3), (300, 1)}
    assert 4 <= sum(size > 2 for size, _ in sizes) <= 16


def only(monkeypatch, name, setup):
    """Make ``setup`` the only variant that random batches run."""
    mine = Variant(operator.name, name, setup, doc="", origin="kernels.mine")
    monkeypatch.setattr(random_batches, "_healthy", lambda operator: (mine,))


def test_a_mismatch_names_the_variant(monkeypatch):
    only(monkeypatch, "idle", lambda point, x, out: lambda: None)
    with pytest.raises(Mismatch, match="decode_native/idle"):
        check_random(operator, {"batch_size": 2}, 1)


def test_a_lost_context_is_blamed_on_the_batch_that_destroyed_it(monkeypatch):
    """All later batches fail with its name."""

    def setup(point, x, out):
        raise RuntimeError("an illegal memory access was encountered")

    only(monkeypatch, "wild", setup)
    monkeypatch.setattr(random_batches, "_context_destroyed_by", [])
    with pytest.raises(RuntimeError, match="illegal memory access"):
        check_random(operator, {"batch_size": 2}, 1)
    monkeypatch.setattr(random_batches, "is_context_lost", lambda device: True)
    for batch_size in (3, 4):
        with pytest.raises(
            AssertionError,
            match=r"decode_native/wild destroyed the CUDA context at Point.*'batch_size': 3,.*batch seed 7",
        ):
            check_random(operator, {"batch_size": batch_size}, 7)
