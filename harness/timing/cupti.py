"""The operations that ran on the GPU, traced by CUPTI through PyTorch's profiler.

Once CUPTI is attached, launches take the host longer for the rest of the process, so a process that times with a clock
must not use this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler import profile  # that of torch.profiler also imports Inductor: seconds at the first trace

from spec_decode_bench.harness.timing.api_calls import waits


@dataclass(frozen=True)
class Operation:
    """A kernel, memcpy or memset. name: of the kernel, or CUPTI's description."""

    name: str
    start_ns: int
    us: float

    @property
    def direction(self) -> str | None:
        """ "HtoD", "DtoH" or "DtoD" of a memcpy; None for anything else."""
        match = re.match(r"Memcpy (\w+)", self.name)
        return match.group(1) if match else None


@dataclass(frozen=True)
class Trace:
    """operations: in the order of their starts. synchronizations: calls that wait for the device, including those of
    ``trace`` itself.
    """

    operations: list[Operation]
    synchronizations: int


def trace(work: Callable[[], Any]) -> Trace:
    """Run ``work`` and wait for it. No operations where another tool uses CUPTI."""
    torch.cuda.synchronize()
    with profile(use_cpu=False, use_device="cuda", use_kineto=True) as profiler:
        work()
        torch.cuda.synchronize()
    events = profiler.kineto_results.events()
    operations = [
        Operation(e.name(), e.start_ns(), e.duration_ns() / 1e3) for e in events if e.device_type() == DeviceType.CUDA
    ]
    synchronizations = sum(waits(e.name()) for e in events if e.device_type() == DeviceType.CPU)
    return Trace(sorted(operations, key=lambda operation: operation.start_ns), synchronizations)
