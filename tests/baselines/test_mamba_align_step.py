"""mamba_align_step: the worked example of two steps."""

import torch

from spec_decode_bench.baselines.mamba_align_step.operator import Inputs, operator
from tests.baselines.random_batches import int32, legal_point

ONE = {"batch_size": 1, "max_num_seqs": 2, "next_n": 3, "mamba_block_size": 4, "max_model_len": 16, "context_len": 4}


def before(computed, column, accepted, query=3):
    """One request in slot 1 of 2, BS = 4, k = 2: (column, accepted, move, state slots)."""
    point = legal_point(operator, ONE)
    table = torch.arange(10, 16).int().expand(1, 2, -1).contiguous()
    x = Inputs(
        idx_mapping=torch.tensor([1]),
        num_computed_tokens=int32(0, computed),
        state_columns_before=int32(0, column),
        num_accepted_tokens_before=int32(9, accepted),
        query_start_loc=int32(0, query, query),
        seq_lens=int32(computed + query),
        slot_tables=table,
        batch_tables=table[:, :1].contiguous(),
    )
    got = {name: expected.value for name, expected in operator.reference(point, x).items()}
    return (
        int(got["state_columns"][1]),
        int(got["num_accepted_tokens"][1]),
        got["moves"][0].tolist(),
        got["state_slots"][0, 0].tolist(),
    )


def after(computed, column, accepted):
    """The same request after sampling: (accepted, move)."""
    point = legal_point(operator, ONE | {"phase": "after_sampling"})
    x = Inputs(torch.tensor([1]), int32(0, computed), int32(0, column), int32(9, accepted))
    got = {name: expected.value for name, expected in operator.reference(point, x).items()}
    return int(got["num_accepted_tokens"][1]), got["moves"][0].tolist()


def test_worked_example():
    """nc = 3, q = 3 crosses into column 1; two tokens are accepted: the state of four tokens is frozen in column 0."""
    assert before(3, 0, 1) == (1, 1, [0, 1, 0], [11, 12, 13])
    assert after(5, 1, 2) == (2, [1, 0, 0])
    assert before(5, 1, 2) == (1, 2, [-1, -1, 0], [11, 12, 13])
    assert after(6, 1, 1) == (1, [-1, -1, 0])
    assert before(6, 1, 1) == (2, 1, [1, 2, 0], [12, 13, 14])
    assert after(8, 2, 2) == (2, [2, 1, 1])


def test_a_state_in_its_own_column():
    assert after(8, 1, 1) == (1, [-1, -1, 0])
    assert after(8, 1, 3) == (1, [1, 1, 2])
    assert before(0, -1, 1) == (0, 1, [-1, -1, 0], [10, 11, 12])
