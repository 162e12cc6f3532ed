"""draft_passes: a worked example."""

import torch

from spec_decode_bench.baselines.draft_passes.operator import operator
from tests.baselines.random_batches import drawn


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
