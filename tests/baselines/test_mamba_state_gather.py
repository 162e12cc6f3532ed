"""mamba_state_gather: a worked example against the reference."""

import torch

from spec_decode_bench.baselines.mamba_state_gather.operator import Inputs, operator
from tests.baselines.mamba_batches import entries_moved
from tests.baselines.random_batches import each_batch, int32


def test_worked_example():
    """k = 1: row 0 reads column 0 and writes column 1, row 1 does both in column 2, the last; row 2 is padding."""
    point = operator.complete(
        {"batch_size": 3, "num_speculative_blocks": 1, "mamba_block_size": 4, "max_model_len": 12, "context_len": 2}
    )
    table = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 0, 0]], dtype=torch.int32)
    x = Inputs(table, int32(1, 2, 0), int32(0, 2, 0), int32(0, 1, 0))
    expected = operator.reference(point, x)
    assert expected["input_slots"].value[:3].tolist() == [[1, 2], [7, 8], [0, 0]]
    assert expected["output_slots"].value[:3].tolist() == [[2, 3], [7, 8], [0, 0]]
    assert bool(expected["input_slots"].untouched[3:].all())


def test_layers_change_nothing_but_the_baseline():
    one, many = (operator.complete({"batch_size": 4, "num_layers": layers}) for layers in (1, 40))
    x = operator.make_inputs(one, 5)
    for a, b in zip(operator.reference(one, x).values(), operator.reference(many, x).values(), strict=True):
        assert torch.equal(a.value, b.value)
    assert operator.bytes_moved(one, x) == operator.bytes_moved(many, x)


@each_batch(operator, 200)
def test_traffic_counts_every_entry_once(point, x):
    read, written = entries_moved(operator, point, x, x.state_indices, point.batch_size)
    assert operator.bytes_moved(point, x) == 4 * (2 * point.batch_size + read + written)


def test_windows_that_coincide_are_read_once():
    point = operator.complete({"batch_size": 4, "mamba_block_size": 16, "max_model_len": 256, "context_len": 28})
    assert operator.bytes_moved(point, operator.make_inputs(point, 0)) == 4 * 4 * (2 + 4 + 8)


@each_batch(operator, 100)
def test_inputs_are_legal(point, x):
    last_column = x.state_indices.shape[1] - 1 - point.num_speculative_blocks
    for columns in (
        x.block_idx_last_scheduled_token,
        x.block_idx_last_scheduled_token_prev_step,
        x.block_idx_last_computed_token,
    ):
        assert 0 <= int(columns.min()) <= int(columns.max()) <= last_column
    assert bool((x.block_idx_last_scheduled_token_prev_step >= x.block_idx_last_computed_token).all())
