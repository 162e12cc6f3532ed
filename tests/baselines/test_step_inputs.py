"""step_inputs: a worked example, and lengths that stay in range."""

import pytest
import torch

from spec_decode_bench.baselines.step_inputs.operator import operator
from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.verify.edge_cases import EdgeCaseChecks
from tests.baselines.random_batches import drawn


@pytest.mark.parametrize(
    ("prompt", "ids", "drafted"),
    [
        (10, [70, 80, 81, 82], [70, 80, 81, 82]),  # a decode: last token and drafts
        (11, [20, 80, 81, 82], [20, -1, -1, -1]),  # drafts behind the last prompt token: nobody proposed them for it
        (12, [20, 80, 81, 82], [20, -1, -1, -1]),  # drafts over a prompt token: none may be accepted
        (14, [20, 21, 22, 23], [20, -1, -1, -1]),  # the prompt ends with the step: nothing is written over it
        (20, [20, 21, 22, 23], [20, -1, -1, -1]),
    ],
)
def test_worked_example(prompt, ids, drafted):
    """k = 3, four tokens from position 10 on; slot 1 of 2."""
    axes = {"batch_size": 1, "max_num_seqs": 2, "max_num_batched_tokens": 6, "prompt_rows": "some", "history_len": 32}
    point, x = drawn(operator, axes | {"context_len": 14, "look_ahead": 2}, 0)
    for name, values in {
        "idx_mapping": [1],
        "num_computed_tokens": [0, 10],
        "prompt_lens_device": [0, prompt],
        "last_sampled_tokens": [0, 70],
        "draft_tokens": [[0, 0, 0], [80, 81, 82]],
        "all_token_ids_device": [[0] * 32, range(10, 42)],
    }.items():
        getattr(x, name).copy_(torch.tensor([list(v) if isinstance(v, range) else v for v in values]))
    expected = operator.reference(point, x)
    assert expected["seq_lens"].value.tolist() == [14, 0]
    assert expected["positions"].value[:4].tolist() == [10, 11, 12, 13]
    assert expected["input_ids"].value[:4].tolist() == ids
    assert expected["input_ids"].untouched.tolist() == [False] * 4 + [True] * 2
    assert expected["draft_sampled"].value[:4].tolist() == drafted
    assert expected["logits_indices"].value[:4].tolist() == [0, 1, 2, 3]
    assert expected["expanded_local_pos"].value[:4].tolist() == [0, 1, 2, 3]
    if prompt > 10:
        assert expected["next_prefill_tokens"].value[:, 1].tolist() == [
            24 if prompt > 14 else 0,
            25 if prompt > 15 else 0,
        ]
    else:
        assert expected["next_prefill_tokens"].untouched.all()


def test_lengths_of_unused_slots_stay_within_int32():
    """A defect that reads the slot of another request must be rejected, not index out of bounds: on a GPU that ends the
    process. At this seed row 2, a chunk, reads an unused slot.
    """
    defect = discover().find("step_inputs", "row_for_slot")
    (finding,) = EdgeCaseChecks(operator, defect, "cpu", 1, thorough=False, only=("a chunk of 2050 tokens", None))
    assert (finding.status, finding.check) == ("mismatch", "exact")
