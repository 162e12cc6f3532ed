"""The checks around a timed launch: replaced functions, changed settings, outputs that a call did not write."""

import time
from types import SimpleNamespace

import pytest
import torch

from harness.checks import Mismatch
from harness.config.load import Measure
from harness.config.work_items import Verify
from harness.contract import Expected
from harness.session.evaluator import Evaluator
from harness.session.messages import Job
from harness.verify.buffers import as_integers
from harness.verify.output_probe import OutputProbe
from harness.verify.process_state import ProcessState


def test_nothing_was_touched():
    state = ProcessState("cpu")
    torch.compile(lambda x: x)  # replaces torch.manual_seed, which is not the caller's doing
    assert state.changed() is None


@pytest.mark.parametrize(
    ("owner", "name"),
    [(time, "perf_counter"), (torch, "equal"), (torch.Tensor, "clamp_"), (torch.cuda.Event, "elapsed_time")],
)
def test_a_replaced_function_is_named_and_put_back(owner, name):
    honest, state = getattr(owner, name), ProcessState("cpu")
    setattr(owner, name, lambda *_: 0.0)
    assert f"{owner.__name__}.{name} was replaced" in state.changed()
    state.restore()
    assert getattr(owner, name) is honest
    assert state.changed() is None


def test_a_deleted_function_is_put_back_too():
    honest, state = time.time_ns, ProcessState("cpu")
    del time.time_ns
    assert state.changed().startswith("time.time_ns was replaced")
    state.restore()
    assert time.time_ns is honest


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
        f"import torch\ntorch.set_default_device('{device}')\nfrom harness.contract import variant\n"
        "@variant('decode_native')\ndef moves(point, x, out): return None\n"
    )
    evaluator = Evaluator(Job("cpu", (str(tmp_path / "moves.py"),), 0, Measure(), timed=True))
    (finding,) = (one.finding for one in evaluator.verify(Verify(operator="decode_native", variant="moves")))
    assert (finding.status, finding.check) == ("mismatch", "process_state")
    assert finding.message.startswith("torch.get_default_device() was cpu and is ")
    assert next(evaluator.verify(Verify(operator="decode_native", variant="chain_clamp"))).finding.status == "passed"


# --- the output probe -------------------------------------------------------------------------------------------------


def fixture_of(value, untouched=None, may_keep=None):
    """(what a probe needs of a fixture, its only output buffer, which holds ``value``)."""
    buffer = value.clone()
    batch = SimpleNamespace(expected={"out": Expected(value, untouched, may_keep)})
    outputs = SimpleNamespace(buffers={"out": SimpleNamespace(tensor=buffer)})
    return SimpleNamespace(batches=[batch], outputs=outputs), buffer


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.int32, torch.int64, torch.float64])
def test_a_call_that_writes_everything_passes_and_one_that_does_not_is_rejected(dtype):
    expected = torch.arange(60).reshape(6, 10).to(dtype)
    fixture, buffer = fixture_of(expected)
    output_probe = OutputProbe(fixture)
    for _ in range(20):
        output_probe.arm()
        assert not torch.equal(as_integers(buffer), as_integers(expected))
        buffer.copy_(expected)
        output_probe.check("host")
    output_probe.arm()
    with pytest.raises(Mismatch, match=r"out\[\d, \d\] was overwritten with a wrong value before the queued calls"):
        output_probe.check("queued")


def test_a_stage_that_writes_a_quarter_of_an_output_is_rejected_at_once():
    expected = torch.arange(10_000, dtype=torch.int32)
    fixture, buffer = fixture_of(expected)
    output_probe = OutputProbe(fixture)
    for _ in range(20):
        output_probe.arm()
        buffer[:2500] = expected[:2500]
        with pytest.raises(Mismatch, match="every_call"):
            output_probe.check("host")
        buffer.copy_(expected)


def test_which_elements_are_made_wrong_differs_from_stage_to_stage():
    expected = torch.arange(10_000, dtype=torch.int32)
    fixture, buffer = fixture_of(expected)
    output_probe, sets = OutputProbe(fixture), []
    for _ in range(40):
        buffer.copy_(expected)
        output_probe.arm()
        sets.append(tuple((buffer != expected).nonzero().flatten().tolist()))
    # Of forty draws from 128 sets, 34 differ on average, with a standard deviation of about two.
    assert len(set(sets)) > 20


def test_what_a_launch_need_not_write_is_never_made_wrong():
    expected = torch.arange(100, dtype=torch.int32)
    untouched, slack = expected < 40, expected >= 60
    fixture, buffer = fixture_of(expected, untouched, slack)
    output_probe = OutputProbe(fixture)
    for _ in range(50):
        output_probe.arm()
    wrong = buffer != expected
    assert not bool((wrong & (untouched | slack)).any())
    assert bool(wrong.any())


def test_an_output_of_which_nothing_must_be_written_is_left_alone():
    expected = torch.arange(4, dtype=torch.int32)
    fixture, buffer = fixture_of(expected, untouched=torch.ones(4, dtype=torch.bool))
    output_probe = OutputProbe(fixture)
    output_probe.arm()
    output_probe.check("host")
    assert torch.equal(buffer, expected)


def test_arming_does_not_raise_the_version_of_an_output():
    fixture, buffer = fixture_of(torch.arange(64, dtype=torch.int32))
    output_probe, version = OutputProbe(fixture), buffer._version
    output_probe.arm()
    assert buffer._version == version
