"""draft_budget: worked examples by both rules, invariants, products that are exact."""

import numpy as np
import pytest
import torch

from spec_decode_bench.baselines.draft_budget.cases import CONTENTS
from spec_decode_bench.baselines.draft_budget.operator import by_vllm, confidences, num_drafts, num_rows, operator
from tests.baselines.random_batches import drawn, each_batch


def admitted(point, expected):
    if by_vllm(point):
        return expected["num_drafts"].value[: point.batch_size].tolist()
    return [length - 1 for length in expected["verify_lens"].value[: num_rows(point)].tolist()]


def test_worked_example_of_vllm():
    """k = 3, a chunk of 5 tokens in the last row; p is 1 1 .5 | .5 .5 .25 | -, of which four are admitted."""
    axes = {"batch_size": 3, "next_n": 4, "max_num_seqs": 5, "prefills": 1, "prefill_len": 5, "budget": 0.7}
    point, x = drawn(operator, axes, 0)
    assert (x.draft_budget, x.num_tokens, x.num_drafts.tolist()) == (4, 11, [3, 3, 0])
    x.idx_mapping.copy_(torch.tensor([4, 0, 2]))
    for slot, row in ((4, [1.0, 1.0, 0.5]), (0, [0.5, 1.0, 0.5])):
        x.confidence[slot] = torch.tensor(row)
    expected = operator.reference(point, x)
    assert admitted(point, expected) == [3, 1, 0]
    assert expected["cu_num_logits"].value.tolist() == [0, 4, 6, 7, 0, 0]
    assert expected["cu_num_logits"].untouched.tolist() == [False] * 4 + [True] * 2
    assert expected["query_start_loc"].value.tolist() == [0, 4, 6, 11, 11, 11]


@pytest.mark.parametrize(
    ("capped", "lens", "starts"),
    [("no", [3, 2, 5, 4], [0, 3, 5, 10, 14]), ("yes", [3, 2, 4, 4], [0, 3, 5, 9, 13])],
)
def test_worked_example_of_sglang(capped, lens, starts):
    """The same confidences: of equal p the earlier draft is first, so row 1 has one and row 0 no third draft."""
    axes = {"rule": "sglang", "batch_size": 4, "padding": 0.5, "next_n": 4, "max_num_seqs": 5, "capped": capped}
    point, x = drawn(operator, axes | {"token_padding": 9}, 0)
    assert (x.draft_budget, x.num_tokens) == (3, 14)
    x.confidence.copy_(torch.tensor([[1.0, 1.0, 0.5], [0.5, 1.0, 0.5]]))
    expected = operator.reference(point, x)
    assert expected["verify_lens"].value.tolist() == [*lens, 0]
    assert expected["query_start_loc"].value.tolist() == [*starts, 0]


def test_drafts_that_survive_too_seldom_are_no_drafts_of_sglang():
    axes = {"rule": "sglang", "batch_size": 3, "padding": 0.1, "next_n": 3, "budget": 1.0}
    point, x = drawn(operator, axes, 0)
    x.confidence.copy_(torch.tensor([[2.0**-19, 1.0], [2.0**-20, 1.0]]))
    assert operator.reference(point, x)["verify_lens"].value[:3].tolist() == [3, 1, 2]


@pytest.mark.parametrize("contents", ["random", *CONTENTS])
def test_what_is_admitted(contents):
    each_batch(operator, 40, capped="no", contents=contents)(check_admitted)()


def check_admitted(point, x):
    """The first drafts of each row, as many as the budget, and none that is less likely than one left out."""
    expected = operator.reference(point, x)
    rows = x.confidence[x.idx_mapping] if by_vllm(point) else x.confidence
    survival = rows.double().cumprod(1)
    scheduled = x.num_drafts.tolist() if by_vllm(point) else [point.next_n - 1] * len(rows)
    counts = admitted(point, expected)
    starts = expected["query_start_loc"].value
    if by_vllm(point):
        assert sum(counts) == x.draft_budget
        assert starts[-1] == x.num_tokens == int(x.non_draft_tokens.sum()) + x.draft_budget
    else:
        assert starts[point.batch_size] == x.num_tokens
        if len(rows) == point.batch_size:
            return  # the last row has the rest of the tokens
        assert sum(counts) <= x.draft_budget
    chosen = [survival[b, i] for b, count in enumerate(counts) for i in range(count)]
    left = [survival[b, i] for b, count in enumerate(counts) for i in range(count, scheduled[b])]
    if sum(counts) == x.draft_budget and chosen and left:
        assert min(chosen) >= max(left)
    elif not by_vllm(point):
        assert all(one < 1e-6 for one in left) or x.draft_budget == 0


@pytest.mark.parametrize("drafts", [1, 2, 3, 5, 7, 12, 13, 40, 100])
def test_products_are_exact_in_fp32(drafts):
    drawn_rows = confidences(np.random.default_rng(drafts), 300, drafts)
    exact = drawn_rows.astype(np.float64).cumprod(1)
    assert (drawn_rows.cumprod(1, dtype=np.float32) == exact).all()
    backwards = drawn_rows[:, ::-1].prod(1, dtype=np.float32)
    assert (backwards == exact[:, -1]).all()
    assert exact.min() > 2.0**-100
    assert drawn_rows.max() <= 1
    assert len(np.unique(drawn_rows[:, 0])) > 200


def test_drafts_of_a_batch():
    point = operator.complete({"batch_size": 7, "next_n": 4, "decode_len": "ragged", "prefills": 2})
    assert num_drafts(point) == 3 + 2 + 1 + 0 + 3
    assert num_drafts(operator.complete({"batch_size": 7, "next_n": 4, "rule": "sglang"})) == 21
