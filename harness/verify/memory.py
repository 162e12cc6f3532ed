"""Whether a point fits in memory, before anything of its size is made; who may take most of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path

import torch

from spec_decode_bench.harness.contract import Operator, Point
from spec_decode_bench.harness.host_lock import HostLock, Lock
from spec_decode_bench.harness.records.schema import Code, Reason

#: Inputs and outputs that are held at a time: on the host the batches with their expected results, on the device the
#: buffers and the snapshot of what they held. Both together without a GPU.
ON_HOST, ON_DEVICE = 3, 2
#: Of the container, if this process is in one.
CGROUP = Path("/sys/fs/cgroup")
#: Seconds to wait for another process that has most of the GPU's memory, and between two looks.
MOST_LIMIT_S, MOST_POLL_S = 20.0, 0.01


def too_large(operator: Operator, point: Point, device: str) -> Reason | None:
    """The estimate, where outputs, inputs and their copies do not fit; else None."""
    once = operator.nbytes(point)
    if device == "cuda":
        needs = [(ON_HOST, _free_on_host()), (ON_DEVICE, torch.cuda.mem_get_info()[0])]
    else:
        needs = [(ON_HOST + ON_DEVICE, _free_on_host())]
    short = [(copies * once, free) for copies, free in needs if copies * once > free]
    return Reason(code=Code.MEMORY, needed_bytes=short[0][0], free_bytes=short[0][1]) if short else None


@contextmanager
def most_of_the_memory(device: str) -> Iterator[None]:
    """For what needs gigabytes of a GPU: one process has them at a time, and gives them back."""
    if device != "cuda":
        yield
        return
    with _memory_lock(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))():
        try:
            yield
        finally:
            torch.cuda.empty_cache()


@cache
def _memory_lock(uuid: str) -> Lock:
    """Of a GPU; none where no file can be made for it."""
    try:
        return HostLock(Path(tempfile.gettempdir()), MOST_LIMIT_S, f"memory-of-{uuid}", MOST_POLL_S)
    except OSError:
        return nullcontext


def _free_on_host() -> int:
    """Bytes that the machine, or the container around this process, has left."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            free = 1024 * int(line.split()[1])
    try:
        most, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        counts = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        return min(free, most - used + int(counts["inactive_file"]))  # files in the page cache give way
    except (OSError, ValueError, KeyError):  # no cgroup, or "max"
        return free
