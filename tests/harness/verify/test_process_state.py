"""What a variant may not change in its process: functions and settings."""

import re
import time

import pytest
import torch

from spec_decode_bench.harness.config.load import Measure
from spec_decode_bench.harness.config.work_items import Check
from spec_decode_bench.harness.session.evaluator import Evaluator
from spec_decode_bench.harness.session.messages import Job
from spec_decode_bench.harness.verify.process_state import ProcessState


def test_nothing_was_touched():
    state = ProcessState("cpu")
    torch.compile(lambda x: x)  # replaces torch.manual_seed, which is not the caller's doing
    assert state.changed() is None


@pytest.mark.parametrize(
    ("owner", "name"),
    [(time, "perf_counter"), (torch, "equal"), (torch.Tensor, "clamp_"), (torch.cuda.Event, "elapsed_time")],
)
def test_a_replaced_function_is_named_and_put_back_and_a_deleted_one_too(owner, name):
    honest, state = getattr(owner, name), ProcessState("cpu")
    for harm in (lambda: setattr(owner, name, lambda *_: 0.0), lambda: delattr(time, "time_ns")):
        harm()
        assert re.search(rf"({owner.__name__}\.{name}|time\.time_ns) was replaced", state.changed())
        state.restore()
        assert getattr(owner, name) is honest
        assert state.changed() is None


def test_settings_are_compared_and_restored():
    state, threads, dtype = ProcessState("cpu"), torch.get_num_threads(), torch.get_default_dtype()
    assert state.changed() is None
    torch.set_num_threads(threads + 1)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    assert state.changed().startswith(f"torch.get_num_threads() was {threads} and is {threads + 1};")
    state.restore()
    assert state.changed() is None
    assert (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()) == (threads, dtype, True)


@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_a_file_that_moves_the_default_device_when_imported_costs_its_own_variants_alone(device, tmp_path):
    (tmp_path / "moves.py").write_text(
        f"import torch\ntorch.set_default_device('{device}')\nfrom spec_decode_bench.harness.contract import variant\n"
        "@variant('decode_native')\ndef moves(point, x, out): return None\n"
    )
    evaluator = Evaluator(Job("cpu", (str(tmp_path / "moves.py"),), 0, Measure(), timed=False))
    (finding,) = (one.finding for one in evaluator.check(Check(operator="decode_native", variants=("moves",))))
    assert (finding.status, finding.check) == ("mismatch", "process_state")
    assert finding.message.startswith("torch.get_default_device() was cpu and is ")
    assert evaluator.check(Check(operator="decode_native", variants=("chain_clamp",)))[0].finding.status == "passed"
