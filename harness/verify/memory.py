"""Whether a point fits in memory, before anything of its size is made; who may take most of it."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path

import torch

from harness.contract import Operator, Point
from harness.host_lock import HostLock, Lock
from harness.records.schema import Code, Reason
from harness.verify.points import output_bytes, tensor_bytes

#: Inputs and outputs that are held at a time: on the host the batches with their expected results, on the device the
#: buffers and the snapshot of what they held. Both together without a GPU.
ON_HOST, ON_DEVICE = 3, 2
#: Sizes up to LARGE, of which two make a table of up to LARGE_TABLE elements, are no reason to estimate; for the
#: estimate larger ones are halved until they are below SMALL.
LARGE, LARGE_TABLE, SMALL = 2**18, 2**32, 2**12
#: Of the container, if this process is in one.
CGROUP = Path("/sys/fs/cgroup")
#: Seconds to wait for another process that has most of the GPU's memory, and between two looks.
MOST_LIMIT_S, MOST_POLL_S = 20.0, 0.01


def too_large(operator: Operator, point: Point, device: str) -> Reason | None:
    """The estimate, where inputs, outputs and their copies do not fit; else None."""
    if not (large := _large_sizes(point)):
        return None
    once = output_bytes(operator, point) + _input_bytes(operator, point, large)
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


def _large_sizes(point: Point) -> dict[str, int]:
    sizes = {name: size for name, size in point.items() if type(size) is int and size >= SMALL}
    two = sorted(sizes, key=sizes.__getitem__)[-2:]
    is_table = math.prod(sizes[name] for name in two) > LARGE_TABLE
    return {name: size for name, size in sizes.items() if size > LARGE or (is_table and name in two)}


def _input_bytes(operator: Operator, point: Point, large: Mapping[str, int]) -> int:
    """From those of two points that are smaller in all large sizes. Where there are no such points, what the operator
    tells of its large inputs, or 0.
    """
    told = 0 if operator.input_bytes is None else operator.input_bytes(point)
    halvings = (min(large.values()) // SMALL).bit_length()
    points = [Point(dict(point) | {name: size >> n for name, size in large.items()}) for n in (halvings, halvings - 1)]
    try:
        if any(map(operator.broken_rule, points)):
            return told
        small, twice = (tensor_bytes(operator.make_inputs(smaller, 0)) for smaller in points)
    except Exception:  # the operator's own code, which fails again where the inputs are made
        return told
    return int(small * (twice / small) ** halvings) if small else told


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
