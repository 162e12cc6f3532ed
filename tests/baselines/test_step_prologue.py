"""step_prologue: what holds between its parts, one launch."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from spec_decode_bench.baselines.step_prologue.operator import operator
from spec_decode_bench.baselines.workloads.request_slots import group_tables
from tests.baselines.random_batches import drawn, run_examples, steps

SMALL = {
    "max_model_len": 300,
    "history_len": 320,
    "max_num_seqs": 9,
    "max_num_batched_tokens": 100,
    "block_size": 16,
    "num_sms": 5,
    "num_heads_q": 64,
}
random_steps = steps(
    300,
    rows=7,
    next_n=st.sampled_from([1, 2, 4]),
    prefills=st.just(0),
    window=st.sampled_from([0, 20]),
    acceptance=st.sampled_from([0.0, 0.5, 1.0]),
    mamba_block_size=st.sampled_from([1, 33, 1024]),
    max_num_batched_tokens=st.sampled_from([100, 1027]),
).flatmap(
    lambda axes: st.sampled_from(
        [
            axes | {"num_groups": 2, "group_blocks": "mixed", "prefills": 1, "prefill_len": 40},
            axes | {"num_groups": 3, "state_groups": 2, "memory": "uva", "prefills": 1, "prefill_len": 20},
            axes | {"num_groups": 2, "state_groups": 1, "indexer": "native"},
            axes | {"indexer": "flatten", "window": 0, "token_padding": 3},
        ]
    )
)


@run_examples(60)
@given(axes=random_steps, seed=st.integers(0, 2**32 - 1))
def test_every_token_is_written_to_the_block_that_its_row_reads(axes, seed):
    """Slot mappings come from the tables by slot, attention reads those in batch order: they name the same blocks."""
    point, x = drawn(operator, SMALL | axes, seed)
    expected = {name: e.value for name, e in operator.reference(point, x).items()}
    rows, tables = point.batch_size, group_tables(point, expected["block_tables"])
    for g in range(point.num_groups - point.state_groups):
        size = int(x.block_sizes[g])
        for b in range(rows):
            for t in range(int(x.query_start_loc[b]), int(x.query_start_loc[b + 1])):
                position = int(expected["positions"][t])
                assert position < expected["seq_lens"][b]
                assert (
                    int(expected["slot_mappings"][g, t]) == int(tables[g][b, position // size]) * size + position % size
                )
    assert (expected["slot_mappings"][:, x.num_tokens :] == -1).all()
    if point.state_groups:
        assert (expected["batch_accepted"][:rows] >= 1).all()
        assert torch.equal(expected["mask"][:rows], x.idx_mapping >= 0)
        live = expected["state_slots"][:, :rows][:, x.idx_mapping >= 0]
        assert all(len(set(group.flatten().tolist())) == group.numel() for group in live)  # no two rows share a slot
    if point.indexer == "native":
        assert torch.equal(expected["decode_lens"][:rows], torch.diff(x.query_start_loc[: rows + 1]))
