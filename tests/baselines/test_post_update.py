"""post_update: a worked example."""

import torch

from spec_decode_bench.baselines.post_update.operator import operator
from tests.baselines.random_batches import drawn


def test_worked_example():
    """k = 3: row 0 got 2 tokens of 4, row 1 is a chunk of 12. Slots 2 and 0 of 4."""
    axes = {"batch_size": 2, "prefills": 1, "prefill_len": 12, "max_num_seqs": 4, "penalties": "on", "vocab_size": 9}
    point, x = drawn(operator, axes | {"history_len": 8, "max_model_len": 100, "context_len": 50}, 0)
    for name, values in {
        "idx_mapping": [2, 0],
        "seq_lens": [54, 32],
        "num_sampled": [2, 1],
        "num_computed_tokens": [20, -1, 50, -1],
        "prompt_lens_device": [40, -1, 10, -1],
        "total_len": [0, -1, 5, -1],
    }.items():
        getattr(x, name).copy_(torch.tensor(values))
    x.sampled_tokens[0, :2] = 7
    x.output_bin_counts[2] = torch.arange(9)
    expected = operator.reference(point, x)
    assert expected["num_sampled"].value.tolist() == [2, 0, 0, 0]
    assert expected["num_rejected"].value.tolist() == [2, 0, 0, 0]
    assert expected["num_computed_tokens"].value.tolist() == [32, 0, 52, 0]
    assert expected["num_computed_tokens"].untouched.tolist() == [False, True, False, True]
    assert expected["total_len"].value[2] == 7
    assert expected["last_sampled_tokens"].value[2] == 7
    assert expected["last_sampled_tokens"].untouched.tolist() == [True, True, False, True]
    assert expected["num_accepted_tokens"].value[[0, 2]].tolist() == [1, 2]
    assert expected["all_token_ids_device"].value[2].tolist() == [0, 0, 0, 0, 0, 7, 7, 0]
    assert (~expected["all_token_ids_device"].untouched).nonzero().tolist() == [[2, 5], [2, 6]]
    assert expected["output_bin_counts"].value[2, 7] == 9
    assert (~expected["output_bin_counts"].untouched).nonzero().tolist() == [[2, 7]]
