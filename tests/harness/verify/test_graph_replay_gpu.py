"""The checks that need a device, on a GPU: graphs over 200 steps, hidden allocations and waits, stale metadata."""

import pytest
import torch
from cuda.bindings import driver

from spec_decode_bench.baselines.decode_native.chains import chain_clamp
from spec_decode_bench.baselines.decode_native.operator import operator as native
from spec_decode_bench.baselines.mla_tile_schedule.operator import operator as tiles
from spec_decode_bench.harness.verify.edge_cases import EdgeCaseChecks, check_results
from spec_decode_bench.harness.verify.equality import required
from spec_decode_bench.harness.verify.fixture import Fixture
from tests.adversaries import on_a_gpu
from tests.runnable import variant_of

pytestmark = pytest.mark.gpu
STEPS = 200


@pytest.fixture(scope="module")
def capture():
    from spec_decode_bench.harness.cuda_graph import GraphCapture

    return GraphCapture()


def wrong_steps(capture, variant):
    """Steps in which a consumer that was captured in the first step does not see the schedule of its step.

    The schedule is made eagerly in every step, as engines do before they replay their model's graph, and memory freed
    in between is allocated and overwritten.
    """
    point = tiles.complete({"batch_size": 9, "context_len": {"uniform": [4, 9000]}})
    fixture = Fixture(tiles, point, "cuda", seed=1)
    launch, persistent = fixture.setup(variant), tiles.views(point, fixture.outputs.view)
    fixture.fill(0)
    returned = launch() or persistent
    seen = {name: torch.empty_like(tensor) for name, tensor in returned.items()}
    consume = capture(lambda: [seen[name].copy_(returned[name]) for name in seen])
    sizes = [tensor.numel() for tensor in seen.values()]
    returned = None  # a graph owns none of the tensors it reads
    others = [torch.full((size,), 0x2B2B2B2B, dtype=torch.int32, device="cuda") for size in sizes for _ in range(64)]
    wrong = []
    for step in range(STEPS):
        batch = step % len(fixture.batches)
        fixture.fill(batch)
        launch()
        others.append(torch.full((sizes[step % 2],), step, dtype=torch.int32, device="cuda"))
        consume()
        torch.cuda.synchronize()
        for name, tensor in seen.items():
            rows, expected = len(tensor), fixture.batches[batch].expected[name]
            if bool(((tensor != expected.value[:rows]) & required(expected)[:rows]).any()):
                wrong.append(step)
                break
    return wrong


def test_fresh_tensors_go_stale_under_a_captured_consumer(capture, catalog):
    """vLLM #35175. Through persistent buffers all steps are right."""
    assert wrong_steps(capture, catalog.find("mla_tile_schedule", "fresh_copy")) == []
    stale = wrong_steps(capture, catalog.find("mla_tile_schedule", "fresh_tensors"))
    assert len(stale) > STEPS // 2


def test_fresh_tensors_leave_the_persistent_buffers_as_they_were(capture, catalog):
    """Captured, they write into memory of the graph; a consumer of the buffers reads what an older step left."""
    point = tiles.complete({"batch_size": 4, "context_len": 900})
    fixture = Fixture(tiles, point, "cuda", seed=1)
    launch = fixture.setup(catalog.find("mla_tile_schedule", "fresh_tensors"))
    launch()
    replay = capture(launch)
    fixture.outputs.poison(0x71)
    before = fixture.outputs.snapshot()
    for batch in range(len(fixture.batches)):
        fixture.fill(batch)
        replay()
        torch.cuda.synchronize()
        assert all(torch.equal(buffer.tensor, before[name]) for name, buffer in fixture.outputs.buffers.items())


#: What EdgeCaseChecks cannot reach on a GPU: these are tested in timed runs, on a CPU, or by the evaluator.
#: Nothing of decode_native is in place.
ELSEWHERE = {"same_work": "timed", "every_call": "timed", "one_thread": "CPU", "in_place": "-"}


def results_of(variant, thorough=True):
    """(check -> result, rejections)."""
    findings = list(EdgeCaseChecks(native, variant, "cuda", seed=5, thorough=thorough))
    rejections = [finding for finding in findings if finding.status == "mismatch"]
    return dict(check_results(variant, findings, "cuda")), rejections


@pytest.mark.parametrize(
    ("name", "waived"), [("triton_fused", ()), ("cuda_fused", ()), ("flat_view", ()), ("chain_clamp", ("no_alloc",))]
)
def test_a_right_variant_passes_all_checks_but_what_it_waives(name, waived, catalog):
    results, rejections = results_of(catalog.find("decode_native", name))
    assert rejections == []
    left = {check: result for check, result in results.items() if result != "yes"}
    assert left == ELSEWHERE | dict.fromkeys(waived, "waived")


def as_variant(setup, *waives):
    return variant_of(setup, skip=on_a_gpu.SKIP, waives=waives)


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


def test_a_wait_that_torch_does_not_report_is_seen():
    results, rejections = results_of(as_variant(waits_unseen_by_torch, "no_alloc"))
    assert results["no_sync"] == "no"
    assert "returns only after all earlier work is done" in rejections[0].message
    assert results["graph_safe"] != "no"


def test_what_cannot_be_captured_is_rejected_unless_it_says_so(catalog):
    results, rejections = results_of(as_variant(asks_the_device, "no_alloc", "no_sync"))
    assert results["graph_safe"] == "no"
    assert "cannot be captured in a CUDA graph" in rejections[0].message
    results, rejections = results_of(as_variant(asks_the_device, "no_alloc", "no_sync", "graph_safe"))
    assert rejections == []
    assert results["graph_safe"] == "waived"
    results, _ = results_of(catalog.find("decode_native", "triton_fused"))
    assert results["graph_safe"] == "yes"  # the next capture works
