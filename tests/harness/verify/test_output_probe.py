"""every_call: what a probe accepts of timed calls."""

from types import SimpleNamespace

import pytest
import torch

from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.contract import Expected
from spec_decode_bench.harness.verify.buffers import as_integers
from spec_decode_bench.harness.verify.output_probe import OutputProbe


def probe_of(value, untouched=None, may_keep=None):
    """(a probe, the only output buffer of its fixture, which holds ``value``)."""
    buffer = value.clone()
    batch = SimpleNamespace(expected={"out": Expected(value, untouched, may_keep)})
    outputs = SimpleNamespace(buffers={"out": SimpleNamespace(tensor=buffer)})
    return OutputProbe(SimpleNamespace(batches=[batch], outputs=outputs)), buffer


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.int32, torch.int64, torch.float64])
def test_a_call_that_writes_everything_passes_and_one_that_does_not_is_rejected(dtype):
    expected = torch.arange(60).reshape(6, 10).to(dtype)
    output_probe, buffer = probe_of(expected)
    for _ in range(20):
        output_probe.arm()
        assert not torch.equal(as_integers(buffer), as_integers(expected))
        buffer.copy_(expected)
        output_probe.check("host")
    output_probe.arm()
    with pytest.raises(Mismatch, match=r"out\[\d, \d\] was overwritten with a wrong value before the queued calls"):
        output_probe.check("queued")


@pytest.mark.parametrize("written", [0, 1, -1, 12345])
def test_any_wrong_value_is_rejected_and_not_only_that_of_the_probe(written):
    output_probe, buffer = probe_of(torch.arange(100, 160, dtype=torch.int32))
    output_probe.arm()
    buffer.fill_(written)
    with pytest.raises(Mismatch, match="the timed calls, which did not write it"):
        output_probe.check("timed")


def test_a_stage_that_writes_a_quarter_of_an_output_is_rejected_at_once():
    expected = torch.arange(10_000, dtype=torch.int32)
    output_probe, buffer = probe_of(expected)
    for _ in range(20):
        output_probe.arm()
        buffer[:2500] = expected[:2500]
        with pytest.raises(Mismatch, match="every_call"):
            output_probe.check("host")
        buffer.copy_(expected)


def test_a_stage_that_is_idle_where_first_and_last_element_are_right_is_rejected_now_and_then():
    expected = torch.arange(4, dtype=torch.int32)
    output_probe, buffer = probe_of(expected)
    rejected = 0
    for _ in range(60):
        output_probe.arm()
        if not torch.equal(buffer[[0, -1]], expected[[0, -1]]):
            buffer.copy_(expected)
        try:
            output_probe.check("host")
        except Mismatch:
            rejected += 1
            buffer.copy_(expected)
    assert rejected > 5  # of 60 stages every second has one element alone, every second of which is in the middle


def test_which_elements_are_made_wrong_differs_from_stage_to_stage():
    expected = torch.arange(10_000, dtype=torch.int32)
    output_probe, buffer = probe_of(expected)
    sets = []
    for _ in range(40):
        buffer.copy_(expected)
        output_probe.arm()
        sets.append(tuple((buffer != expected).nonzero().flatten().tolist()))
    # Of forty draws from 128 sets, 34 differ on average, with a standard deviation of about two.
    assert len(set(sets)) > 20


@pytest.mark.parametrize(("untouched", "slack"), [(40, 60), (100, 100)])
def test_what_a_launch_need_not_write_is_never_made_wrong(untouched, slack):
    expected = torch.arange(100, dtype=torch.int32)
    output_probe, buffer = probe_of(expected, expected < untouched, expected >= slack)
    version = buffer._version
    for _ in range(50):
        output_probe.arm()
    wrong = buffer != expected
    assert not wrong[:untouched].any()
    assert not wrong[slack:].any()
    assert bool(wrong.any()) == (untouched < 100)
    assert buffer._version == version
    if untouched == 100:
        output_probe.check("host")
