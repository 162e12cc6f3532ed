"""gather_block_tables: worked examples."""

import torch

from spec_decode_bench.baselines.gather_block_tables.operator import operator
from spec_decode_bench.baselines.workloads.request_slots import UNUSED, group_tables
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


def test_worked_example_of_tokens():
    """Two blocks of four tokens, and one token of a third: their slots are 20 .. 23, 8 .. 11 and 12."""
    axes = {"batch_size": 1, "max_num_seqs": 3, "block_size": 4, "max_model_len": 14, "entries": "token"}
    point, x = drawn(operator, axes | {"context_len": 9}, 0)
    x.idx_mapping.fill_(2)
    x.num_blocks[0, 2] = 3
    rows = x.tables.view(3, 16)
    rows[2] = torch.tensor([20, 21, 22, 23, 8, 9, 10, 11, 12, *[UNUSED] * 7])
    expected = operator.reference(point, x)["block_tables"]
    (table,) = group_tables(point, expected.value)
    assert table[0, :3].tolist() == [5, 2, 3]
    assert group_tables(point, expected.may_keep)[0][0].tolist() == [False] * 3 + [True]


def test_slots_of_the_tokens_of_a_block_follow_one_another():
    axes = {"batch_size": 5, "max_num_seqs": 8, "block_size": 16, "max_model_len": 100, "entries": "token"}
    for contents in ("random", "shared_blocks", "large_ids"):
        _, x = drawn(operator, axes | {"contents": contents, "context_len": {"uniform": [4, 100]}}, 3)
        for row in x.tables.view(8, -1)[x.idx_mapping]:
            blocks = row[row < UNUSED]
            assert len(blocks) <= 100
            assert torch.equal(blocks % 16, torch.arange(len(blocks), dtype=torch.int32) % 16)
            assert torch.equal(blocks // 16, (blocks[::16] // 16).repeat_interleave(16)[: len(blocks)])
