"""Worker processes that load torch while the parent loads it and plans, instead of afterwards. Never imports torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.runner.protocol import Job, Role
from harness.runner.worker import Worker

#: Where the NVIDIA driver is loaded on Linux. Without it, no auditor is started early.
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


@contextmanager
def early_workers(device: str, roles: Sequence[Role]) -> Iterator[Callable[[Job], Worker] | None]:
    """Yields what makes the process for a job. The first of each kind runs already, and ends with the context if no job
    came for it. None in a process that has torch: it plans at once, so there is nothing to overlap with.

    device: "auto", "cuda" or "cpu". roles: of the processes that there will be; an auditor only where there is a GPU.
    """
    if "torch" in sys.modules:
        yield None
        return
    waiting = {}

    def start(job: Job) -> Worker:
        early = waiting.pop(job.role, None)
        return early.give(job) if early else Worker(job)

    try:
        for role in roles:
            if role != "audit" or _may_have_gpu(device):
                waiting[role] = Worker(None, device, role)
        yield start
    finally:
        for unused in waiting.values():
            unused.close(wait_s=0)


def _may_have_gpu(device: str) -> bool:
    return device == "cuda" or (device == "auto" and NVIDIA_DRIVER.exists())
