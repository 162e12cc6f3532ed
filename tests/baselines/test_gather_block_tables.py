"""gather_block_tables: a worked example."""

import torch

from spec_decode_bench.baselines.gather_block_tables.operator import operator
from spec_decode_bench.baselines.workloads.request_slots import group_tables
from tests.baselines.random_batches import drawn


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
