"""gdn_split: a worked example, and what every batch has in common."""

import torch

from spec_decode_bench.baselines.gdn_split.operator import Inputs, operator
from tests.baselines.random_batches import each_batch, int32, legal_point


def test_worked_example():
    """A plain decode, two drafts, a first chunk of two tokens, no draft, padding; k = 2."""
    axes = {"batch_size": 5, "next_n": 3, "max_num_seqs": 6, "padding": 0.2, "prefills": 1, "prefill_len": 2}
    point = legal_point(operator, axes | {"plain": 0.3, "decode_len": "ragged", "max_num_batched_tokens": 8})
    x = Inputs(
        query_start_loc=int32(0, 1, 4, 6, 7, 7),
        num_draft_tokens=int32(-1, 2, -1, 0, -1),
        num_accepted_tokens=int32(2, 3, 1, 2, 99),
        seq_lens=int32(9, 20, 2, 30, 0),
        block_table=torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12], [0, 0, 0]], dtype=torch.int32),
        num_spec_requests=2,
        num_spec_tokens=4,
        num_tokens=7,
    )
    expected = operator.reference(point, x)
    written = {name: e.value[~e.untouched].tolist() for name, e in expected.items()}
    assert written == {
        "spec_mask": [False, True, False, True, False],
        "spec_state_slots": [4, 5, 6, 10, 11, 12] + [0] * 9,
        "spec_accepted": [3, 2, 1, 1, 1],
        "spec_query_start_loc": [0, 3, 4, 4, 4, 4],
        "spec_tokens": [1, 2, 3, 6],
        "plain_state_slots": [1, 7, 0, 0, 0],
        "has_initial_state": [True, False, False, False, False],
        "plain_query_start_loc": [0, 1, 3, 3, 3, 3],
        "plain_tokens": [0, 4, 5],
    }
    assert all(len(e.value) > len(x.seq_lens) and not e.untouched[0].any() for e in expected.values())


@each_batch(operator, 200)
def test_every_token_is_in_the_list_of_its_request_once(point, x):
    out = {name: e.value for name, e in operator.reference(point, x).items()}
    spec = x.num_draft_tokens >= 0
    assert (int(spec.sum()), int(x.query_start_loc[-1])) == (x.num_spec_requests, x.num_tokens)
    of_token = torch.repeat_interleave(spec, torch.diff(x.query_start_loc))
    assert out["spec_tokens"][: x.num_spec_tokens].tolist() == of_token.nonzero().flatten().tolist()
    plain = x.num_tokens - x.num_spec_tokens
    assert out["plain_tokens"][:plain].tolist() == (~of_token).nonzero().flatten().tolist()
    for kind, mask in {"spec": spec, "plain": ~spec}.items():
        lens = torch.diff(out[f"{kind}_query_start_loc"][: point.batch_size + 1])
        assert lens[: int(mask.sum())].tolist() == torch.diff(x.query_start_loc)[mask].tolist()
        assert not lens[int(mask.sum()) :].any()
