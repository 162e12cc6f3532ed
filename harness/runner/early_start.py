"""Worker processes that load torch while the parent loads it and plans, instead of afterwards. Never imports torch."""

from __future__ import annotations

import itertools
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
    """Yields what makes the process for a job. The first ones of each kind run already, and end with the context if no
    job came for them. None in a process that has torch: it plans at once, so there is nothing to overlap with.

    device: "auto", "cuda" or "cpu". roles: of the processes that there will be, one entry for each; an auditor only
    where there is a GPU.
    """
    if "torch" in sys.modules:
        yield None
        return
    waiting: dict[Role, list[Worker]] = {role: [] for role in roles}

    def start(job: Job) -> Worker:
        try:
            early = waiting.get(job.role, []).pop()
        except IndexError:  # not asked for first, as several threads may start workers
            return Worker(job)
        return early.give(job)

    try:
        for role in roles:
            if role != "audit" or _may_have_gpu(device):
                waiting[role].append(Worker(None, device, role))
        yield start
    finally:
        for unused in itertools.chain(*waiting.values()):
            unused.close(wait_s=0)


def _may_have_gpu(device: str) -> bool:
    return device == "cuda" or (device == "auto" and NVIDIA_DRIVER.exists())
