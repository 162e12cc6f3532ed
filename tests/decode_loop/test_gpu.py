"""The loop on a GPU: fused stacks equal the simulation, captured or not, and a wrong one is found there as well."""

from dataclasses import replace

import numpy as np
import pytest

from spec_decode_bench.decode_loop.loop import LoopMismatch
from tests.decode_loop.loops import CHAINS, ONE, decode_loop, followed, parts, shape, with_setup, workload

pytestmark = pytest.mark.gpu

CUDA = dict.fromkeys(CHAINS, "cuda_fused") | {"mamba_spec_metadata": "cuda_fused"}
WHOLE = {
    "step_prologue": {"chains": "op_chain", "sequence": "cuda_sequence", "cuda": "cuda_fused"},
    "step_epilogue": {"chains": "op_chain", "sequence": "cuda_sequence", "cuda": "cuda_fused"},
    "draft_passes": {"chains": "op_chain", "sequence": "triton_fused", "cuda": "cuda_fused"},
}
TRITON = dict.fromkeys(CHAINS, "triton_fused") | {"mamba_spec_metadata": "triton_fused"}


@pytest.mark.parametrize("full_graph", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("seed", range(8))
def test_fused_stacks_equal_the_simulation(seed, full_graph):
    rng = np.random.default_rng(seed)
    requests = int(rng.integers(1, 40))
    of = shape(
        num_requests=requests,
        batch_size=requests + int(rng.integers(0, 3)),
        next_n=int(rng.integers(2, 5)),
        max_num_seqs=64,
        max_num_batched_tokens=256,
        num_sms=132,
    )
    work = workload(seed, of=of, delay=seed % 2, steps_per_block=8)
    stacks = {"cuda": parts(of, CUDA), "triton": parts(of, TRITON)}
    loop = decode_loop(work, stacks, device="cuda", model_step_us=300.0, full_graph=full_graph)
    for number in range(work.blocks):
        blocks = [loop.block(name, number) for name in stacks]
        assert blocks[0].requests == blocks[1].requests
        assert min(min(block.itl_us) for block in blocks) >= 300
        assert min(min(block.gap_us) for block in blocks) > 0


@pytest.mark.parametrize("full_graph", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("changes", [{"decode_path": "native"}, {}, {"state_groups": 2}, {"next_n": 2}], ids=str)
def test_stacks_of_a_whole_step_equal_the_simulation(changes, full_graph):
    of = shape(
        num_requests=19, batch_size=24, max_num_seqs=64, max_num_batched_tokens=256, by_slot=True, history_len=400
    )
    of = replace(of, **changes)
    operators = [name for name in WHOLE if name != "draft_passes" or of.next_n > 2]
    stacks = {name: parts(of, {one: WHOLE[one][name] for one in operators}) for name in ("chains", "sequence", "cuda")}
    work = workload(len(changes), of=of, delay=int(full_graph), steps_per_block=9)
    loop = decode_loop(work, stacks, device="cuda", model_step_us=300.0, full_graph=full_graph)
    for number in range(work.blocks):
        blocks = [loop.block(name, number) for name in stacks]
        assert all(block.requests == blocks[0].requests for block in blocks)


def test_a_model_step_takes_the_stated_time_whatever_the_tables_are():
    of = shape(max_num_seqs=64, max_num_batched_tokens=256)
    loop = decode_loop(workload(0, of=of), {"one": parts(of, CHAINS)}, device="cuda", model_step_us=2000.0)
    block = loop.block("one", 0)
    assert np.median(np.array(block.itl_us) - np.array(block.gap_us)) == pytest.approx(2000, abs=10)


def test_a_wrong_entry_is_named():
    wrap = followed(lambda x, out: out.lens[5].add_(1))
    stacks = {"wrong": with_setup(parts(shape(), CHAINS), "decode_flatten", wrap)}
    loop = decode_loop(workload(4), stacks, device="cuda")
    with pytest.raises(LoopMismatch, match="step 0: table lens, request 1: \\[5\\] is "):
        loop.block("wrong", 0)


def test_the_trace_lies_on_one_clock():
    loop = decode_loop(workload(0, steps_per_block=8), {"one": parts(shape(), ONE)}, device="cuda", model_step_us=500.0)
    spans = {(span.lane, span.name, span.step): span for span in loop.trace("one")}
    for step in range(6):
        submitted, ran = spans["host", "model", step], spans["device", "model", step]
        assert ran.end_us - ran.start_us >= 490
        assert ran.end_us > submitted.start_us
