"""mamba_spec_metadata: worked examples against the reference, legal inputs, traffic."""

import torch

from spec_decode_bench.baselines.mamba_spec_metadata.operator import Inputs, operator
from spec_decode_bench.baselines.workloads.mamba_steps import table_columns
from tests.baselines.mamba_batches import entries_moved
from tests.baselines.random_batches import each_batch, int32


def expected_of(lengths, rows, anchors=None, fresh=None, accepted=None, **axes):
    """The reference for requests of slots 1, 2, ... and a table that holds 10 * (b + 1) + column."""
    point = operator.complete(
        {
            "batch_size": len(lengths),
            "mamba_block_size": 4,
            "num_speculative_blocks": 2,
            "max_model_len": 16,
            "context_len": 4,
        }
        | axes
    )
    x = Inputs(
        seq_lens=int32(*lengths),
        query_start_loc=torch.cat([int32(0), int32(*rows).cumsum(0, dtype=torch.int32)]),
        num_accepted_tokens=int32(*(accepted or [1] * len(rows))),
        request_slots=torch.arange(1, len(rows) + 1, dtype=torch.int32),
        fresh=torch.tensor(fresh or [False] * len(rows)),
        anchors=int32(*[-1, *(anchors or [-1] * len(rows)), *[-1] * (point.max_num_seqs - len(rows))]),
        block_table=torch.arange(table_columns(point), dtype=torch.int32)
        + 10 * torch.arange(1, len(rows) + 1, dtype=torch.int32)[:, None],
        num_decodes=len(rows),
    )
    expected = operator.reference(point, x)
    return lambda name: expected[name].value[: len(rows)].tolist()


def test_indices_of_the_specification():
    """BS = 4: nc = 4, 5, 0, 3 and 8 with three tokens each."""
    of = expected_of([7, 8, 3, 6, 11], [3] * 5)
    assert of("block_idx_last_computed_token") == [0, 1, 0, 0, 1]
    assert of("block_idx_last_scheduled_token") == [1, 1, 0, 1, 2]
    assert of("block_idx_last_scheduled_token_prev_step") == [0, 1, 0, 0, 1]


def test_the_table_has_k_columns_more_than_blocks():
    """262144 / 1024 + 5 = 261; a request in the last block addresses the last column."""
    assert table_columns(operator.complete({"num_speculative_blocks": 5})) == 261
    of = expected_of([16], [3])
    assert of("output_slots") == [[13, 14, 15]]


def test_anchor_of_the_step_before_wins_unless_the_row_is_fresh():
    """The step before ran into column 1 and fell back to nc = 3: input slots start where it wrote, not at column 0."""
    of = expected_of([6] * 3, [3] * 3, anchors=[1, 1, -1], fresh=[False, True, False], accepted=[2, 1, 3])
    assert of("block_idx_last_scheduled_token_prev_step") == [1, 0, 0]
    assert of("input_slots") == [[11, 12, 13], [20, 21, 22], [30, 31, 32]]
    assert of("output_slots") == [[11, 12, 13], [21, 22, 23], [31, 32, 33]]
    assert of("conv_input_slot") == [11, 20, 30]
    assert of("conv_output_slot") == [11, 21, 31]
    assert of("num_accepted_tokens") == [2, 1, 3]
    assert of("next_anchors") == [0, 1, 1]


def test_one_window_serves_modes_align_and_none():
    assert expected_of([5, 0, 16], [3, 0, 3], cache_mode="align")("input_slots") == [
        [11, 12, 13],
        [20, 21, 22],
        [33, 34, 35],
    ]
    assert expected_of([5, 16], [3, 3], cache_mode="none")("input_slots") == [[10, 11, 12], [20, 21, 22]]


@each_batch(operator, 200)
def test_inputs_are_legal(point, x):
    rows, live = torch.diff(x.query_start_loc), x.seq_lens > 0
    assert int(live.sum()) == x.num_decodes
    assert sorted(set(x.request_slots[live].tolist())) == sorted(x.request_slots[live].tolist())
    assert bool((x.request_slots[~live] == 0).all())
    assert not bool(x.block_table[~live].any())
    if point.cache_mode == "all":
        known = live & ~x.fresh
        computed, anchors = (x.seq_lens - rows)[known], x.anchors[x.request_slots.long()][known]
        assert bool((anchors >= 0).all())
        # The step before began at nc - a and scheduled up to 1 + k tokens, a of them at least.
        assert bool((anchors >= (computed - 1) // point.mamba_block_size).all())
        ran_to = computed - x.num_accepted_tokens[known] + point.num_speculative_blocks
        assert bool((anchors <= ran_to // point.mamba_block_size).all())


@each_batch(operator, 200)
def test_traffic_counts_every_entry_once(point, x):
    real = x.num_decodes
    read, written = entries_moved(operator, point, x, x.block_table, real)
    if point.cache_mode == "all":  # start, length, accepted, slot; the anchor of a known row; the mask is of bytes
        numbers, mask = real + 1 + 3 * real + x.fresh[:real].tolist().count(False), real
    else:
        numbers, mask = (2 if point.cache_mode == "align" else 1) * real, 0
    assert operator.bytes_moved(point, x) == 4 * (numbers + read + written) + mask
