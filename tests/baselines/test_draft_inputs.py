"""draft_inputs: worked examples, the passes against their closed form."""

from dataclasses import replace

import pytest
import torch

from spec_decode_bench.baselines.draft_inputs.operator import operator
from tests.baselines.random_batches import drawn, legal_point


def set_contents(x, **contents):
    for name, values in contents.items():
        getattr(x, name).copy_(torch.tensor(values))


def test_worked_example_of_the_first_pass():
    """Row 0: four tokens, one draft rejected. Row 1: a chunk of two, which goes on with the prompt's next token."""
    axes = {"batch_size": 2, "prefills": 1, "prefill_len": 2, "max_num_seqs": 3, "max_num_batched_tokens": 8}
    point, x = drawn(operator, axes, 0)
    set_contents(x, idx_mapping=[2, 0], seq_lens=[104, 42], num_rejected=[1, 0], num_sampled=[3, 0])
    set_contents(
        x,
        last_sampled_tokens=[50, 51, 52],
        next_prefill_tokens=[60, 61, 62],
        target_input_ids=[10, 11, 12, 13, 20, 21, 0, 0],
    )
    set_contents(x, target_positions=[100, 101, 102, 103, 40, 41, 0, 0])
    expected = operator.reference(point, x)
    assert expected["input_ids"].value[:6].tolist() == [11, 12, 52, 0, 21, 60]
    assert expected["input_ids"].untouched.tolist() == [False] * 3 + [True] + [False] * 2 + [True] * 2
    assert expected["positions"].value[:6].tolist() == [100, 101, 102, 0, 40, 41]
    assert expected["last_token_indices"].value.tolist() == [2, 5, 0]
    assert expected["seq_lens"].value.tolist() == [104, 42, 0]
    assert expected["query_start_loc"].value.tolist() == [0, 4, 6, 6]


@pytest.mark.parametrize("advance", ["yes", "no"])
@pytest.mark.parametrize("room", [0, 1, 3, 100])
def test_passes_in_sequence_equal_the_closed_form(advance, room):
    """Pass s: pos = min(p + s, M - 1), src = p + 1 + s, lens = min(seq_lens - rejected + s, M)."""
    k, p, most = 6, 200, 201 + room
    axes = {"batch_size": 1, "next_n": k + 1, "max_num_seqs": 2, "max_model_len": most, "advance": advance}
    axes |= {"context_len": 150, "hidden_size": 1}
    point, x = drawn(operator, axes | {"draft_pass": "second"}, 0)
    set_contents(x, seq_lens=[p + 1], num_rejected=[0], positions_before=[p])
    state = operator.reference(point, x)
    point = legal_point(operator, axes | {"draft_pass": "later"})
    for s in range(1, k):
        shift = s if advance == "yes" else 0
        assert int(state["positions"].value[0]) == min(p + shift, most - 1)
        assert int(state["seq_lens"].value[0]) == min(p + 1 + shift, most)
        assert int(state["sample_src_positions"].value[0]) == p + 1 + s
        x = replace(
            operator.make_inputs(point, s),
            current_draft_step=torch.tensor([s]),
            positions_before=state["positions"].value[:1],
            sample_src_positions_before=state["sample_src_positions"].value[:1],
            seq_lens_before=state["seq_lens"].value[:1],
        )
        state = operator.reference(point, x)
        assert (~state["draft_tokens"].untouched).nonzero().tolist() == [[0, s]]
    assert all(expected.untouched.all() for name, expected in state.items() if name != "draft_tokens")
