"""mamba_state_copy: worked examples against the reference, copies inside one pool."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from spec_decode_bench.baselines.mamba_state_copy.cases import stale_padding_rows
from spec_decode_bench.baselines.mamba_state_copy.operator import (
    HOST_COPIES,
    Outputs,
    conv_columns,
    operator,
    time_first,
    with_host_copies,
)
from tests.baselines.mamba_batches import batches, check_requests
from tests.baselines.random_batches import drawn, int32, legal_point, run_examples
from tests.runnable import DEVICE, healthy, on_device

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


@pytest.mark.parametrize("layout", ["SD", "DS"])
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("variant", healthy(operator.name, compiled=DEVICE == "cuda"), ids=lambda v: v.name)
def test_a_shift_inside_a_slot_is_a_memmove(variant, k, layout):
    """Input and output pool are one, every request ends where its block ends; overlapping by up to k columns."""
    point = operator.complete(
        {
            "batch_size": 3,
            "num_speculative_blocks": k,
            "max_decode_len": min(k + 1, 3),
            "context_len": 32,
            "crossing": 0.0,
            "phase": "after_sampling",
            "conv_layout": layout,
            "conv_dim": 1040 if DEVICE == "cuda" else 24,
        }
        | {name: TINY[name] for name in ("num_layers", "ssm_state_bytes", "max_num_seqs")}
        | {"mamba_block_size": 16, "max_model_len": 64}
    )
    x = operator.make_inputs(point, 1)
    rows = torch.diff(x.query_start_loc)
    x.seq_lens.fill_(32)
    x.state_columns.fill_(1)
    x.num_accepted_tokens.copy_(rows)
    x.block_table[:, :2] = torch.arange(1, 7, dtype=torch.int32).view(3, 2)
    x.block_table[:, 2 : 2 + k] = 7
    x.sync_host_copies()
    expected = operator.reference(point, x)
    placed = on_device(x)
    out = Outputs(placed.conv_states, placed.ssm_states, torch.zeros(4, dtype=torch.int32, device=DEVICE))
    variant.setup(point, placed, out)()
    for name in ("conv_states", "ssm_states"):
        wanted = torch.where(expected[name].untouched, getattr(x, name), expected[name].value)
        assert torch.equal(getattr(out, name).cpu(), wanted), name
    assert not bool(expected["conv_states"].untouched.all())
    assert out.num_accepted_tokens[:3].tolist() == [1, 1, 1]


copy_batches = st.tuples(
    batches,
    st.fixed_dictionaries(
        {
            "batch_size": st.integers(1, 3),
            "phase": st.sampled_from(["before_forward", "after_sampling"]),
            "crossing": st.sampled_from([0.0, 0.3, 1.0]),
            "conv_layout": st.sampled_from(["SD", "DS"]),
            "conv_dim": st.sampled_from([1, 5, 8]),
            "mamba_block_size": st.sampled_from([1, 3, 4, 16, 33]),
            "ssm_state_bytes": st.sampled_from([4, 12, 32]),
        }
    ),
).map(lambda pair: pair[0] | pair[1])
SMALL = {"max_model_len": 90, "max_num_seqs": 4, "num_layers": 1}


@run_examples(200)
@given(axes=copy_batches, seed=st.integers(0, 2**32 - 1))
def test_inputs_are_legal(axes, seed):
    point, x = drawn(operator, SMALL | axes, seed)
    rows, live = check_requests(point, x)
    held = [slot for row in x.block_table.tolist() for slot in row if slot]
    assert len(set(held)) == len(held)
    assert max(held, default=0) < x.ssm_states.shape[1]
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


@run_examples(200)
@given(axes=copy_batches, stale=st.booleans(), seed=st.integers(0, 2**32 - 1))
def test_the_host_knows_what_the_device_holds(axes, stale, seed):
    x = operator.make_inputs(legal_point(operator, SMALL | axes), seed)
    assert host_agrees(x)
    if stale:
        stale_padding_rows(x)
        assert host_agrees(x)
    x.seq_lens[0] += 1
    assert not host_agrees(x), "one storage for both: an edit of one would be one of the other"


def test_the_host_hears_of_every_edit_and_every_step():
    steps = [(case.point, case.edit) for case in operator.edge_cases]
    steps += [(point, None) for points in operator.sequences.values() for point in points]
    for axes, edit in steps:
        x = operator.make_inputs(operator.complete(axes), 3)
        if edit is not None:
            edit(x)
        assert host_agrees(x), axes


class Waits(TorchFunctionMode):
    """Notes every tensor whose values Python asks for: on a device each of them is a wait."""

    ASKING = ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__index__", "nonzero")

    def __init__(self):
        super().__init__()
        self.asked = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") in self.ASKING:
            self.asked.append(args[0].data_ptr())
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("phase", ["before_forward", "after_sampling"])
def test_pointer_lists_wait_for_the_accepted_counts_alone(phase):
    point = operator.complete(SMALL | {"batch_size": 3, "crossing": 1.0, "context_len": 40, "phase": phase})
    x, out = operator.make_inputs(point, 0), operator.make_outputs(point)
    launch = next(variant for variant in healthy(operator.name) if variant.name == "pointer_lists").setup(point, x, out)
    on_host = {getattr(x, f"{name}_cpu").data_ptr() for name in HOST_COPIES}
    with Waits() as waits:
        launch()
    assert [asked for asked in waits.asked if asked not in on_host] == [x.num_accepted_tokens.data_ptr()]


@run_examples(200)
@given(axes=copy_batches, seed=st.integers(0, 2**32 - 1))
def test_a_copied_state_comes_from_where_it_was_and_nothing_else_moves(axes, seed):
    """Without an oracle: as many states are written as requests cross, and each of them is some input state,
    shifted.
    """
    point, x = drawn(operator, SMALL | axes, seed)
    expected = operator.reference(point, x)
    for slot in (~expected["ssm_states"].untouched[0].all(1)).nonzero().flatten().tolist():
        value = expected["ssm_states"].value[0, slot]
        assert bool((x.ssm_states[0] == value).all(1).any())
    conv, value = time_first(point, x.conv_states)[0], time_first(point, expected["conv_states"].value)[0]
    kept = time_first(point, expected["conv_states"].untouched)[0]
    for slot in (~kept.flatten(1).all(1)).nonzero().flatten().tolist():
        columns = int((~kept[slot, :, 0]).sum())
        assert columns >= 3
        assert bool((conv[:, conv.shape[1] - columns :] == value[slot, :columns]).flatten(1).all(1).any())
