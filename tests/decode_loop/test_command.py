"""bench.py with a decode loop, in miniature on the CPU: what a user sees, keeps and can resume."""

import pytest

from spec_decode_bench.harness.records.file import read_run
from spec_decode_bench.harness.records.schema import Segment
from spec_decode_bench.harness.records.sentences import ending
from tests.cli.test_cli import completed
from tests.tier import full

LOOP = """\
name: tiny_loop
decode_loop:
  geometry: {preset: deepseek_v3_2, max_model_len: 2048, max_num_seqs: 8, max_num_batched_tokens: 64, num_sms: 8}
  concurrency: [3]
  acceptance: [0.8, 0.6, 0.5]
  prompt_len: {uniform: [50, 300]}
  output_len: {uniform: [5, 40]}
  model_step_us: 200
  scheduling: [sync, async]
  blocks: 4
  steps: 8
  stacks:
    chains: {seq_lens_update: op_chain, decode_native: chain_clamp}
    other: {seq_lens_update: op_chain, decode_native: LAUNCH}
  decode_path: native
measure: {seed: 1}
"""
#: Variants that pass every check and go wrong in the loop.
WRONG = """
import os, signal
from spec_decode_bench.harness.contract import variant
from spec_decode_bench.baselines.decode_native.chains import flat_view


def in_loop():
    import sys
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_run_block":
        frame = frame.f_back
    return frame is not None


@variant("decode_native", skip=lambda p: "plain rows only" if p.row_alignment == "front" or p.cp_size > 1 else None)
def wrong_in_the_loop(point, x, out):
    fill, view, calls = flat_view(point, x, out), out.views(point)["context_lens"], []

    def launch():
        fill()
        if in_loop():
            calls.append(None)
            if len(calls) == 2:  # of this parity
                view[1, 2] += 1

    return launch


@variant("decode_native", skip=lambda p: "plain rows only" if p.row_alignment == "front" or p.cp_size > 1 else None)
def dies_in_the_loop(point, x, out):
    fill = flat_view(point, x, out)

    def launch():
        fill()
        if in_loop():
            os.kill(os.getpid(), signal.SIGKILL)

    return launch
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "wrong.py").write_text(WRONG)

    def written(launch="flat_view"):
        path = tmp_path / "loop.yaml"
        path.write_text(LOOP.replace("LAUNCH", launch))
        return path

    return written


def test_the_whole_path_without_a_gpu(config, tmp_path):
    done = completed(config(), "--device", "cpu", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "CPU miniature, no GPU time: ITL of chains in ms" in done.stdout
    assert "4 passed" in done.stdout
    run = read_run(tmp_path / "out" / "run.jsonl")
    assert [loop.key for loop in run.others] == list(run.header.cells)
    assert {loop.stack: loop.operators["decode_native"] for loop in run.others} == {
        "chains": "chain_clamp",
        "other": "flat_view",
    }
    for loop in run.others:
        assert [block.number for block in loop.blocks] == list(range(4))
        assert min(us for block in loop.blocks for us in block.itl_us) >= 200
    assert sorted(path.name for path in (tmp_path / "out").glob("*.png")) == [
        "loop_delta.png",
        "loop_itl.png",
        "loop_timeline.png",
    ]
    assert "ITL of chains in ms" in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.parametrize(
    ("launch", "status", "reason"),
    [
        ("wrong_in_the_loop", "mismatch", "step 2: table lens"),
        pytest.param("dies_in_the_loop", "failed", "the worker process was killed by SIGKILL", marks=full),
    ],
)
def test_a_stack_that_goes_wrong_costs_itself(config, tmp_path, launch, status, reason):
    done = completed(config(launch), "--device", "cpu", "--out", "out", "--variants", "wrong.py")
    assert done.returncode == 1, done.stderr
    run = read_run(tmp_path / "out" / "run.jsonl")
    assert {loop.stack: loop.status for loop in run.others} == {"chains": "passed", "other": status}
    assert len(run.others) == 4
    assert all(reason in ending(loop) and not loop.blocks for loop in run.others if loop.stack == "other")
    assert reason in done.stdout.replace("\n", " ")
    assert all(isinstance(segment, Segment) for segment in run.segments)
    assert bool(run.segments) == (status == "failed")


def test_an_interrupted_run_is_completed_loop_by_loop(config, tmp_path):
    first = completed(config(), "--device", "cpu", "--out", "out", "--no-plots")
    assert first.returncode == 0, first.stderr
    path = tmp_path / "out" / "run.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]))  # the header and the first loop
    before = read_run(path).others
    resumed = completed(config(), "--device", "cpu", "--resume", "out", "--no-plots")
    assert resumed.returncode == 0, resumed.stderr
    run = read_run(path)
    assert run.others[:2] == before
    assert [loop.key for loop in run.others] == list(run.header.cells)
    changed = completed(config("chain_clamp"), "--device", "cpu", "--resume", "out")
    assert changed.returncode == 2
    assert "it was recorded with another configuration, decode_loop.stacks" in " ".join(changed.stderr.split())


@full
def test_verify_takes_the_operators_of_the_stacks(config, tmp_path):
    done = completed("verify", config(), "--device", "cpu", "--no-array")
    assert done.returncode == 0, done.stderr
    assert "decode_native/flat_view" in done.stdout
