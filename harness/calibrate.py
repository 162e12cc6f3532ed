"""What the ruler itself reads in this run: a kernel that does nothing, the smallest copy, the copy bandwidth.

Recorded raw, measured with every run, never subtracted from a figure.
"""

from __future__ import annotations

import torch

from harness.cuda import launcher
from harness.cuda_ruler import PROBES, CudaRuler
from harness.marks import mark
from harness.records import Calibration

ROUNDS = 30
#: Integers in the one-block copy: the size of the lengths of a large decode step.
BLOCK_COPY_INTS = 1024
COPY_BYTES = 2**30
COPY_ROUNDS = 7


def calibrate(ruler: CudaRuler) -> Calibration:
    source = torch.randint(2**31 - 1, (BLOCK_COPY_INTS,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    null = launcher(PROBES, "null_kernel", 1, 32)
    copy = launcher(PROBES, "block_copy", 1, BLOCK_COPY_INTS // 4, source, target)
    with mark("calibrate", "calibrate"):
        null_watch, copy_watch = ruler.stopwatch(null), ruler.stopwatch(copy)
        nulls = [null_watch.sample() for _ in range(ROUNDS)]
        copies = [copy_watch.sample() for _ in range(ROUNDS)]
        if not torch.equal(source, target):
            raise RuntimeError("the calibration copy came out wrong; this GPU or driver cannot be trusted")
        copy_us = _copy_times(ruler)
    by_copies = lambda taken: {k: [one["graph_us"][k] for one in taken] for k in ruler.graph_copies}  # noqa: E731
    return Calibration(
        null_graph_us=by_copies(nulls),
        block_copy_graph_us=by_copies(copies),
        launch_host_us=[one["host_us"] for one in copies],
        copy_bytes=COPY_BYTES,
        copy_us=copy_us,
    )


def _copy_times(ruler: CudaRuler) -> list[float]:
    source = torch.randint(256, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(COPY_ROUNDS + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        ruler.spin(50)
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return times[1:]
