"""every_call: what a probe accepts of timed calls."""

import pytest

from harness.checks import Mismatch
from harness.discover import discover
from harness.verify.fixture import Fixture
from harness.verify.output_probe import OutputProbe

OPERATOR = discover().operators["decode_native"]


@pytest.fixture
def fixture():
    return Fixture(OPERATOR, OPERATOR.complete({"batch_size": 3, "max_num_batched_tokens": 16}), "cpu", 3)


def buffer_of(fixture):
    return fixture.outputs.buffers["buffer"].tensor


def test_the_right_values_pass(fixture):
    probe = OutputProbe(fixture)
    probe.arm()
    buffer_of(fixture).copy_(fixture.batches[0].expected["buffer"].value)
    probe.check("timed")


@pytest.mark.parametrize("written", [0, 1, -1, 12345])
def test_any_wrong_value_is_rejected_and_not_only_that_of_the_probe(fixture, written):
    probe = OutputProbe(fixture)
    probe.arm()
    buffer_of(fixture).fill_(written)
    with pytest.raises(Mismatch, match="the timed calls, which did not write it"):
        probe.check("timed")


def test_elements_that_no_call_wrote_are_rejected(fixture):
    probe = OutputProbe(fixture)
    buffer_of(fixture).copy_(fixture.batches[0].expected["buffer"].value)
    probe.arm()
    with pytest.raises(Mismatch, match="every_call"):
        probe.check("timed")
