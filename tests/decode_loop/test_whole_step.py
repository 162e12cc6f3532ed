"""Loops whose operators work on request slots, before the forward pass and after sampling, equal the simulation."""

import pytest

from spec_decode_bench.decode_loop.bindings import bindings_of
from spec_decode_bench.decode_loop.simulation import Simulation
from tests.decode_loop.loops import catalog, decode_loop, failure, followed, parts, shape, workload
from tests.runnable import DEVICE

WHOLE = dict.fromkeys(("step_prologue", "step_epilogue", "draft_passes"), "op_chain")
INDEXERS = {"native": {"decode_native": "chain_clamp"}, "flatten": {"decode_flatten": "op_chain"}}


def by_slot(**changes):
    return shape(**{"by_slot": True, "history_len": 400, "decode_path": "native"} | changes)


def whole(of, variant="op_chain"):
    return parts(of, {name: variant for name in WHOLE if bindings_of(catalog())[name].applies(of)})


def one_by_one(of):
    """The same step as a stack of single operators."""
    first = ("step_inputs", "gather_block_tables", "compute_slot_mappings")
    last = ("post_update", "draft_inputs", "draft_passes")
    schedules = {"paged_mqa_schedule": "op_chain", "mla_tile_schedule": "fresh_copy"}
    chains = lambda names: dict.fromkeys(names, "op_chain")  # noqa: E731
    return parts(of, chains(first) | INDEXERS[of.decode_path] | schedules | chains(last))


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize(
    "changes",
    [
        {"num_requests": 4},
        {"decode_path": "flatten"},
        {"next_n": 2, "num_requests": 1},
        {"state_groups": 2, "mamba_block_size": 16},
    ],
    ids=["native", "flatten, padded", "one draft, padded", "hybrid, padded"],
)
def test_the_loop_equals_the_simulation(changes, delay):
    """Every table of every step, through an odd number of steps: state by slot is read and written in turns."""
    of = by_slot(**changes)
    work = workload(7, of=of, delay=delay)
    stacks = {"whole": whole(of)}
    if not of.state_groups and of.next_n > 2:
        stacks["one by one"] = one_by_one(of)
    loop = decode_loop(work, stacks)
    for number in range(work.blocks):
        found = [loop.block(name, number).requests for name in stacks]
        assert found[0]
        assert all(one == found[0] for one in found)


def test_a_drafter_of_blocks_takes_a_turn():
    """With padding, and in the step of one draft, whose block is the anchor alone."""
    for changes in ({"num_requests": 2, "batch_size": 3}, {"next_n": 2, "num_requests": 1}):
        of = by_slot(**changes)
        stack = dict.fromkeys(("step_prologue", "post_update", "block_draft_inputs"), "op_chain")
        wrong = followed(lambda x, out: out.sample_idx_mapping[0].fill_(x.idx_mapping[0] + 1))
        message = "step 0: table sample_idx_mapping"
        assert failure(workload(7, of=of), parts(of, stack), "block_draft_inputs", wrong).startswith(message)


def test_requests_come_into_slots_that_were_others_before():
    """Three slots a row in turns: what an earlier request left there must not matter."""
    work = workload(0, of=by_slot(max_num_seqs=9), blocks=6)
    simulation = Simulation(work)
    held = [set(zip(step.slots, step.requests, strict=True)) for _ in range(6) for step in simulation.block()]
    slots = [slot for slot, _ in set.union(*held)]
    assert max(slots.count(slot) for slot in set(slots)) > 1
    assert all(len({slot for slot, _ in step}) == 3 for step in held)
    loop = decode_loop(work, {"whole": whole(work.shape)})
    assert all(loop.block("whole", number).requests for number in range(6))


def test_fused_kernels_take_a_turn():
    of = by_slot(num_requests=2, batch_size=3)
    stacks = {"triton": whole(of, "triton_fused")}
    loop = decode_loop(workload(1, of=of, delay=1, steps_per_block=5), stacks, device=DEVICE)
    assert loop.block("triton", 1).requests


@pytest.mark.parametrize(
    ("operator", "change", "message"),
    [
        ("step_prologue", lambda x, out: out.slot_mappings[0, 5].add_(1), "step 0: table slots_0: [5] is "),
        (
            "step_epilogue",
            lambda x, out: out.input_ids[4].add_(1),
            "step 0: table draft_input_ids, request 1: [1, 0] is ",
        ),
        ("draft_passes", lambda x, out: out.seq_lens[1, 2].add_(1), "step 0: table pass_seq_lens: [1, 2] is "),
        (  # a count that is wrong in a slot shows in the next step
            "step_epilogue",
            lambda x, out: out.num_computed_tokens[x.idx_mapping[0]].sub_(1),
            "step 1: table seq_lens, request 0: [0] is ",
        ),
    ],
)
def test_a_wrong_entry_is_named_with_step_and_table(operator, change, message):
    of = by_slot()
    assert failure(workload(4, of=of), whole(of), operator, followed(change)).startswith(message)
