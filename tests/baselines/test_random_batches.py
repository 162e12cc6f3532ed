"""tests/baselines/random_batches.py: a seed draws the same batches again, and a failure names the variant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def only(monkeypatch, name, setup):
    """Make ``setup`` the only variant that random batches run."""
    mine = Variant(operator.name, name, setup, doc="", origin="kernels.mine")
    monkeypatch.setattr(random_batches, "_healthy", lambda operator: (mine,))


def test_a_mismatch_names_the_variant(monkeypatch):
    only(monkeypatch, "idle", lambda point, x, out: lambda: None)
    with pytest.raises(Mismatch, match="decode_native/idle"):
        check_random(operator, {"batch_size": 2}, 1)
