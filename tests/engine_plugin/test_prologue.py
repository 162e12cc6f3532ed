"""step_prologue in the place of vLLM's functions: check, apply and measure in a runner without a GPU."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from spec_decode_bench.harness.captures import read_capture
from tests.engine_plugin.fakes import Engine, Runner, lines_of, make_session

WRONG = """
from spec_decode_bench import variant
from spec_decode_bench.kernels.step_prologue.triton import triton_fused

@variant("step_prologue")
def wrong(point, x, out):
    \"\"\"Off by one in one position.\"\"\"
    right = triton_fused(point, x, out)

    def launch():
        right()
        out.positions[2] += 1

    return launch

@variant("step_prologue")
def breaking(point, x, out):
    \"\"\"Cannot be set up.\"\"\"
    raise RuntimeError("no such thing")
"""


@pytest.fixture
def wrong(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text(WRONG)
    return str(path)


def of_batch(batch, tables):
    names = ("idx_mapping", "expanded_idx_mapping", "query_start_loc", "seq_lens", "logits_indices", "cu_num_logits")
    found = {name: getattr(batch, name).clone() for name in names}
    found |= {name: getattr(batch, name)[: batch.num_tokens].clone() for name in ("input_ids", "positions")}
    return found | {"slots": tables[1][:, : batch.num_tokens].clone()}


def test_applied_results_are_those_of_the_engine(tmp_path):
    alone = Engine(make_session(tmp_path, mode="apply", first=1, every=10**6, out=str(tmp_path / "alone")), Runner())
    expected = of_batch(*alone.step())  # compared, so that the engine's own count
    engine = Engine(make_session(tmp_path, mode="apply", first=1, every=10**6), Runner())
    for _ in range(2):
        got = of_batch(*engine.step())
    assert engine.calls == 1
    assert {
        name for name, tensor in got.items() if not torch.equal(tensor[: len(expected[name])], expected[name])
    } == set()


def test_every_step_is_compared_and_none_is_different(tmp_path):
    engine = Engine(make_session(tmp_path, mode="check", steps=4, settle=1), Runner())
    for _ in range(8):
        engine.step()
    assert engine.calls == 8
    (line,) = lines_of(tmp_path)
    assert line["status"] == "passed"
    assert line["checked"] == {"step_prologue": 5}


def test_the_first_difference_switches_the_kernel_off_and_the_engine_goes_on_with_its_own(wrong, tmp_path, capfd):
    settings = {"stack": {"step_prologue": "wrong"}, "variants": [wrong], "steps": 4, "settle": 1, "every": 2}
    engine = Engine(make_session(tmp_path, mode="apply", **settings), Runner())
    for _ in range(12):
        batch, _ = engine.step()
    assert engine.calls == 12
    difference = lines_of(tmp_path)[0]["finding"]["difference"]
    right = int(batch.positions[2])
    assert difference == {"tensor": "positions", "index": [2], "expected": right, "got": right + 1, "wrong": 1}
    assert capfd.readouterr().err.count("step_prologue/wrong: positions[2] is") == 1
    assert {line["arm"] for line in lines_of(tmp_path)[1:]} == {"engine"}


def test_a_kernel_that_cannot_be_set_up_is_switched_off(wrong, tmp_path):
    settings = {"stack": {"step_prologue": "breaking"}, "variants": [wrong]}
    engine = Engine(make_session(tmp_path, mode="apply", first=1, **settings), Runner())
    for _ in range(3):
        engine.step()
    assert engine.calls == 3
    assert lines_of(tmp_path)[0]["finding"]["message"].startswith("RuntimeError: no such thing")


def test_a_step_without_all_drafts_is_left_to_the_engine(tmp_path):
    engine = Engine(make_session(tmp_path, mode="apply", first=1, every=10**6, steps=4, settle=1), Runner())
    for drafts in (3, 3, 2, 3):
        engine.step(drafts)
    assert engine.calls == 2


def test_a_variant_that_is_none_ends_the_plugin_and_not_the_engine(tmp_path, capfd):
    engine = Engine(make_session(tmp_path, mode="apply", stack={"step_prologue": "triton_fusd"}), Runner())
    for _ in range(3):
        engine.step()
    assert engine.calls == 3
    assert "no variant 'triton_fusd' of step_prologue; did you mean" in capfd.readouterr().err


def test_arms_take_turns_in_palindromes(tmp_path, monkeypatch):
    """Without the packed arm, whose kernels are the engine's."""
    settings = {"arms": ["engine", "suite"], "steps": 4, "settle": 1, "rounds": 2, "first": 1}
    engine = Engine(make_session(tmp_path, mode="measure", **settings), Runner())
    for _ in range(50):
        engine.step()
    lines = lines_of(tmp_path)
    arms = "engine suite suite engine suite engine engine suite"
    assert [line["arm"] for line in lines] == arms.split()
    assert [line.get("turn", 0) for line in lines] == [0] * 4 + [1] * 4
    assert {len(line[name]) for line in lines for name in ("itl_us", "busy_us", "cpus")} == {4}
    assert all(set(line["host_us"]) == {"step_prologue"} for line in lines)
    assert sum(line.get("checked", {}).get("step_prologue", 0) for line in lines) == 1


def test_an_interrupted_block_begins_again(tmp_path):
    settings = {"arms": ["engine", "suite"], "steps": 4, "settle": 1, "rounds": 1, "first": 1}
    engine = Engine(make_session(tmp_path, mode="measure", **settings), Runner())
    for drafts in (3, 3, 3, 3, 2, *[3] * 30):
        engine.step(drafts)
    first = lines_of(tmp_path)[0]
    assert (first["arm"], len(first["itl_us"]), len(first["prefill_us"])) == ("engine", 4, 1)


def test_captured_steps_are_on_disk_when_the_engine_dies(tmp_path):
    """The writer is not closed, and the file is cut in its last entry."""
    engine = Engine(make_session(tmp_path, mode="capture", stack={}, every=2, limit=3), Runner())
    for _ in range(5):
        engine.step()
    (path,) = (tmp_path / "out").glob("*.capture")
    capture = read_capture(path)
    assert capture.problems == []
    assert {entry.step for entry in capture.entries} == {2, 4}
    assert {entry.operator for entry in capture.entries} == {
        *("step_prologue", "step_inputs", "gather_block_tables", "compute_slot_mappings")
    }
    path.write_bytes(path.read_bytes()[:-5])
    cut = read_capture(path)
    assert len(cut.entries) == len(capture.entries) - 1
    assert len(cut.problems) == 1


def test_token_ids_stay_in_the_engine(tmp_path):
    runner = Runner()
    for token_ids in (False, True):
        folder = tmp_path / str(token_ids)
        folder.mkdir()
        engine = Engine(make_session(folder, mode="capture", stack={}, every=1, limit=1, token_ids=token_ids), runner)
        engine.step()
        (path,) = (folder / "out").glob("*.capture")
        values = next(entry for entry in read_capture(path).entries if entry.operator == "step_prologue").values
        same = (torch.from_numpy(values["draft_tokens"]) == runner.req_states.draft_tokens).all()
        assert bool(same) is token_ids


def test_what_cannot_be_written_ends_the_plugin_and_not_the_engine(tmp_path, capfd):
    (tmp_path / "out").write_text("a file")
    engine = Engine(make_session(tmp_path, mode="capture", stack={}), Runner())
    for _ in range(3):
        engine.step()
    assert engine.calls == 3
    assert "nothing more is measured or applied in this process" in capfd.readouterr().err


def test_a_record_says_what_ran(tmp_path):
    engine = Engine(make_session(tmp_path, mode="check", steps=4, settle=1), Runner())
    for _ in range(7):
        engine.step()
    (path,) = (tmp_path / "out").glob("*.jsonl")
    header = json.loads(path.read_text().splitlines()[0])
    assert header["config"]["engine"] == {
        "model": "tiny",
        "layers": 4,
        "method": "eagle",
        "num_drafts": 3,
        "async_scheduling": True,
        "max_model_len": 1024,
    }
    assert header["environment"]["packages"]["vllm"] == "0.22.1"
    assert header["variants"] == ["step_prologue/triton_fused"]


class Profile:
    """Of torch.profiler, with three kernels and a function of the CPU."""

    def __init__(self, activities):
        kinds = (DeviceType.CUDA, DeviceType.CPU, DeviceType.CUDA, DeviceType.CUDA)
        self.events = lambda: [SimpleNamespace(device_type=kind) for kind in kinds]

    def start(self):
        pass

    stop = start


def test_launches_of_each_arm_are_counted_behind_its_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.profiler, "profile", Profile)
    settings = {"arms": ["engine", "suite"], "steps": 4, "settle": 1, "rounds": 1, "first": 1}
    engine = Engine(make_session(tmp_path, mode="measure", **settings), Runner())
    engine.step()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for _ in range(30):
        engine.step()
    counted = [line for line in lines_of(tmp_path) if "launches" in line]
    assert [line["arm"] for line in counted] == ["engine", "suite"]
    assert {line["launches"]["step_prologue"] for line in counted} == {3}
    assert not any(line.get("itl_us") for line in counted)


def test_what_cannot_be_counted_is_told_once_and_ends_nothing(tmp_path, monkeypatch, capfd):
    session = make_session(tmp_path, mode="measure")

    def broken(activities):
        raise RuntimeError("no CUPTI")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.profiler, "profile", broken)
    session._counting = True
    for _ in range(2):
        session.count()
        session.counted("step_prologue")
    assert capfd.readouterr().err.count("launches are not counted: RuntimeError: no CUPTI") == 1
