"""The loop equals the simulation step by step, and a stack that does not is named with step, request and table."""

from time import sleep

import numpy as np
import pytest

from spec_decode_bench.decode_loop.loop import WARMUP_INTERVALS
from spec_decode_bench.decode_loop.workload import Acceptance
from spec_decode_bench.harness.engine_launch import EngineLaunch, own
from tests.decode_loop.loops import (
    CHAINS,
    MAMBA,
    ONE,
    decode_loop,
    failure,
    followed,
    parts,
    shape,
    with_setup,
    workload,
)
from tests.tier import FULL


@pytest.mark.parametrize("seed", range(100 if FULL else 15))
def test_the_loop_equals_the_simulation(seed):
    """Every table of every step, every accepted count, every length at the end."""
    rng = np.random.default_rng(seed)
    requests = int(rng.integers(1, 5))
    of = shape(
        num_requests=requests,
        batch_size=requests + int(rng.integers(0, 3)),
        next_n=int(rng.integers(2, 5)),
        decode_path=str(rng.choice(["flatten", "native"])),
        block_size=int(rng.choice([1, 16, 64])),
        mamba_block_size=int(rng.choice([2, 64])),
    )
    lengths = Acceptance((), tuple(rng.integers(1, of.next_n + 1, 5).tolist()))
    changes = {"acceptance": lengths} if seed % 4 == 0 else {}
    work = workload(seed, of=of, delay=seed % 2, steps_per_block=int(rng.integers(5, 9)), **changes)
    loop = decode_loop(work, {"one": parts(of, ONE | MAMBA)})
    tokens = 0
    for number in range(work.blocks):
        block = loop.block("one", number)
        tokens += sum(one.tokens for one in block.requests)
        assert (
            len(block.itl_us)
            == len(block.host_itl_us)
            == len(block.gap_us)
            == work.steps_per_block - 1 - WARMUP_INTERVALS
        )
    assert tokens > 0


NATIVE = {
    "seq_lens_update": "op_chain",
    "decode_native": "chain_clamp",
    "paged_mqa_schedule": "op_chain",
    "mla_tile_schedule": "fresh_copy",
}
LAYERS = {"mamba_spec_metadata": "op_chain", "mamba_state_gather": "per_layer_chain"}


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("requests", [1, 3, 4])
@pytest.mark.parametrize(
    ("path", "stack"),
    [("flatten", CHAINS), ("native", NATIVE), ("flatten", CHAINS | LAYERS)],
    ids=["flatten", "native", "all"],
)
def test_every_operator_finds_its_inputs_in_the_state(path, stack, requests, delay):
    """Full and padded batches; the tables that are read are those that the bindings name."""
    of = shape(num_requests=requests, decode_path=path)
    work = workload(requests, of=of, delay=delay, steps_per_block=6)
    found = parts(of, stack)
    loop = decode_loop(work, {"stack": found})
    named = {name for part in found for name in part.binding.builds(of)}
    assert set(loop._ready["stack"].bound.tables) == named
    assert all(loop.block("stack", number).requests for number in range(work.blocks))


@pytest.mark.parametrize("is_async", [False, True])
def test_one_token_per_step_without_drafts(is_async):
    of = shape(next_n=1)
    work = workload(1, of=of, delay=int(is_async))
    block = decode_loop(work, {"one": parts(of, ONE)}).block("one", 0)
    assert all(one.tokens == one.steps for one in block.requests)


def test_stacks_are_given_the_same_requests_and_may_take_any_turn():
    of = shape()
    mamba = {"mamba_spec_metadata": "op_chain", "mamba_state_gather": "per_layer_chain"}
    stacks = {"chains": parts(of, CHAINS | mamba), "one": parts(of, ONE | MAMBA)}
    loop = decode_loop(workload(2, delay=1), stacks)
    found = [loop.block(name, number) for name, number in (("one", 1), ("chains", 0), ("chains", 1), ("one", 0))]
    assert found[0].requests == found[2].requests
    assert found[1].requests == found[3].requests
    assert [block.turn for block in found] == [0, 1, 2, 3]


def test_a_captured_loop_is_the_same_loop():
    loop = decode_loop(workload(3), {"one": parts(shape(), ONE)}, full_graph=True)
    assert loop.block("one", 1).requests


def test_copies_of_the_suite_take_the_place_of_other_work_of_the_host():
    """Those around an engine's kernel, which no server has."""
    right = parts(shape(), ONE)
    copies = own(lambda: sleep(0.1))
    around = with_setup(right, right[0].operator.name, lambda launch, x, out: EngineLaunch(copies, launch))
    loop = decode_loop(workload(3), {"right": right, "around": around}, host_step_us=150e3)
    assert min(loop.block("around", 0).itl_us) == pytest.approx(150e3, abs=60e3)


# --- stacks that are wrong --------------------------------------------------------------------------------------------


def failure_of_chains(operator, wrap, **changes):
    work = workload(4, **changes)
    return failure(work, parts(work.shape, CHAINS), operator, wrap)


@pytest.mark.parametrize(
    ("operator", "change", "message"),
    [
        # Token 1 of the second request gets a wrong length.
        ("decode_flatten", lambda x, out: out.lens[5].add_(1), "step 0: table lens, request 1: [5] is "),
        # Of many tables that it spoils, the first that it reaches.
        ("seq_lens_update", lambda x, out: out.seq_lens[2].sub_(1), "step 0: table seq_lens, request 2: [2] is "),
    ],
)
def test_a_wrong_entry_is_named_with_step_request_and_table(operator, change, message):
    found = failure_of_chains(operator, followed(change))
    assert found.startswith(message)
    assert ", expected " in found


def test_a_table_that_is_not_written_any_more_is_noticed_in_its_first_step():
    """Stale metadata: from its third step on the stack keeps the lengths of the second one."""
    calls = []

    def wrap(launch, x, out):
        def stale():
            calls.append(None)
            if len(calls) <= 4:  # two at set-up, one for each parity; then the steps of the block
                launch()

        return stale

    assert failure_of_chains("decode_flatten", wrap).startswith("step 2: table lens")


def test_a_write_outside_of_a_buffer_is_noticed():
    def strays(x, out):
        out.schedule.as_strided((1,), (1,), out.schedule.storage_offset() + out.schedule.numel()).fill_(7)

    assert "outside the output schedule" in failure_of_chains("paged_mqa_schedule", followed(strays))


def test_counts_that_no_step_can_have_end_the_block():
    """Those that acceptance goes by."""
    wrong = followed(lambda x, out: out.num_computed_tokens[0].add_(1))
    assert failure_of_chains("seq_lens_update", wrong, delay=1).startswith("step ")


def test_what_a_variant_raises_passes():
    def wrap(launch, x, out):
        def raises():
            raise ValueError("no tile fits")

        return raises

    right = parts(shape(), CHAINS)
    with pytest.raises(ValueError, match="no tile fits"):
        decode_loop(workload(0), {"wrong": with_setup(right, "decode_flatten", wrap)})


@pytest.mark.parametrize("full_graph", [False, True])
def test_a_trace_shows_host_and_device(full_graph):
    """A full graph is one span, the model step."""
    loop = decode_loop(workload(0, steps_per_block=8), {"one": parts(shape(), ONE)}, full_graph=full_graph)
    trace = loop.trace("one")
    metadata = set() if full_graph else {("host", "metadata"), ("device", "metadata")}
    assert {(span.lane, span.name) for span in trace} == metadata | {
        ("host", "schedule"),
        ("host", "model"),
        ("host", "wait"),
        ("device", "model"),
    }
    assert all(span.end_us >= span.start_us >= 0 for span in trace)
