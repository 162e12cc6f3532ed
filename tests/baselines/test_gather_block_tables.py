"""gather_block_tables: a worked example, what a consumer may read."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from spec_decode_bench.baselines.gather_block_tables.operator import operator
from spec_decode_bench.baselines.workloads.request_slots import group_tables
from tests.baselines.random_batches import drawn, run_examples


def test_worked_example():
    """BS 16, reach 31, 70 computed: null = 39 // 16 = 2 of six blocks. One padding row, two rows left over."""
    axes = {"batch_size": 2, "padding": 0.5, "dirty": 4, "max_num_seqs": 5, "block_size": 16, "max_model_len": 128}
    point, x = drawn(operator, axes | {"window": 31, "context_len": 90}, 0)
    x.idx_mapping.fill_(3)
    x.num_computed_tokens[3] = 70
    x.num_blocks[0, 3] = 6
    group_tables(point, x.tables)[0][3] = torch.tensor([11, 12, 13, 14, 15, 16, 17, 18])
    expected = operator.reference(point, x)["block_tables"]
    table, untouched, slack = (
        group_tables(point, part)[0] for part in (expected.value, expected.untouched, expected.may_keep)
    )
    assert table[0, :6].tolist() == [0, 0, 13, 14, 15, 16]
    assert slack[0].tolist() == [False] * 6 + [True] * 2
    assert not table[1:4].any()
    assert not slack[1:].any()
    assert untouched.all(1).tolist() == [False] * 4 + [True]


SMALL = {"max_model_len": 300, "max_num_seqs": 20}
random_steps = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 14),
        "padding": st.sampled_from([0.0, 0.3, 1.0]),
        "context_len": st.one_of(st.integers(4, 300), st.just({"uniform": [4, 300]})),
        "block_size": st.sampled_from([1, 4, 16, 64, 300]),
        "num_groups": st.integers(1, 4),
        "group_blocks": st.sampled_from(["same", "mixed"]),
        "window": st.sampled_from([0, 1, 16, 31, 200]),
        "dirty": st.integers(0, 20),
        "memory": st.sampled_from(["device", "uva"]),
    }
)


@run_examples(200)
@given(axes=random_steps, seed=st.integers(0, 2**32 - 1))
def test_a_consumer_reads_owned_blocks_or_zero(axes, seed):
    """No junk of unused slots and columns is left in what a consumer reads, and rows hold disjoint blocks."""
    point, x = drawn(operator, SMALL | axes, seed)
    expected = operator.reference(point, x)["block_tables"]
    for table, kept, unread in zip(
        *(group_tables(point, part) for part in (expected.value, expected.untouched, expected.may_keep)), strict=True
    ):
        read = table[~kept & ~unread]
        ids = read[read > 0].tolist()
        assert len(set(ids)) == len(ids)
        assert all(0 < block <= table.numel() for block in ids)
