"""Worker processes that load torch while the parent loads it and plans, instead of afterwards. Never imports torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.runner.protocol import Job
from harness.runner.worker import Worker

#: Where the NVIDIA driver is loaded on Linux. Without it, no auditor is started early.
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


@contextmanager
def early_workers(device: str, audit: bool) -> Iterator[Callable[[Job], Worker] | None]:
    """Yields what makes the process for a job. The first of each kind runs already, and ends with the context if no job
    came for it. None in a process that has torch: it plans at once, so there is nothing to overlap with.

    device: "auto", "cuda" or "cpu". audit: whether there will be an auditor if there is a GPU.
    """
    if "torch" in sys.modules:
        yield None
        return
    kinds = [False, True] if audit and _may_have_gpu(device) else [False]
    waiting = {}

    def start(job: Job) -> Worker:
        early = waiting.pop(job.audit, None)
        return early.give(job) if early else Worker(job)

    try:
        for kind in kinds:
            waiting[kind] = Worker(None, device, audit=kind)
        yield start
    finally:
        for unused in waiting.values():
            unused.close(wait_s=0)


def _may_have_gpu(device: str) -> bool:
    return device == "cuda" or (device == "auto" and NVIDIA_DRIVER.exists())
