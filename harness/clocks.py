"""The clock a sample was taken at, and whether the GPU held back: NVML around every sample."""

from __future__ import annotations

from dataclasses import dataclass

import pynvml
import torch

#: Bits of NVML's clock event reasons that make a sample slower than the GPU is. Idle, an application clock and a display
#: limit are settings, not events. Values: nvml.h, nvmlClocksEventReason*.
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


@dataclass(frozen=True)
class Reading:
    """One look at the GPU: SM clock in MHz, power in watts, names of THROTTLES that are active."""

    sm_clock_mhz: int
    power_w: float
    throttles: tuple[str, ...]


class Clocks:
    """Reads torch's current device. ``read`` returns None, and ``trouble`` nothing, where NVML refuses."""

    def __init__(self) -> None:
        self._handle = None
        self.run_clock_mhz = 0
        try:
            pynvml.nvmlInit()
            # By UUID, since CUDA_VISIBLE_DEVICES renumbers the GPUs.
            gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{gpu.uuid}")
            self._read()
        except pynvml.NVMLError:
            self._handle = None

    def _read(self) -> Reading:
        bits = pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        return Reading(
            pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM),
            pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1000,
            tuple(name for bit, name in THROTTLES.items() if bits & bit),
        )

    def read(self) -> Reading | None:
        if self._handle is None:
            return None
        try:
            return self._read()
        except pynvml.NVMLError:
            return None

    def hold(self) -> None:
        """Take the clock of this moment, under load, as the run's."""
        reading = self.read()
        self.run_clock_mhz = reading.sm_clock_mhz if reading else 0

    def trouble(self, reading: Reading | None) -> str | None:
        """Why a sample taken just now must be taken again."""
        if reading is None:
            return None
        if reading.throttles:
            return reading.throttles[0]
        if reading.sm_clock_mhz < SLOW_SHARE * self.run_clock_mhz:
            return f"clock below {SLOW_SHARE:.0%} of the run's"
        return None
