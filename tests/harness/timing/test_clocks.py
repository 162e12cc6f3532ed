"""What a fake NVML says of clocks and throttling, and where it refuses."""

from types import SimpleNamespace

import pynvml
import pytest
import torch

from spec_decode_bench.harness.timing import clocks, environment
from spec_decode_bench.harness.timing.clocks import SLOW_SHARE, THROTTLES, Clocks

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


@pytest.mark.parametrize(
    ("bits", "clock", "reason"),
    [
        *((bit, 1980, name) for bit, name in THROTTLES.items()),
        (0x4 | 0x1, 1980, "software power cap"),
        (0, int(SLOW_SHARE * 1980) - 1, "clock below 90% of the run's"),
        # Idle, an application clock and a display limit are settings, not events.
        (0x1 | 0x2 | 0x100, int(SLOW_SHARE * 1980) + 1, None),
    ],
)
def test_a_reading_says_why_a_sample_does_not_count(bits, clock, reason, nvml):
    reader = Clocks()
    reader.set_run_clock()
    assert (reader.read(), reader.notes) == (clocks.Reading(1980, 300.0, ()), ())
    assert environment.nvml_handle() == ("handle of", "GPU-uuid-1")
    nvml.bits, nvml.clock = bits, clock
    assert reader.throttle_reason(reader.read()) == reason


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
    clocks = dict.fromkeys(("sm_clock_mhz", "max_sm_clock_mhz", "memory_clock_mhz"), 1980)
    assert environment._nvml() == ({"driver": "580.1", "power_limit_w": 700.0} | clocks, (), ())
    nvml.refused = {"nvmlDeviceGetEnforcedPowerLimit"}
    readings, refused, (note,) = environment._nvml()
    assert (readings, refused) == ({"driver": "580.1"} | clocks, ("power_limit_w",))
    assert "power_limit_w" in note
    nvml.refused = {"nvmlInit"}
    readings, refused, (note,) = environment._nvml()
    assert (readings, len(refused)) == ({}, 5)
    assert note.endswith("not recorded")
