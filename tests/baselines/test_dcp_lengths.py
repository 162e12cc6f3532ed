"""dcp_lengths: worked examples, and what the ranks of a batch have in common."""

import pytest
import torch

from spec_decode_bench.baselines.dcp_lengths.operator import Inputs, operator, rank_of
from tests.baselines.random_batches import each_batch, int32, legal_point


@pytest.mark.parametrize(
    ("rank", "interleave", "expected"),
    [
        # Token by token: rank 0 has positions 0, 4, 8; rank 2 has 2, 6; rank 3 has 3, 7.
        ("first", 1, [0, 1, 2, 3]),
        ("middle", 1, [0, 0, 1, 2]),
        ("last", 1, [0, 0, 1, 2]),
        # Two tokens in turn: rank 0 has positions 0, 1, 8, 9; rank 2 has 4, 5; rank 3 has 6, 7.
        ("first", 2, [0, 1, 2, 3]),
        ("middle", 2, [0, 0, 1, 2]),
        ("last", 2, [0, 0, 0, 2]),
    ],
)
def test_worked_examples(rank, interleave, expected):
    """Lengths 0, 1, 5 and 9 on one of four ranks, and two rows of padding."""
    axes = {"batch_size": 6, "padding": 0.33, "max_num_seqs": 6, "cp_size": 4, "cp_rank": rank}
    point = legal_point(operator, axes | {"cp_interleave": interleave})
    value = operator.reference(point, Inputs(int32(0, 1, 5, 9, 77, 77), 4))["local_seq_lens"].value
    assert value.tolist() == [*expected, 0, 0]


@each_batch(operator, 200)
def test_a_rank_has_the_positions_whose_turn_is_its_own(point, x):
    value = operator.reference(point, x)["local_seq_lens"].value.tolist()
    for b in range(point.max_num_seqs):
        length = int(x.seq_lens[b]) if b < x.num_reqs else 0
        mine = torch.arange(length) // point.cp_interleave % point.cp_size == rank_of(point)
        assert value[b] == int(mine.sum())
