"""window_tables: a worked example, and what every step has in common."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from spec_decode_bench.baselines.window_tables.operator import Inputs, list_width, operator
from tests.baselines.random_batches import drawn, int32, legal_point, run_examples


def test_worked_example():
    """Two tokens of a request, at positions 127 and 128, and a padding token; the buffers hold four. Windows of three
    tokens in blocks of two, a C128A state per block.
    """
    axes = {"batch_size": 1, "next_n": 2, "token_padding": 1, "max_num_batched_tokens": 4, "context_len": 129}
    axes |= {"max_model_len": 256, "window_size": 3, "window_block": 2, "c128_block": 1}
    point, slots = legal_point(operator, axes), torch.tensor([[5, 6, -1, 9]] * 3)
    slots[1, 1] = -1
    x = Inputs(
        query_start_loc=int32(0, 2),
        query_start_loc_cpu=int32(0, 2),
        seq_lens=int32(129),
        positions=torch.tensor([127, 128, 0, 9]),
        slot_mappings=slots,
        window_table=torch.arange(100, 228, dtype=torch.int32)[None],  # positions 125 .. 128 in blocks 162 .. 164
        c4_table=int32(7, 8)[None],
        c128_table=int32(4, 3)[None],
        num_tokens=3,
    )
    expected = operator.reference(point, x)
    value = {name: one.value.tolist() for name, one in expected.items()}
    assert value["requests"][:3] == [0, 0, 0]
    assert value["is_valid_token"][:3] == [True, True, False]
    assert value["swa_indices"][:3] == [[325, 326, 327], [326, 327, 328], [-1, -1, -1]]
    assert value["swa_lens"] == [3, 3, 0, 0]
    assert value["c4_slots"] == [7 * 32 + 31, -1, -1, -1]
    assert value["c128_slots"] == [4, -1, -1, -1]
    assert value["c128_lens"][:3] == [1, 1, 0]
    assert value["c128_indices"][:3] == [[4] + [-1] * 127] * 2 + [[-1] * 128]
    assert expected["c128_indices"].untouched.tolist() == [[False] * 128] * 3 + [[True] * 128]


batches = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 12),
        "next_n": st.integers(1, 6),
        "decode_len": st.sampled_from(["uniform", "ragged"]),
        "context_len": st.builds(lambda top: {"uniform": [1, top]}, st.integers(1, 2000)),
        "max_model_len": st.just(2000),
        "padding": st.sampled_from([0.0, 0.3]),
        "token_padding": st.integers(0, 4),
        "host_lens": st.sampled_from(["exact", "stale"]),
        "window_size": st.integers(1, 200),
        "window_block": st.integers(1, 70),
        "c128_block": st.integers(1, 4),
        "contents": st.sampled_from(["random", "slotless", "patchy", "full_states"]),
    }
)


@run_examples(60)
@given(axes=batches, seed=st.integers(0, 2**32 - 1))
def test_positions_follow_lengths_and_the_newest_entry_is_the_token_itself(axes, seed):
    point, x = drawn(operator, axes, seed)
    query, actual = torch.diff(x.query_start_loc), int(x.query_start_loc[-1])
    ends = torch.repeat_interleave(x.seq_lens - x.query_start_loc[1:], query)
    assert x.positions[:actual].equal(ends + torch.arange(actual))
    assert (x.positions[actual : x.num_tokens] == 0).all()
    assert (x.slot_mappings[:, actual : x.num_tokens] == -1).all()
    assert int(x.seq_lens.max()) // 128 <= list_width(point)
    value = {name: one.value for name, one in operator.reference(point, x).items()}
    for t in range(x.num_tokens):
        b, length, window = int(value["requests"][t]), int(value["swa_lens"][t]), value["swa_indices"][t].tolist()
        assert all(slot >= 0 for slot in window[:length])
        assert all(slot == -1 for slot in window[length:])
        if length:
            p = int(x.positions[t])
            block = int(x.window_table[b, p // point.window_block])
            assert window[length - 1] == block * point.window_block + p % point.window_block
        # A state that ends with a token is the last one of its list.
        if (slot := int(value["c128_slots"][t])) >= 0:
            assert value["c128_indices"][t, value["c128_lens"][t] - 1] == slot
