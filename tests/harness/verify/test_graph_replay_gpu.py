"""The contracts that need a device, on one: graphs over 200 steps, hidden allocations and waits, and how stale
metadata looks.
"""

import time

import pytest
import torch
from cuda.bindings import driver

from baselines.decode_native.chains import chain_clamp
from baselines.decode_native.operator import operator as native
from baselines.mla_tile_schedule.operator import operator as tiles
from harness.contract import Variant
from harness.verify.equality import required
from harness.verify.fixture import Fixture
from harness.verify.hard_points import check_variant, outcomes
from tests.adversaries import on_a_gpu

pytestmark = pytest.mark.gpu
STEPS = 200


@pytest.fixture(scope="module")
def recorder():
    from harness.cuda_graph import Recorder

    return Recorder()


def wrong_steps(recorder, variant):
    """Steps at which a consumer that was captured once, in the first step, does not see what that step's schedule has
    to be.

    The schedule is made eagerly in every step, as engines do in front of their model's graph, and what becomes free in
    between is given to somebody else.
    """
    point = tiles.complete({"batch_size": 9, "context_len": {"uniform": [4, 9000]}})
    bench = Fixture(tiles, point, "cuda", seed=1)
    launch, persistent = bench.setup(variant), tiles.views(point, bench.outputs.view)
    bench.fill(0)
    handed_on = launch() or persistent
    seen = {name: torch.empty_like(tensor) for name, tensor in handed_on.items()}
    consume = recorder(lambda: [seen[name].copy_(handed_on[name]) for name in seen])
    sizes = [tensor.numel() for tensor in seen.values()]
    handed_on = None  # a graph owns none of the tensors it reads
    others = [torch.full((size,), 0x2B2B2B2B, dtype=torch.int32, device="cuda") for size in sizes for _ in range(64)]
    wrong = []
    for step in range(STEPS):
        case = step % len(bench.cases)
        bench.fill(case)
        launch()
        others.append(torch.full((sizes[step % 2],), step, dtype=torch.int32, device="cuda"))
        consume()
        torch.cuda.synchronize()
        for name, tensor in seen.items():
            rows, expected = len(tensor), bench.cases[case].expected[name]
            if bool(((tensor != expected.value[:rows]) & required(expected)[:rows]).any()):
                wrong.append(step)
                break
    return wrong


def test_fresh_tensors_go_stale_under_a_captured_consumer(recorder, catalog):
    """vLLM #35175. The same steps through the persistent buffers are right, all of them."""
    assert wrong_steps(recorder, catalog.find("mla_tile_schedule", "fresh_copy")) == []
    stale = wrong_steps(recorder, catalog.find("mla_tile_schedule", "fresh_tensors"))
    assert len(stale) > STEPS // 2


def test_fresh_tensors_leave_the_persistent_buffers_as_they_were(recorder, catalog):
    """Captured themselves, they write into memory of the graph, and a consumer of the buffers reads what an older
    step left.
    """
    point = tiles.complete({"batch_size": 4, "context_len": 900})
    bench = Fixture(tiles, point, "cuda", seed=1)
    launch = bench.setup(catalog.find("mla_tile_schedule", "fresh_tensors"))
    launch()
    replay = recorder(launch)
    bench.outputs.poison(0x71)
    before = bench.outputs.snapshot()
    for case in range(len(bench.cases)):
        bench.fill(case)
        replay()
        torch.cuda.synchronize()
        assert all(torch.equal(buffer.tensor, before[name]) for name, buffer in bench.outputs.buffers.items())


def told(variant, thorough=True):
    findings = list(check_variant(native, variant, "cuda", seed=5, thorough=thorough))
    return dict(outcomes(variant, findings, "cuda")), [finding for finding in findings if finding.outcome == "rejected"]


@pytest.mark.parametrize("name", ["triton_fused", "cuda_fused", "flat_view"])
def test_a_fused_kernel_keeps_all_contracts(name, catalog):
    found, rejected = told(catalog.find("decode_native", name))
    assert rejected == []
    assert set(found.values()) == {"yes"}


def test_an_operator_chain_keeps_all_but_what_it_waives(catalog):
    found, rejected = told(catalog.find("decode_native", "chain_clamp"))
    assert rejected == []
    assert {name for name, outcome in found.items() if outcome != "yes"} == {"no_alloc"}


CHEATS = {
    "idle_when_captured": ("graph_safe", "poison: never written"),
    "captured_beside_the_graph": ("graph_safe", ""),
    "empty_when_captured": ("same_work", "is empty"),
    "allocates_in_the_launch": ("no_alloc", "allocations in a launch"),
    "keeps_memory": ("no_alloc", "keeps"),
    "waits_for_the_device": ("no_sync", "wait"),
}


@pytest.mark.parametrize("thorough", [True, False], ids=["verify", "run"])
@pytest.mark.parametrize("name", CHEATS)
def test_cheats_are_rejected_by_the_contract_they_break(name, thorough):
    check, words = CHEATS[name]
    _, rejected = told(getattr(on_a_gpu, name).__variant__, thorough)
    assert rejected[0].check == check
    assert words in rejected[0].message


def as_variant(setup, waives=("no_alloc",)):
    return Variant(
        operator="decode_native",
        name=setup.__name__,
        setup=setup,
        doc="",
        origin="test",
        skip=on_a_gpu.SKIP,
        waives=waives,
    )


def waits_unseen_by_torch(point, x, out):
    work = chain_clamp(point, x, out)

    def launch():
        work()
        if not torch.cuda.is_current_stream_capturing():
            driver.cuStreamSynchronize(driver.CUstream(torch.cuda.current_stream().cuda_stream))

    return launch


def asks_the_device(point, x, out):
    work = chain_clamp(point, x, out)

    def launch():
        if int(x.seq_lens[0].item()) >= 0:
            work()

    return launch


def test_a_wait_that_torch_knows_nothing_of_is_seen():
    found, rejected = told(as_variant(waits_unseen_by_torch))
    assert found["no_sync"] == "no"
    assert "returns only when all work queued before it is done" in rejected[0].message
    assert found["graph_safe"] != "no"


def test_what_cannot_be_captured_is_rejected_unless_it_says_so(catalog):
    found, rejected = told(as_variant(asks_the_device, waives=("no_alloc", "no_sync")))
    assert found["graph_safe"] == "no"
    assert "cannot be captured in a CUDA graph" in rejected[0].message
    found, rejected = told(as_variant(asks_the_device, waives=("no_alloc", "no_sync", "graph_safe")))
    assert rejected == []
    assert found["graph_safe"] == "waived"
    assert told(catalog.find("decode_native", "triton_fused"))[0]["graph_safe"] == "yes"  # and the next capture works


def test_200_replays_take_no_longer_than_a_run_can_spare(recorder, catalog):
    from harness.verify.graph_replay import Size, check_replays

    point = native.complete({"batch_size": 9, "context_len": 2000})
    bench = Fixture(native, point, "cuda", seed=1)
    launch = bench.setup(catalog.find("decode_native", "triton_fused"))
    check_replays([Size(bench, launch)], recorder, steps=5)
    start = time.perf_counter()
    check_replays([Size(bench, launch)], recorder)
    assert time.perf_counter() - start < 0.5
