"""seq_lens_update, fused: one packed copy to the device and one launch; the host adds its bound while they run.

    triton_fused    copy, launch
    cuda_fused      the same in CUDA C++
    cuda_mapped     no copy: the kernel reads the pinned host array itself, over the bus

prev_num_computed and num_computed are two buffers, so requests may move between rows and blocks need no order.

On an H200 at B = 128 and more a copy and a launch take 8.2 to 13.1 us, from one record to the next, and cuda_mapped 4.3
to 4.8, where the floor is 1.06 to 1.09: the copy over the bus is the larger part of the distance. How much of the rest
the mapped reads are was not measured apart. At B = 1 the three take 4.0, 4.2 and 2.6.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from baselines.workloads.integers import cdiv
from harness.contract import GPU, variant
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("seq_lens_update.cu")
THREADS = 256
#: A warp per request.
ROWS_PER_BLOCK = THREADS // 32


def _grid(rows: int, capacity: int) -> int:
    """Blocks that give each request a warp and each row of the tail a thread; at least one, as capacity is."""
    return max(cdiv(rows, ROWS_PER_BLOCK), cdiv(capacity - rows, THREADS))


def _bound(x, out) -> Callable[[], None]:
    """The host's half in numpy: 0.5 us on an EPYC core where torch takes 3."""
    rows = len(x.num_scheduled)
    believed, scheduled = x.num_computed_cpu.numpy(), x.num_scheduled.numpy()
    bound, tail = out.seq_lens_cpu_upper_bound[:rows].numpy(), out.seq_lens_cpu_upper_bound[rows:].numpy()

    def write():
        np.add(believed, scheduled, out=bound)
        tail.fill(0)

    return write


def _uploaded(x, out) -> Tensor:
    """Where the packed host array arrives."""
    return torch.empty(len(x.to_device), dtype=torch.int32, device=out.seq_lens.device)


@triton.jit(do_not_specialize=["rows", "capacity"])
def _update(
    host,
    before,
    valid,
    query_start_loc,
    num_computed,
    num_accepted,
    seq_lens,
    positions,
    rows,
    capacity,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
):
    block = tl.program_id(0)
    past = rows + block * ROWS * LANES + tl.arange(0, ROWS * LANES)
    tl.store(seq_lens + past, tl.zeros((ROWS * LANES,), tl.int32), mask=past < capacity)

    b = block * ROWS + tl.arange(0, ROWS)
    inside = b < rows
    p = tl.load(host + b, mask=inside, other=-1)
    believed = tl.load(host + rows + b, mask=inside, other=0)
    start = tl.load(query_start_loc + b, mask=inside, other=0)
    scheduled = tl.load(query_start_loc + b + 1, mask=inside, other=0) - start
    drafts = tl.load(host + 2 * rows + p, mask=p >= 0, other=0)
    old = tl.load(before + p, mask=p >= 0, other=0)
    produced = tl.load(valid + p, mask=p >= 0, other=0)
    corrected = drafts > 0
    computed = tl.where(corrected, old + produced, believed)
    tl.store(num_computed + b, computed, mask=inside)
    tl.store(num_accepted + b, produced, mask=corrected)
    tl.store(seq_lens + b, computed + scheduled, mask=inside)
    lanes = tl.arange(0, LANES)
    for j in range(0, tl.max(scheduled, 0), LANES):
        token = j + lanes
        target = positions + start[:, None] + token[None, :]
        tl.store(target, (computed[:, None] + token[None, :]).to(tl.int64), mask=token[None, :] < scheduled[:, None])


@variant("seq_lens_update")
def triton_fused(point, x, out):
    """One copy and one launch; nothing is compiled per batch size."""
    rows, capacity = len(x.num_scheduled), len(out.seq_lens)
    host, grid, bound = _uploaded(x, out), (_grid(rows, capacity),), _bound(x, out)

    def launch():
        host.copy_(x.to_device, non_blocking=True)
        _update[grid](
            host,
            x.prev_num_computed,
            x.valid,
            x.query_start_loc,
            out.num_computed,
            out.num_accepted,
            out.seq_lens,
            out.positions,
            rows,
            capacity,
            ROWS=ROWS_PER_BLOCK,
            LANES=32,
            num_warps=THREADS // 32,
        )
        bound()

    return launch


def _kernel(x, out, host: Tensor) -> Callable[[], None]:
    rows, capacity = len(x.num_scheduled), len(out.seq_lens)
    return launcher(
        SOURCE,
        "update",
        _grid(rows, capacity),
        THREADS,
        host,
        x.prev_num_computed,
        x.valid,
        x.query_start_loc,
        out.num_computed,
        out.num_accepted,
        out.seq_lens,
        out.positions,
        rows,
        capacity,
    )


@variant("seq_lens_update", requires=GPU, sources=SOURCE)
def cuda_fused(point, x, out):
    """The same in CUDA C++."""
    host, bound = _uploaded(x, out), _bound(x, out)
    update = _kernel(x, out, host)

    def launch():
        host.copy_(x.to_device, non_blocking=True)
        update()
        bound()

    return launch


@variant("seq_lens_update", requires=GPU, sources=SOURCE)
def cuda_mapped(point, x, out):
    """The kernel of cuda_fused reads the pinned host array at its own address: no copy, one launch."""
    if x.to_device.numel() and not x.to_device.is_pinned():
        raise RuntimeError("the host array is not in pinned memory: a kernel cannot read it")
    update, bound = _kernel(x, out, x.to_device), _bound(x, out)

    def launch():
        update()
        bound()

    return launch
