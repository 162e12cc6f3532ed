"""token_requests: a worked example, and what every batch has in common."""

import torch

from spec_decode_bench.baselines.token_requests.operator import Inputs, operator
from tests.baselines.random_batches import each_batch, int32, legal_point


def test_worked_example():
    """Three requests of two tokens, none and three, and two padding tokens; the buffer has four places more."""
    axes, start = {"batch_size": 3, "next_n": 3, "token_padding": 2, "max_num_batched_tokens": 11}, int32(0, 2, 2, 5)
    for request, padding in {"zero": [0, 0], "own": [3, 4]}.items():
        point = legal_point(operator, axes | {"padding_request": request})
        expected = operator.reference(point, Inputs(start, start, 7))["requests"]
        assert expected.value[:7].tolist() == [0, 0, 2, 2, 2, *padding]
        assert expected.untouched.tolist() == [False] * 7 + [True] * 4


@each_batch(operator, 200, padding_request="own")
def test_requests_have_their_tokens_in_order_and_padding_tokens_one_each(point, x):
    requests = operator.reference(point, x)["requests"].value[: x.num_tokens]
    assert (torch.diff(requests) >= 0).all()
    counts = torch.bincount(requests, minlength=point.batch_size)
    assert counts[: point.batch_size].tolist() == torch.diff(x.query_start_loc).tolist()
    assert (counts[point.batch_size :] == 1).all()
    assert len(counts) == point.batch_size + x.num_tokens - int(x.query_start_loc[-1])
