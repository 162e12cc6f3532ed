"""Which pairs of the covering array meet where something depends on them."""

from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.verify.covering_array import covering_array
from spec_decode_bench.harness.verify.effect import axes_with_effect, pairs_with_effect

CATALOG = discover()


def test_an_axis_has_effect_where_another_value_changes_what_is_expected():
    mamba = CATALOG.operators["mamba_spec_metadata"]
    small = {"batch_size": 3, "max_num_seqs": 5, "max_model_len": 256, "mamba_block_size": 16}
    here = axes_with_effect(mamba, mamba.complete(small | {"context_len": {"uniform": [1, 256]}}))
    assert here >= {"batch_size", "mamba_block_size", "num_speculative_blocks", "cache_mode"}
    assert "table_padding" not in here  # how rows lie changes nothing that is expected
    assert "mamba_block_size" not in axes_with_effect(mamba, mamba.complete(small | {"cache_mode": "none"}))


def test_pairs_with_effect_are_some_of_those_that_meet_at_small_points():
    native = CATALOG.operators["decode_native"]
    array = covering_array(native, CATALOG.of("decode_native"))
    found = pairs_with_effect(native, array)
    assert 10 < len(found) < len(array.points)
    assert all(found[label] <= array.pairs[label] for label in found)
    assert 0 < len(frozenset().union(*found.values())) < len(array.legal)
