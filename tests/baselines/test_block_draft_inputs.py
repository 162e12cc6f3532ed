"""block_draft_inputs: a worked example of each layout, its slots against those of compute_slot_mappings."""

import pytest
import torch

from spec_decode_bench.baselines.block_draft_inputs.operator import operator, query_tokens
from spec_decode_bench.baselines.compute_slot_mappings import operator as slot_mappings
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.composition import part_point
from tests.baselines.random_batches import drawn

EXAMPLE = {
    "batch_size": 2,
    "prefills": 1,
    "prefill_len": 2,
    "next_n": 4,
    "max_num_seqs": 3,
    "max_num_batched_tokens": 10,
    "block_size": 4,
    "max_model_len": 20,
    "context_len": 10,
}


def example(rejected=1, **axes):
    """Row 0: positions 13 to 16, one rejected. Row 1: a chunk of two, which goes on with the prompt's next token;
    its first block is below a window."""
    point, x = drawn(operator, EXAMPLE | axes, 0)
    contents = {
        "idx_mapping": [2, 0],
        "num_sampled": [3, 0],
        "num_rejected": [rejected, 0],
        "last_sampled_tokens": [50, 51, 52],
        "next_prefill_tokens": [60, 61, 62],
        "block_tables": [11, 12, 13, 14, 15, 0, 22, 23, 0, 0, 31, 32, 33, 34, 35],
        "target_positions": [13, 14, 15, 16, 3, 4, 0, 0, 0, 0],
    }
    for name, values in contents.items():
        getattr(x, name).copy_(torch.tensor(values))
    return x, {name: one.value.tolist() for name, one in operator.reference(point, x).items()}


@pytest.mark.parametrize("memory", ["device", "uva"])
def test_worked_example_that_samples_from_the_anchor(memory):
    x, expected = example(memory=memory)
    mask = x.mask_token_id
    assert expected["input_ids"] == [52, mask, mask, 60, mask, mask, 0, 0, 0, 0]
    assert expected["positions"] == [16, 17, 18, 5, 6, 7, 0, 0, 0, 0]
    assert expected["is_padding"] == [False] * 6 + [True] * 4
    assert expected["query_start_loc"] == [0, 3, 6, 6]
    assert expected["seq_lens"] == [19, 8, 0]
    assert expected["slot_mappings"] == [[60, 61, 62, 89, 90, 91, -1, -1, -1, -1]]
    assert expected["context_positions"] == [13, 14, 15, 0, 3, 4, 0, 0, 0, 0]
    assert expected["context_slot_mappings"] == [[57, 58, 59, -1, -1, 88, 0, 0, 0, 0]]
    assert expected["sample_indices"] == [[0, 1, 2], [3, 4, 5], [0, 0, 0]]
    assert expected["sample_pos"] == [[17, 18, 19], [6, 7, 8], [0, 0, 0]]
    assert expected["sample_idx_mapping"] == [[2, 2, 2], [0, 0, 0], [-1, -1, -1]]
    assert expected["seeds"] == [x.seeds.tolist()[0], 0, x.seeds.tolist()[2]]
    assert expected["temperature"] == [x.temperature.tolist()[0], 0, x.temperature.tolist()[2]]


def test_worked_example_that_samples_from_masks_alone():
    x, expected = example(sample_from_anchor="no", max_model_len=18)
    mask = x.mask_token_id
    assert expected["input_ids"] == [52, mask, mask, mask, 60, mask, mask, mask, 0, 0]
    assert expected["positions"] == [16, 17, 17, 17, 5, 6, 7, 8, 0, 0]
    assert expected["seq_lens"] == [18, 9, 0]
    assert expected["slot_mappings"] == [[60, 61, 62, 63, 89, 90, 91, 92, -1, -1]]
    assert expected["sample_indices"] == [[1, 2, 3], [5, 6, 7], [0, 0, 0]]
    assert expected["sample_pos"] == [[17, 18, 19], [6, 7, 8], [0, 0, 0]]


def test_a_position_past_the_table_has_no_slot():
    _, expected = example(rejected=0, sample_from_anchor="no")
    assert expected["positions"][:4] == [17, 18, 19, 19]
    assert expected["slot_mappings"][0][:4] == [61, 62, 63, -1]
    assert expected["sample_pos"][0] == [18, 19, 20]


@pytest.mark.parametrize(
    "axes", [{}, {"cp_size": 4, "cp_interleave": 4, "cp_rank": "last"}, {"num_groups": 3}], ids=["", "ranks", "groups"]
)
def test_slots_are_those_of_compute_slot_mappings(axes):
    """Over the same positions, of blocks none of which is the null block."""
    own = {"batch_size": 5, "max_num_seqs": 7, "max_model_len": 300, "context_len": {"uniform": [8, 280]}}
    point, x = drawn(operator, own | {"block_size": 16, "max_num_batched_tokens": 64, "acceptance": 0.5} | axes, 3)
    expected, rows = operator.reference(point, x), point.batch_size
    query_starts = torch.arange(point.max_num_seqs + 1).clamp(max=rows) * query_tokens(point)
    at = part_point(slot_mappings.operator, point, contents="random")

    def mapped(name, starts):
        inputs = slot_mappings.Inputs(
            idx_mapping=torch.arange(rows),
            query_start_loc=starts.int(),
            positions=expected[name].value,
            tables=x.block_tables,
            starts=x.table_starts,
            widths=x.widths,
            block_sizes=x.block_sizes,
            enabled=torch.ones(point.num_groups, dtype=torch.bool),
            sharded=torch.full((point.num_groups,), point.cp_size > 1),
            num_tokens=int(starts[rows]),
        )
        return slot_mappings.reference(at, inputs)["slot_mappings"].value[:, : int(starts[rows])]

    query, context = mapped("positions", query_starts), mapped("context_positions", x.query_start_loc)
    assert torch.equal(expected["slot_mappings"].value[:, : query.shape[1]], query)
    for b, rejected in enumerate(x.num_rejected.tolist()):
        end = int(x.query_start_loc[b + 1])
        context[:, end - rejected : end] = -1
    assert int(x.num_rejected.sum()) > 0
    assert torch.equal(expected["context_slot_mappings"].value[:, : context.shape[1]], context)


def test_blocks_of_the_query_are_owned():
    """Also where the drafter's tokens begin a block that the target's step has not."""
    axes = {"batch_size": 20, "max_num_seqs": 20, "next_n": 8, "context_len": {"uniform": [8, 500]}, "block_size": 4}
    point, x = drawn(operator, axes | {"max_model_len": 600, "max_num_batched_tokens": 256}, 1)
    found = operator.reference(point, x)["slot_mappings"].value[:, : 20 * query_tokens(point)]
    assert int(found.min()) >= 0
    assert int(found.max()) < slots.UNUSED
    assert len(found.unique()) == found.numel()
