"""Cheating and broken variants in the whole command: each costs its own cell, and none gets a time."""

from pathlib import Path

import pytest
import torch

from spec_decode_bench import bench
from spec_decode_bench.harness.discover import discover
from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.sentences import ending
from tests.adversaries import anywhere

HERE = Path(__file__).parent
#: Variant -> words of the reason with which it must be rejected.
REJECTIONS = {
    "cached_by_version": "exact",
    "cached_by_outputs": "exact",
    "answer_of_setup": "exact",
    "every_second_call": "exact",
    "every_third_call": "exact",
    "stops_when_timed": "every_call",
    "remembers_its_answer": "after timing: exact: a call: ",
    "knows_its_caller": "every_call",
    "works_after_a_pause_and_at_every_64th_call": "every_call",
    "compares_inputs_and_outputs": "every_call",
    "compares_outputs": "exact",
    "lazy_output": "return_value",
    "late_by_one_call": "exact",
    "background_thread": "exact",
    "returns_a_generator": "return_value",
    "output_aliases_input": "contiguous",
    "fresh_output": "stable_address",
    "shortens_its_inputs": "inputs_unchanged",
    "writes_past_its_output": "in_bounds",
    "half_the_rows": "exact",
    "patches_the_clock": "time.perf_counter was replaced",
    "patches_the_clock_in_the_launch": "time.perf_counter was replaced",
    "rewrites_the_comparison": "the code of spec_decode_bench.harness.verify.equality.wrong_elements was replaced",
    "rewrites_a_default": "the code of spec_decode_bench.harness.verify.fixture.verify_cell was replaced",
    "rewrites_a_property": "the code of spec_decode_bench.harness.verify.fixture.Batch.expected was replaced",
    "patches_the_comparison": "spec_decode_bench.harness.verify.fixture.check_equal was replaced",
    "profiles_its_neighbours": "sys.getprofile() was",
    "intercepts_torch": "the number of torch function modes was 0",
    "patches_a_method": "Tensor.clamp_ was replaced",
    "patches_equality": "torch.equal was replaced",
    "takes_more_threads": "torch.get_num_threads() was",
    "moves_the_default_device": "torch.get_default_device() was cpu and is meta",
    "stops_the_collector": "gc.isenabled() was",
    "raises_in_the_launch": "it failed",
    "exits_the_process": "ended with exit code 0",
    "ends_the_process": "ended with exit code 0",
    "segfaults": "killed by SIGSEGV",
    "hangs": "did not respond for 6 s",
    "skips_every_edge_case": "leaves out every edge case",
    "raises_in_its_skip": "its skip= raised ZeroDivisionError",
    "skips_without_a_reason": "its skip= raised TypeError: skip= returned True",
    "patches_events_on_import": "elapsed_time was replaced",
}


#: The same for the variants of on_a_gpu.py.
GPU_REJECTIONS = {
    "side_stream": "stream_ordered",
    "side_stream_never_joined": "stream_ordered",
    "moves_the_current_stream": "the current stream was",
    "idle_when_captured": "graph_safe",
    "empty_when_captured": "is empty",
    "node_missing_from_long_graphs": "does not hold",
    "dummies_in_long_graphs": "does not hold",
    "graph_of_its_own": "exact",
    "returns_before_completion": "exact",
    "allocates_in_the_launch": "no_alloc",
    "keeps_memory": "no_alloc",
    "waits_for_the_device": "no_sync",
    "other_work_in_a_graph": "same_work",
    "patches_the_event": "Event.elapsed_time was replaced",
    "patches_synchronize": "synchronize was replaced",
    "writes_to_nowhere": "illegal memory access",
    "never_ends": "did not respond",
}


def run(out: Path, files: tuple[str, ...], names: list[str], device: str, timeout_s: int, rounds: int) -> dict:
    """Variant -> its cell in a run of all ``names`` at one point, beside an honest variant."""
    config = out.parent / "point.yaml"
    sweep = "[{batch_size: 2, context_len: {uniform: [500, 600]}}]"  # contents that depend on the seed
    config.write_text(f"name: adversaries\noperators: [decode_native]\nsweep: {sweep}\n")
    extra = [option for path in files for option in ("--variants", str(HERE / path))]
    only = [option for name in [*names, "flat_view"] for option in ("--only", f"decode_native/{name}")]
    measure = f"measure={{timeout_s: {timeout_s}, min_rounds: {rounds}, max_rounds: {rounds}}}"
    settings = ["--set", measure, "--device", device]
    assert bench.main([str(config), *extra, *only, *settings, "--out", str(out), "--no-plots"]) == 1
    return {cell.variant: cell for cell in read_run(out / "run.jsonl").cells}


@pytest.fixture(scope="module", autouse=True)
def own_events():
    """bench.py runs in this process and imports on_import.py, whose patch must not reach other tests."""
    original = torch.cuda.Event.elapsed_time
    yield
    torch.cuda.Event.elapsed_time = original


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    out = tmp_path_factory.mktemp("adversaries") / "run"
    # A sample is at least one call, so stops_when_timed has made its HONEST_CALLS before the last sample.
    return run(
        out,
        ("anywhere.py", "on_import.py"),
        [*REJECTIONS, "honest"],
        "cpu",
        timeout_s=6,
        rounds=anywhere.HONEST_CALLS + 1,
    )


@pytest.fixture(scope="module")
def gpu_cells(tmp_path_factory):
    """Those that need a GPU and those that do not, on a GPU."""
    out = tmp_path_factory.mktemp("adversaries") / "run"
    names = [*REJECTIONS, *GPU_REJECTIONS, "captured_beside_the_graph", "honest"]
    return run(out, ("anywhere.py", "on_import.py", "on_a_gpu.py"), names, "cuda", timeout_s=10, rounds=5)


def test_there_are_enough_of_them():
    assert len(REJECTIONS) >= 25
    named = {v.name for v in discover([HERE / "anywhere.py"]).of("decode_native") if "anywhere" in v.origin}
    assert named == {*REJECTIONS, "honest"} - {"patches_events_on_import"}
    assert anywhere.__doc__


@pytest.mark.parametrize("name", REJECTIONS)
def test_it_is_rejected_before_a_time_is_printed(name, cells):
    cell = cells[name]
    assert cell.status in ("mismatch", "failed")
    assert REJECTIONS[name] in ending(cell)
    assert cell.metrics is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU_REJECTIONS)
def test_it_is_rejected_on_a_gpu(name, gpu_cells):
    cell = gpu_cells[name]
    assert cell.status in ("mismatch", "failed")
    assert GPU_REJECTIONS[name] in ending(cell)
    assert cell.metrics is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", REJECTIONS)
def test_what_a_cpu_rejects_a_gpu_rejects_too(name, gpu_cells):
    assert gpu_cells[name].status in ("mismatch", "failed")
    assert gpu_cells[name].metrics is None


@pytest.mark.gpu
def test_work_that_goes_past_the_capture_gets_no_graph_time(gpu_cells):
    metrics = gpu_cells["captured_beside_the_graph"].metrics
    assert metrics is None or (metrics.no_graph and not metrics.graph_us)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["honest", "flat_view"])
def test_the_honest_ones_are_timed_on_a_gpu(name, gpu_cells):
    assert gpu_cells[name].status == "passed", ending(gpu_cells[name])
    assert gpu_cells[name].metrics.graph_us


@pytest.mark.parametrize("name", ["honest", "flat_view"])
def test_the_honest_ones_beside_them_are_timed(name, cells):
    assert cells[name].status == "passed", ending(cells[name])
    assert len(cells[name].metrics.cpu_us) >= 3
