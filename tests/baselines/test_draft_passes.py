"""draft_passes: a worked example, random steps."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from spec_decode_bench.baselines.draft_passes.operator import operator
from tests.baselines.random_batches import FEW_EXAMPLES, check_random, drawn, run_examples, steps


def test_worked_example():
    """k = 4, blocks of 4 tokens, 12 positions at most: row 0 keeps 6 of 8 tokens, row 1 ends with position 11."""
    axes = {"batch_size": 2, "max_num_seqs": 3, "next_n": 5, "block_size": 4, "max_model_len": 12, "context_len": 8}
    point, x = drawn(operator, axes, 0)
    x.idx_mapping.copy_(torch.tensor([2, 0]))
    x.seq_lens.copy_(torch.tensor([8, 11]))
    x.num_rejected.copy_(torch.tensor([2, 0]))
    x.tables.copy_(torch.arange(9))
    got = {name: e.value for name, e in operator.reference(point, x).items()}
    assert got["positions"][:, :2].tolist() == [[6, 11], [7, 11], [8, 11]]
    assert got["seq_lens"].tolist() == [[7, 12, 0], [8, 12, 0], [9, 12, 0]]
    assert got["sample_src_positions"][:, :2].tolist() == [[7, 12], [8, 13], [9, 14]]
    assert got["slot_mappings"][:, 0].tolist() == [[30, 11, -1], [31, 11, -1], [32, 11, -1]]
    assert got["query_start_loc"].tolist() == [0, 1, 2, 2]


SMALL = {"max_model_len": 600, "max_num_seqs": 9, "max_num_batched_tokens": 100, "block_size": 16}
random_steps = steps(
    600,
    rows=7,
    next_n=st.sampled_from([3, 4, 7]),
    context_len=st.one_of(st.sampled_from([1, 254, 600]), st.just({"uniform": [1, 600]})),
    prefill_len=st.integers(1, 40),
    acceptance=st.sampled_from([0.0, 0.5, 1.0]),
    advance=st.sampled_from(["yes", "no"]),
    num_groups=st.integers(1, 3),
    group_blocks=st.sampled_from(["same", "mixed"]),
    indexer=st.sampled_from(["none", "native"]),
    num_sms=st.sampled_from([1, 4, 7]),
)


@run_examples(FEW_EXAMPLES)
@given(axes=random_steps, seed=st.integers(0, 2**32 - 1))
def test_variants_equal_the_reference_on_random_steps(axes, seed):
    check_random(operator, SMALL | axes, seed)
