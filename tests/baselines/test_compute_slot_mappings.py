"""compute_slot_mappings: worked examples, context parallelism as a partition of the tokens."""

import pytest
import torch

from spec_decode_bench.baselines.compute_slot_mappings.operator import operator
from spec_decode_bench.baselines.workloads.request_slots import UNUSED, group_tables
from tests.baselines.random_batches import drawn, each_batch, int32, legal_point


def example(positions, row, **axes):
    """One request in slot 1 of two, in one group; what the reference says of its tokens."""
    size = {"batch_size": 1, "max_num_seqs": 2, "max_decode_len": len(positions), "max_num_batched_tokens": 8}
    point, x = drawn(operator, size | axes, 0)
    x.idx_mapping.fill_(1)
    x.query_start_loc.copy_(int32(0, len(positions), len(positions)))
    x.positions[: len(positions)] = torch.tensor(positions)
    width = int(x.widths[0])
    x.tables[width : width + len(row)] = int32(*row)
    return operator.reference(point, x)["slot_mappings"].value[0].tolist()


def test_worked_example():
    slots = example([14, 15, 16, 17], [7, 3], block_size=16, context_len=40, max_model_len=64)
    assert slots == [126, 127, 48, 49, -1, -1, -1, -1]


def test_worked_example_of_context_parallelism():
    """V = 8: position 6 is rank 0's third token of the first block, 8 the first of the second."""
    axes = {"block_size": 4, "cp_size": 2, "context_len": 40, "max_model_len": 64}
    assert example([6, 7, 8, 9], [5, 9], **axes)[:4] == [23, -1, 36, -1]


def test_worked_example_of_kernel_blocks():
    """The manager's block has 4 tokens, V = 8 and I = 4: rank 0 has positions 0 .. 3 and 8 .. 11, in blocks of 2."""
    axes = {"block_size": 2, "blocks_per_kv_block": 2, "cp_size": 2, "cp_interleave": 4}
    assert example([3, 4, 8, 11], [6, 7, 2, 3], context_len=40, max_model_len=64, **axes)[:4] == [15, -1, 4, 7]


@pytest.mark.parametrize("together", [2, 4])
def test_kernel_blocks_of_a_block_follow_one_another(together):
    axes = {"batch_size": 5, "block_size": 8, "max_model_len": 300, "context_len": {"uniform": [1, 300]}}
    point = legal_point(operator, axes | {"blocks_per_kv_block": together})
    x = operator.make_inputs(point, 3)
    ids = group_tables(point, x.tables)[0]
    owned = ids[ids < UNUSED]
    assert len(owned.unique()) == len(owned)
    for row in ids[x.idx_mapping]:
        row = row[row < UNUSED]
        assert torch.equal(row, row[torch.arange(len(row)) // together * together] + torch.arange(len(row)) % together)
        assert not bool((row[::together] % together).any())


@pytest.mark.parametrize("interleave", [1, 4])
def test_every_token_belongs_to_one_rank(interleave):
    """First and last of two ranks: each token of a sharded group has a slot on exactly one of them."""
    axes = {"batch_size": 5, "cp_size": 2, "cp_interleave": interleave, "block_size": 8, "max_model_len": 300}
    axes |= {"context_len": {"uniform": [4, 300]}, "num_groups": 2}
    mapped = []
    for rank in ("first", "last"):
        point = legal_point(operator, axes | {"cp_rank": rank})
        x = operator.make_inputs(point, 3)
        mapped.append(operator.reference(point, x)["slot_mappings"].value[:, : x.num_tokens] >= 0)
    assert bool((mapped[0][0] ^ mapped[1][0]).all())
    assert bool((mapped[0][1] & mapped[1][1]).all())


@each_batch(operator, 200)
def test_no_two_tokens_share_a_slot(point, x):
    """Block ids are distinct, so slots are; those of a rank are packed into its share of the blocks."""
    for group in operator.reference(point, x)["slot_mappings"].value:
        real = group[group >= 0].tolist()
        assert len(set(real)) == len(real)
        assert bool((group[x.num_tokens :] == -1).all())
