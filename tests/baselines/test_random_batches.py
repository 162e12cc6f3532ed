"""tests/baselines/random_batches.py rejects a wrong variant, and names it."""

import pytest

from spec_decode_bench.baselines.decode_native.operator import operator
from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.contract import Variant
from tests.baselines import random_batches
from tests.baselines.random_batches import check_random


def test_a_mismatch_names_the_variant(monkeypatch):
    idle = Variant(operator.name, "idle", lambda point, x, out: lambda: None, doc="", origin="mine")
    monkeypatch.setattr(random_batches, "_healthy", lambda operator: (idle,))
    with pytest.raises(Mismatch, match="decode_native/idle"):
        check_random(operator, {"batch_size": 2}, 1)
