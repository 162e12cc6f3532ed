"""chain_step: a worked example, and what packed slots have in common with the table."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from spec_decode_bench.baselines.chain_step.operator import Inputs, operator, passes
from tests.baselines.random_batches import drawn, legal_point, run_examples


def test_worked_example():
    """Requests with 2 and 1 cached tokens in slots 2 and 0, three drafts: passes over 3 and 2 tokens, then 4 and 3."""
    point = legal_point(operator, {"batch_size": 2, "max_num_seqs": 3, "max_model_len": 7, "context_len": 7})
    table = torch.tensor([[10, 11, 12, 13, 14, 0, 0], [0] * 7, [20, 21, 22, 23, 24, 25, 0]], dtype=torch.int32)
    got = operator.reference(point, Inputs(torch.tensor([2, 1]), torch.tensor([2, 0]), table))
    value = {name: expected.value for name, expected in got.items()}
    assert value["positions"][:2].tolist() == [[2, 3, 4, 5], [1, 2, 3, 4]]
    assert value["slots"][:2].tolist() == [[22, 23, 24, 25], [11, 12, 13, 14]]
    assert value["draft_slots"][:2].tolist() == [[22, 23, 24], [11, 12, 13]]
    assert value["tree"][:24].view(3, 2, 4).tolist() == [
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        [[1, 2, 3, -1], [1, 2, 3, -1]],
        [[-1] * 4, [-1] * 4],
    ]
    assert value["tree_mask"][1].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    lengths = [value[name][:2].tolist() for name in ("prefix_lens", "extend_lens", "start_locs", "post_lens")]
    assert lengths == [[2, 1], [4, 4], [0, 4], [6, 5]]
    assert value["kv_indptr"].tolist() == [[0, 3, 5, 0], [0, 4, 7, 0]]
    assert value["kv_indices"][:, :7].tolist() == [[20, 21, 22, 10, 11, 0, 0], [20, 21, 22, 23, 10, 11, 12]]


batches = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 12),
        "max_num_seqs": st.integers(12, 20),
        "max_model_len": st.just(90),
        "context_len": st.builds(lambda top: {"uniform": [1, top]}, st.integers(12, 90)),
        "next_n": st.integers(3, 9),
        "padding": st.sampled_from([0.0, 0.3]),
        "contents": st.sampled_from(["random", "share_prefixes", "one_long", "counting"]),
    }
)


@run_examples(100)
@given(axes=batches, seed=st.integers(0, 2**32 - 1))
def test_a_pass_reads_what_the_table_has_and_ends_with_the_drafters_slots(axes, seed):
    point, x = drawn(operator, axes, seed)
    value = {name: expected.value for name, expected in operator.reference(point, x).items()}
    for i in range(passes(point)):
        for b, (length, row) in enumerate(zip(x.seq_lens.tolist(), x.req_pool_indices.tolist(), strict=True)):
            start, end = value["kv_indptr"][i, b : b + 2].tolist()
            packed = value["kv_indices"][i, start:end].tolist()
            assert packed[:length] == x.req_to_token[row, :length].tolist()
            assert packed[length:] == value["draft_slots"][b, : i + 1].tolist()
