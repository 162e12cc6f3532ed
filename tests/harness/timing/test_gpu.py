"""Timer, launcher and worker on a real GPU: known times, and kernels that misbehave."""

import numpy as np
import pytest
import torch

from spec_decode_bench.harness.analysis.stats import slopes
from spec_decode_bench.harness.cuda import launcher
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.timing.cache import CALIBRATION_KERNELS
from spec_decode_bench.harness.timing.cuda_timer import CudaTimer
from spec_decode_bench.harness.timing.rounds import PlacedLaunch
from spec_decode_bench.harness.verify.fixture import Fixture, verify_cell
from tests.processes import run_python

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def timer():
    made = CudaTimer((1, 2, 4, 8, 16))
    made.ramp(0.5)
    return made


def graph_samples(timer, launch, rounds=20):
    watch = timer.stopwatch(PlacedLaunch(launch))
    taken = [watch.sample()["graph_us"] for _ in range(rounds)]
    return watch, {k: [one[k] for one in taken] for k in taken[0]}


@pytest.mark.parametrize("microseconds", [2, 5, 20])
def test_slope_recovers_a_known_time(timer, microseconds):
    """A kernel that waits on the global timer, over the constant cost of a graph node measured with a wait of 1 us."""
    base = np.median(slopes(graph_samples(timer, launcher(CALIBRATION_KERNELS, "spin", 1, 1, 1000))[1]))
    found = np.median(slopes(graph_samples(timer, launcher(CALIBRATION_KERNELS, "spin", 1, 1, microseconds * 1000))[1]))
    # The global timer ticks in steps of up to 32 ns on some GPUs, at either end of the wait.
    assert found - base == pytest.approx(microseconds - 1, abs=max(0.15, 0.02 * microseconds))


def test_graph_nodes_are_counted(timer):
    a, b = torch.zeros(64, device="cuda"), torch.ones(64, device="cuda")

    def launch():
        a.add_(1)
        a.mul_(2)
        b.copy_(a)

    watch, _ = graph_samples(timer, launch, rounds=1)
    facts = watch.facts()
    assert facts["launches"] == 3
    assert sum(facts["graph_nodes"].values()) == 3
    assert facts["graph_nodes"]["kernel"] >= 2


def test_what_cannot_be_captured_says_why_and_still_has_an_eager_time(timer):
    a = torch.ones(8, device="cuda")
    watch = timer.stopwatch(PlacedLaunch(lambda: a.sum().item()))
    assert watch.leading == "eager_us"
    assert "graph_us" not in watch.sample()
    assert watch.facts()["no_graph"]
    # and the next capture works
    assert graph_samples(timer, lambda: a.add_(1), rounds=1)[0].facts()["launches"] == 1


def test_the_launcher_follows_torchs_current_stream(timer):
    source = torch.arange(1024, dtype=torch.int32, device="cuda")
    target = torch.zeros_like(source)
    copy = launcher(CALIBRATION_KERNELS, "block_copy", 1, 256, source, target)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        timer.spin(2000)
        copy()
    assert not torch.equal(target.clone(), source)  # the default stream overtakes the side stream's wait
    side.synchronize()
    assert torch.equal(target, source)


def test_integers_beyond_32_bits_are_refused():
    with pytest.raises(OverflowError, match="C int"):
        launcher(CALIBRATION_KERNELS, "spin", 1, 1, 2**31)


def test_the_parent_never_touches_cuda_and_the_record_names_its_gpu(tmp_path):
    arguments = ["configs/smoke.yaml", "--only", "decode_native/cuda_fused", "--out", str(tmp_path), "--no-plots"]
    program = f"import bench, torch; code = bench.main({arguments}); print(code, torch.cuda.is_initialized())"
    done = run_python(program)
    assert done.stdout.splitlines()[-1] == "0 False", done.stdout + done.stderr
    run = read_run(tmp_path / "run.jsonl")
    assert len(run.header.environment.gpu_id) == 12
    assert run.header.environment.driver
    assert run.header.calibration.copy_us
    assert {cell.metrics.launches for cell in run.cells} == {1}


@pytest.mark.parametrize("name", ["triton_fused", "cuda_fused"])
def test_more_requests_than_a_grid_has_rows(name, catalog):
    """65,600 requests: the second and third dimension of a grid end at 65,535."""
    operator = catalog.operators["decode_flatten"]
    axes = {"batch_size": 65_600, "next_n": 2, "decode_len": "ragged", "max_model_len": 256, "context_len": 200}
    point = operator.complete({**axes, "max_num_batched_tokens": 140_000})
    verify_cell(Fixture(operator, point, "cuda", 1), catalog.find("decode_flatten", name))
