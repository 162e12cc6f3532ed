"""The clock a sample was taken at, and whether the GPU held back: NVML around every sample."""

from __future__ import annotations

from dataclasses import dataclass

import pynvml

from harness.timing.environment import nvml_handle

#: Bits of NVML's clock event reasons that make a sample slower than the GPU is. Idle, an application clock and a
#: display limit are settings, not events. Values: nvml.h, nvmlClocksEventReason*.
THROTTLES = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
#: Below this share of the clock that the run began with, a sample is of another machine.
SLOW_SHARE = 0.9

#: What is read around samples, each for itself: some GPUs, and some users, get only part of it.
_QUERIES = {
    "SM clock": lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
    "power": lambda handle: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "throttle reasons": lambda handle: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
}


@dataclass(frozen=True)
class Reading:
    """One look at the GPU: SM clock in MHz, power in watts (None where NVML refuses), names of THROTTLES that are
    active.
    """

    sm_clock_mhz: int | None
    power_w: float | None
    throttles: tuple[str, ...]


class Clocks:
    """Reads torch's current device. ``read`` returns None, and ``trouble`` nothing, where NVML refuses; ``notes``
    say so.
    """

    def __init__(self) -> None:
        self.run_clock_mhz = 0
        self._queries = dict(_QUERIES)
        refused: dict[str, pynvml.NVMLError] = {}
        try:
            self._handle = nvml_handle()
        except pynvml.NVMLError as error:
            self._queries, refused = {}, dict.fromkeys(_QUERIES, error)
        for name in list(self._queries):
            try:
                self._queries[name](self._handle)
            except pynvml.NVMLError as error:
                del self._queries[name]
                refused[name] = error
        self.notes: tuple[str, ...] = ()
        if refused:
            why = "; ".join(dict.fromkeys(str(error) for error in refused.values()))
            noticed = "not all noticed" if self._queries else "not noticed"
            self.notes = (
                f"NVML refuses {', '.join(refused)} ({why}): samples taken while the GPU holds back are {noticed}",
            )

    def read(self, power: bool = True) -> Reading | None:
        """power: ask for it as well; ``trouble`` does not need it."""
        if not self._queries:
            return None
        try:
            found = {name: query(self._handle) for name, query in self._queries.items() if power or name != "power"}
        except pynvml.NVMLError:
            return None
        bits = found.get("throttle reasons", 0)
        active = tuple(name for bit, name in THROTTLES.items() if bits & bit)
        return Reading(found.get("SM clock"), found.get("power"), active)

    def hold(self) -> None:
        """Take the clock of this moment, under load, as the run's."""
        reading = self.read()
        self.run_clock_mhz = (reading.sm_clock_mhz if reading else None) or 0

    def throttle_reason(self, reading: Reading | None) -> str | None:
        """Why a sample taken just now must be taken again."""
        if reading is None:
            return None
        if reading.throttles:
            return reading.throttles[0]
        if reading.sm_clock_mhz is not None and reading.sm_clock_mhz < SLOW_SHARE * self.run_clock_mhz:
            return f"clock below {SLOW_SHARE:.0%} of the run's"
        return None
