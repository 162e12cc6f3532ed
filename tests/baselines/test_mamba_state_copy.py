"""mamba_state_copy: worked examples against the reference, legal inputs."""

import torch

from spec_decode_bench.baselines.mamba_state_copy.operator import (
    HOST_COPIES,
    conv_columns,
    operator,
    with_host_copies,
)
from tests.baselines.random_batches import each_batch, int32

TINY = {
    "num_layers": 1,
    "ssm_state_bytes": 4,
    "conv_dim": 1,
    "mamba_block_size": 4,
    "max_model_len": 16,
    "max_num_seqs": 4,
}


def copied(point, seq_len, tokens, accepted, column, drafts):
    """What the reference makes of one request whose columns hold slots 1, 2, ...: (conv by slot, ssm by slot, accepted,
    column); a convolution's column t in slot s is 10 * s + t, an SSM state its slot, what is not copied is None.
    """
    slots, width = 8, conv_columns(point)
    conv = (10 * torch.arange(slots)[:, None] + torch.arange(width)).to(torch.int16)[None, :, :, None]
    x = with_host_copies(
        seq_lens=int32(seq_len),
        query_start_loc=int32(0, tokens),
        num_accepted_tokens=int32(accepted),
        state_columns=int32(column),
        num_draft_tokens=int32(drafts),
        block_table=torch.arange(1, slots, dtype=torch.int32)[None],
        conv_states=conv,
        ssm_states=torch.arange(slots, dtype=torch.int32)[None, :, None],
    )
    expected = operator.reference(point, x)
    moved = {}
    for name in ("conv_states", "ssm_states"):
        value, kept = expected[name].value[0].flatten(1).tolist(), expected[name].untouched[0].flatten(1).tolist()
        rows = {
            slot: [None if k else v for v, k in zip(*pair, strict=True)]
            for slot, pair in enumerate(zip(value, kept, strict=True))
        }
        moved[name] = {slot: row for slot, row in rows.items() if row.count(None) < len(row)}
    columns = expected["state_columns"].value[0].item() if "state_columns" in expected else None
    return moved["conv_states"], moved["ssm_states"], expected["num_accepted_tokens"].value[0].item(), columns


def test_worked_example_before_the_forward_pass():
    """BS = 4, k = 2, a prompt of 3 and three tokens: nc + q = 6, so the running state moves from column 0 to column
    1.
    """
    point = operator.complete({"batch_size": 1, "num_speculative_blocks": 2, "context_len": 6} | TINY)
    assert copied(point, 6, 3, accepted=1, column=-1, drafts=2) == ({2: [10, 11, 12, 13, 14]}, {2: [1]}, 1, 1)
    # One draft of the step before was accepted: one input less to remember, and its SSM state already lies in column 1.
    assert copied(point, 6, 3, accepted=2, column=0, drafts=2) == ({2: [11, 12, 13, 14, None]}, {}, 1, 1)
    assert copied(point, 6, 3, accepted=3, column=1, drafts=2) == ({}, {}, 3, 1)
    assert copied(point, 3, 3, accepted=1, column=-1, drafts=2) == ({}, {}, 1, 0)


def test_worked_example_after_sampling():
    """BS = 4, k = 2, nc = 2 and three tokens in column 1: 4 tokens are a block's end once one draft is accepted."""
    point = operator.complete(
        {"batch_size": 1, "num_speculative_blocks": 2, "context_len": 6, "phase": "after_sampling"} | TINY
    )
    assert copied(point, 5, 3, accepted=1, column=1, drafts=2) == ({}, {}, 1, None)
    assert copied(point, 5, 3, accepted=2, column=1, drafts=2) == ({1: [21, 22, 23, 24, None]}, {1: [3]}, 2, None)
    # nc = 5 and all accepted: the block's end at 8 is in the running column itself, so the convolution is shifted in
    # its slot.
    assert copied(point, 8, 3, accepted=3, column=1, drafts=2) == ({2: [22, 23, 24, None, None]}, {2: [4]}, 1, None)
    # A chunk of a prompt without drafts: everything is where it belongs.
    assert copied(point, 8, 3, accepted=1, column=1, drafts=0) == ({}, {}, 1, None)


@each_batch(operator, 200, state="rows", num_groups=1)
def test_inputs_are_legal(point, x):
    rows, live = torch.diff(x.query_start_loc), x.seq_lens > 0
    assert int(x.block_table.max()) < x.ssm_states.shape[1]
    size, computed = point.mamba_block_size, x.seq_lens - rows
    if point.phase == "after_sampling":
        assert bool((x.num_accepted_tokens[live] <= rows[live]).all())
        assert torch.equal(x.state_columns[live], (x.seq_lens[live] - 1) // size)
    else:
        known = x.state_columns >= 0
        assert torch.equal(known, computed > 0)
        assert bool((x.num_accepted_tokens <= computed.clamp(min=1)).all())
        assert bool((x.state_columns[known] >= (computed[known] - 1) // size).all())


def host_agrees(x):
    return all(torch.equal(getattr(x, f"{name}_cpu"), getattr(x, name)) for name in HOST_COPIES)


def test_the_host_hears_of_every_edit_and_every_step():
    steps = [(case.point, case.edit) for case in operator.edge_cases]
    steps += [(point, None) for points in operator.sequences.values() for point in points]
    for axes, edit in steps:
        x = operator.make_inputs(operator.complete(axes), 3)
        if edit is not None:
            edit(x)
        assert host_agrees(x), axes
