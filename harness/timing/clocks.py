"""SM clock, power and throttle reasons, read from NVML around samples."""

from __future__ import annotations

from dataclasses import dataclass

import pynvml

from spec_decode_bench.harness.timing.environment import nvml_handle, nvml_readings, refusal

#: Bits of NVML's clock event reasons that slow a sample down (nvml.h, nvmlClocksEventReason*). The other bits, such as
#: idle, an application clock or a display limit, are settings.
THROTTLES = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
#: A sample below this share of the run's clock is not comparable with the others.
SLOW_SHARE = 0.9

_QUERIES = {
    "SM clock": lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
    "power": lambda handle: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "throttle reasons": lambda handle: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
}


@dataclass(frozen=True)
class Reading:
    """State of the GPU: SM clock in MHz, power in watts (None where NVML refuses), active THROTTLES by name."""

    sm_clock_mhz: int | None
    power_w: float | None
    throttles: tuple[str, ...]


class Clocks:
    """Reads torch's current device.

    run_clock_mhz: the clock with which samples are compared; 0 until ``set_run_clock``, and where NVML refuses.
    refused:       readings that NVML refuses; notes: what follows from that, in words for the record.
    """

    def __init__(self) -> None:
        self.run_clock_mhz = 0
        readings, refused = nvml_readings(_QUERIES)
        self._queries = {name: _QUERIES[name] for name in readings}
        self._handle = nvml_handle() if readings else None
        detected = "not all detected" if readings else "not detected"
        self.refused = tuple(refused)
        self.notes = refusal(refused, f"samples taken while the GPU is throttled are {detected}")

    def read(self, power: bool = True) -> Reading | None:
        """The present state; None where NVML refuses. power: whether to query it; throttle_reason does not need it."""
        if not self._queries:
            return None
        try:
            values = {name: query(self._handle) for name, query in self._queries.items() if power or name != "power"}
        except pynvml.NVMLError:
            return None
        bits = values.get("throttle reasons", 0)
        active = tuple(name for bit, name in THROTTLES.items() if bits & bit)
        return Reading(values.get("SM clock"), values.get("power"), active)

    def set_run_clock(self) -> None:
        """Take the present clock, under load, as the run's."""
        reading = self.read()
        self.run_clock_mhz = (reading.sm_clock_mhz if reading else None) or 0

    def throttle_reason(self, reading: Reading | None) -> str | None:
        """Why a sample taken at this reading must be repeated; None where it counts."""
        if reading is None:
            return None
        if reading.throttles:
            return reading.throttles[0]
        if reading.sm_clock_mhz is not None and reading.sm_clock_mhz < SLOW_SHARE * self.run_clock_mhz:
            return f"clock below {SLOW_SHARE:.0%} of the run's"
        return None
