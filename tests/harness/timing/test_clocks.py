"""Throttled samples under a fake clock and a fake NVML: repeated, counted, kept after the last retry; and an NVML that
refuses.
"""

from types import SimpleNamespace

import numpy as np
import pynvml
import pytest
import torch

from spec_decode_bench.harness.analysis.stats import slopes
from spec_decode_bench.harness.timing import clocks, environment
from spec_decode_bench.harness.timing.clocks import SLOW_SHARE, THROTTLES, Clocks
from spec_decode_bench.harness.timing.rounds import RETRIES
from tests.harness.timing.test_rounds import FakeGpu, FakeStopwatch
from tests.harness.timing.test_rounds import run as timed

CALLS = {
    "nvmlDeviceGetClockInfo": lambda state: state.clock,
    "nvmlDeviceGetPowerUsage": lambda state: state.milliwatts,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda state: state.bits,
    "nvmlSystemGetDriverVersion": lambda state: "580.1",
    "nvmlDeviceGetMaxClockInfo": lambda state: 1980,
    "nvmlDeviceGetEnforcedPowerLimit": lambda state: 700_000,
}


@pytest.fixture
def nvml(monkeypatch):
    """The state of a GPU that NVML reports; ``refused``: calls that raise."""
    state = SimpleNamespace(clock=1980, milliwatts=300_000, bits=0, refused=set())
    for name, answer in CALLS.items():

        def call(*_, name=name, answer=answer):
            if name in state.refused:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return answer(state)

        monkeypatch.setattr(pynvml, name, call)

    def init():
        if "nvmlInit" in state.refused:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", init)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: ("handle of", uuid))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"uuid-{index}"))
    return state


class Throttled(FakeStopwatch):
    """Takes 1.5 times as long while the GPU is throttled: throttled(sample number)."""

    def __init__(self, gpu, nvml, throttled, bits=0, clock=1980):
        super().__init__(gpu, "a", 5.0, noise=0.001)
        self.nvml, self.throttled, self.bits, self.clock = nvml, throttled, bits, clock

    def sample(self, round_number=0):
        slow = self.throttled(self.calls)
        self.nvml.bits, self.nvml.clock = (self.bits, self.clock) if slow else (0, 1980)
        self.cost = 7.5 if slow else 5.0
        return super().sample(round_number)


def measure(nvml, stopwatch, gpu):
    reader = Clocks()
    reader.set_run_clock()
    return timed(
        gpu, stopwatch, throttle_reason=lambda: reader.throttle_reason(reader.read()), max_rounds=10, min_rounds=10
    )["a"]


@pytest.mark.parametrize(
    ("bits", "clock", "reason"),
    [
        *((bit, 1980, name) for bit, name in THROTTLES.items()),
        (0x4 | 0x1, 1980, "software power cap"),
        (0, 1500, "clock below 90% of the run's"),
    ],
)
def test_a_sample_taken_while_the_gpu_was_throttled_is_repeated_and_counted(bits, clock, reason, nvml):
    gpu = FakeGpu()
    timing = measure(nvml, Throttled(gpu, nvml, lambda call: call in (2, 3, 7), bits, clock), gpu)
    assert (timing.discarded, timing.disturbed) == ({reason: 3}, 0)
    assert timing.rounds == 10
    assert len(gpu.log) == 13
    metrics = timing.metrics(bytes_moved=1)
    assert metrics.discarded == {reason: 3}
    assert max(slopes(metrics.graph_us)) == pytest.approx(5.0, rel=0.01)


def test_settings_and_a_clock_just_above_the_limit_do_not_count_as_throttling(nvml):
    """Idle, an application clock and a display limit are settings, not events."""
    gpu = FakeGpu()
    quiet = Throttled(gpu, nvml, lambda call: True, 0x1 | 0x2 | 0x100, int(SLOW_SHARE * 1980) + 1)
    timing = measure(nvml, quiet, gpu)
    assert (timing.discarded, timing.disturbed) == ({}, 0)


def test_on_a_gpu_that_is_always_throttled_samples_are_kept_and_counted_as_disturbed(nvml):
    gpu = FakeGpu()
    timing = measure(nvml, Throttled(gpu, nvml, lambda call: True, 0x4), gpu)
    assert (timing.rounds, timing.metrics(1).disturbed) == (10, 10)
    assert timing.discarded == {"software power cap": 10 * RETRIES}
    assert np.median(slopes(timing.metrics(1).graph_us)) == pytest.approx(7.5, rel=0.01)


def test_the_gpu_is_found_by_its_uuid_and_reads_in_mhz_and_watts(nvml):
    reader = Clocks()
    assert environment.nvml_handle() == ("handle of", "GPU-uuid-1")
    assert reader.read() == clocks.Reading(1980, 300.0, ())
    assert reader.notes == ()


def test_where_nvml_refuses_everything_nothing_is_detected_and_a_note_says_so(nvml):
    nvml.refused = {"nvmlInit"}
    nvml.bits = 0x4
    reader = Clocks()
    reader.set_run_clock()
    assert (reader.read(), reader.throttle_reason(reader.read()), reader.run_clock_mhz) == (None, None, 0)
    (note,) = reader.notes
    assert note.startswith("NVML refuses SM clock, power, throttle reasons (")
    assert note.endswith("samples taken while the GPU is throttled are not detected")


def test_the_environment_records_what_nvml_gives_and_names_what_it_refuses(nvml):
    assert environment._nvml() == (
        {
            "driver": "580.1",
            "sm_clock_mhz": 1980,
            "max_sm_clock_mhz": 1980,
            "memory_clock_mhz": 1980,
            "power_limit_w": 700.0,
        },
        (),
        (),
    )
    nvml.refused = {"nvmlDeviceGetEnforcedPowerLimit"}
    readings, refused, notes = environment._nvml()
    assert readings["driver"] == "580.1"
    assert refused == ("power_limit_w",)
    assert len(notes) == 1
    assert "power_limit_w" in notes[0]
    nvml.refused = {"nvmlInit"}
    readings, refused, (note,) = environment._nvml()
    assert readings == {}
    assert len(refused) == 5
    assert note.endswith("not recorded")
