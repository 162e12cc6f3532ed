"""Which axes have an effect, by the scalar reference, and that it agrees with what operators declare idle."""

import pytest

from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.verify.points import PointSearch
from tests.arrays import array_of
from tests.tier import FULL
from tools.effect import MOST_BYTES, axes_with_effect, pairs_with_effect

CATALOG = discover()
OPERATORS = list(CATALOG.operators) if FULL else ["mamba_align_step"]
#: Where no block is read, ids are drawn in another order if blocks have another size: they differ, and mean the same.
#: Contents are idle where that edit finds nothing to change; another one does.
LEFT_OUT = {
    "mamba_spec_metadata": {"mamba_block_size", "context_len"},
    "gather_block_tables": {"contents"},
    "staged_writes": {"context_len"},
}


def test_an_axis_has_effect_where_another_value_changes_what_is_written():
    mamba = CATALOG.operators["mamba_spec_metadata"]
    small = {"batch_size": 3, "max_num_seqs": 5, "max_model_len": 256, "mamba_block_size": 16}
    here = axes_with_effect(mamba, mamba.complete(small | {"context_len": {"uniform": [1, 256]}}))
    assert here >= {"batch_size", "mamba_block_size", "num_speculative_blocks", "cache_mode"}
    assert "table_padding" not in here  # how rows lie changes nothing that is expected
    assert "mamba_block_size" not in axes_with_effect(mamba, mamba.complete(small | {"cache_mode": "none"}))


@pytest.mark.parametrize("name", OPERATORS)
def test_idle_axes_change_nothing_that_is_written(name):
    operator, seen = CATALOG.operators[name], set()
    search = PointSearch(operator, MOST_BYTES)
    for point in filter(search.is_small, array_of(name).points):
        idle = operator.idle_axes(point) - LEFT_OUT.get(name, set())
        assert not idle & axes_with_effect(operator, point), operator.label(point)
        seen |= idle
    assert seen or not any(operator.idle_axes(point) for point in array_of(name).points)


@pytest.mark.parametrize("name", OPERATORS)
def test_nearly_all_pairs_meet_with_effect(name):
    """That have one anywhere: a chunk's length never has one in a step without chunks."""
    array = array_of(name)
    assert 0.85 * len(array.legal) < array.met_with_effect(array.by_label) <= len(array.legal)


def test_pairs_with_effect_are_some_of_those_that_meet_at_small_points():
    native = CATALOG.operators["decode_native"]
    array = array_of("decode_native")
    found = pairs_with_effect(native, array)
    assert 10 < len(found) < len(array.points)
    assert all(found[label] <= array.pairs[label] for label in found)
    assert 0 < len(frozenset().union(*found.values())) < len(array.legal)
