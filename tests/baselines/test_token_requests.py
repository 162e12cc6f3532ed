"""token_requests: a worked example, and what every batch has in common."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from spec_decode_bench.baselines.token_requests.operator import Inputs, operator
from tests.baselines.random_batches import drawn, int32, legal_point, run_examples


def test_worked_example():
    """Three requests of two tokens, none and three, and two padding tokens; the buffer has four places more."""
    axes, start = {"batch_size": 3, "next_n": 3, "token_padding": 2, "max_num_batched_tokens": 11}, int32(0, 2, 2, 5)
    for request, padding in {"zero": [0, 0], "own": [3, 4]}.items():
        point = legal_point(operator, axes | {"padding_request": request})
        expected = operator.reference(point, Inputs(start, start, 7))["requests"]
        assert expected.value[:7].tolist() == [0, 0, 2, 2, 2, *padding]
        assert expected.untouched.tolist() == [False] * 7 + [True] * 4


batches = st.fixed_dictionaries(
    {
        "batch_size": st.integers(3, 20),
        "next_n": st.integers(1, 9),
        "decode_len": st.sampled_from(["uniform", "ragged", "mixed"]),
        "padding": st.sampled_from([0.0, 0.3]),
        "prefills": st.integers(0, 2),
        "prefill_len": st.integers(1, 70),
        "token_padding": st.integers(0, 5),
        "host_lens": st.sampled_from(["exact", "stale"]),
        "contents": st.sampled_from(["random", "reverse"]),
    }
)


@run_examples(200)
@given(axes=batches, seed=st.integers(0, 2**32 - 1))
def test_requests_have_their_tokens_in_order_and_padding_tokens_one_each(axes, seed):
    point, x = drawn(operator, axes | {"padding_request": "own"}, seed)
    requests = operator.reference(point, x)["requests"].value[: x.num_tokens]
    assert (torch.diff(requests) >= 0).all()
    counts = torch.bincount(requests, minlength=point.batch_size)
    assert counts[: point.batch_size].tolist() == torch.diff(x.query_start_loc).tolist()
    assert (counts[point.batch_size :] == 1).all()
    assert len(counts) == point.batch_size + x.num_tokens - int(x.query_start_loc[-1])
