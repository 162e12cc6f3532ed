"""Points that are illegal, and points that a sweep leaves out because another one has the same batch."""

import pytest

from spec_decode_bench.harness.discover import discover

CATALOG = discover()
ILLEGAL = {
    "block_draft_inputs": [
        {"batch_size": 4, "next_n": 1},
        {"batch_size": 4, "next_n": 8, "max_decode_len": 1, "max_num_batched_tokens": 27},
        {"batch_size": 4, "cp_size": 2, "block_size": 8, "cp_interleave": 16},
    ],
    "decode_step": [
        {"batch_size": 9, "max_num_batched_tokens": 35},
        {"batch_size": 9, "max_num_batched_tokens": 35, "decode_path": "native", "padding": 0.9},
        {"batch_size": 1025},
        {"batch_size": 1000, "max_model_len": 2**30},
    ],
    "draft_passes": [{"batch_size": 4, "next_n": 2}, {"batch_size": 9, "max_num_seqs": 8}],
    "k_quant_gather": [
        {"chunk_tokens": 9, "head_dim": 2048},
        {"chunk_tokens": 9, "block_size": 2**24},
        {"chunk_tokens": 9, "page_padding": 2**31},
    ],
    "mla_tile_schedule": [{"num_sm_parts": 133}, {"batch_size": 1025}, {"batch_size": 4096, "max_num_seqs": 4096}],
    "paged_mqa_schedule": [
        {"next_n": 2, "atoms": 3},
        {"batch_size": 8192, "max_model_len": 2**31 - 1},
        {"indices": "yes", "lens_layout": "2d"},
    ],
    "step_prologue": [
        {"batch_size": 4, "num_groups": 2, "state_groups": 2},
        {"batch_size": 4, "indexer": "flatten", "prefills": 1},
        {"batch_size": 4, "indexer": "native", "window": 20},
        {"batch_size": 300, "max_num_seqs": 299},
        {"batch_size": 4, "num_sms": 4, "num_sm_parts": 5},
        {"batch_size": 4096, "indexer": "native", "max_num_batched_tokens": 2**15},
    ],
}
#: Axes of a point, and whether it is redundant.
REDUNDANT = {
    "decode_step": [
        ({"decode_path": "native", "token_padding": 16}, True),
        ({"decode_path": "native", "host_lens": "stale"}, True),
        ({"decode_path": "flatten", "token_padding": 16}, False),
        ({"batch_size": 1, "padding": 0.1}, True),
    ],
    "paged_mqa_schedule": [
        ({"lens_layout": "1d", "max_decode_len": 3}, True),
        ({"lens_layout": "1d"}, False),
        ({"decode_len": "ragged"}, True),
        ({"decode_len": "ragged", "indices": "yes"}, False),
        ({"batch_size": 1, "padding": 0.1}, True),
    ],
}


def broken_rule(name, **axes):
    operator = CATALOG.operators[name]
    return operator.broken_rule(operator.complete(axes))


@pytest.mark.parametrize(("name", "axes"), [(name, axes) for name, of in ILLEGAL.items() for axes in of])
def test_illegal(name, axes):
    assert broken_rule(name, **axes) is not None


def test_the_largest_head_of_a_cache_is_legal():
    assert broken_rule("k_quant_gather", chunk_tokens=9, head_dim=1024) is None


@pytest.mark.parametrize(
    ("name", "axes", "is_redundant"), [(name, *case) for name, of in REDUNDANT.items() for case in of]
)
def test_redundant(name, axes, is_redundant):
    operator = CATALOG.operators[name]
    assert (operator.redundant(operator.complete(axes)) is not None) == is_redundant


@pytest.mark.parametrize(
    "name",
    ["decode_flatten", "decode_native", "decode_step", "mla_tile_schedule", "paged_mqa_schedule", "seq_lens_update"],
)
def test_lengths_that_int32_does_not_hold_are_illegal(name):
    assert broken_rule(name, batch_size=1, max_model_len=2**31 - 1) is None
    assert "int32" in broken_rule(name, batch_size=1, max_model_len=2**31).message
    if "block_size" in CATALOG.operators[name].complete({}):
        assert "int32" in broken_rule(name, batch_size=1, block_size=2**31).message


@pytest.mark.parametrize("name", ["step_prologue", "step_epilogue", "draft_passes"])
def test_a_step_without_a_real_request_is_refused(name):
    (padding,) = [axis for axis in CATALOG.operators[name].axes if axis.name == "padding"]
    with pytest.raises(ValueError, match="0, 1"):
        padding.parse(1)
