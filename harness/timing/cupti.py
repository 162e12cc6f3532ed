"""What ran on the GPU, seen by CUPTI through torch.profiler: a second witness beside events and graph nodes.

Once CUPTI is attached, every launch of the process costs the host up to 40 % more (an H200: 25 launches 189 -> 268 us),
so only a process that times nothing may come here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

_SYNCHRONIZING = re.compile(r"^cu(da)?(Stream|Event|Device|Ctx)Synchronize|^cudaMemcpy$|^cuMemcpy[DH]to[DH](_v2)?$")


@dataclass(frozen=True)
class Operation:
    """A kernel, memcpy or memset: kernel name or CUPTI's words for it, start in ns, duration in us."""

    name: str
    start_ns: int
    us: float

    @property
    def direction(self) -> str | None:
        """ "HtoD", "DtoH" or "DtoD" of a memcpy; None for anything else."""
        found = re.match(r"Memcpy (\w+)", self.name)
        return found.group(1) if found else None


@dataclass(frozen=True)
class Trace:
    """operations: in the order they started. synchronizations: calls with which the host waited for the device, those of
    ``trace`` itself included.
    """

    operations: list[Operation]
    synchronizations: int


def trace(work: Callable[[], Any]) -> Trace:
    """Run ``work`` and wait for it. Empty where another tool holds CUPTI."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        work()
        torch.cuda.synchronize()
    events = profiler.profiler.kineto_results.events()
    operations = [
        Operation(e.name(), e.start_ns(), e.duration_ns() / 1e3) for e in events if e.device_type() == DeviceType.CUDA
    ]
    waits = sum(bool(_SYNCHRONIZING.match(e.name())) for e in events if e.device_type() == DeviceType.CPU)
    return Trace(sorted(operations, key=lambda one: one.start_ns), waits)
