"""seq_lens_update in one launch; the host writes its bound while the GPU works.

    triton_fused    the kernel reads the pinned host array itself, over the bus: no copy
    cuda_fused      one packed host-to-device copy before the kernel in CUDA C++
    cuda_mapped     the same kernel without the copy

Most requests of a running batch keep their row. triton_fused loads what belongs to row b together with the former row
of b, and uses it if that is b: one trip over the bus instead of two and one to memory in sequence.

prev_num_computed_tokens and num_computed_tokens are two buffers, so requests may change rows and blocks need no order.
By slot they may be one, because a slot is read and written by one request alone.

On an H200 the copy is most of the distance from the copy bound: cuda_mapped takes about a third of the time of
cuda_fused at B >= 128. How much of the remaining time the mapped reads take was not measured.

seq_lens_update.cu has the versions that were tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from spec_decode_bench.baselines.seq_lens_update.operator import Inputs, Outputs, by_slot
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

THREADS = 256
#: One warp per request.
ROWS_PER_BLOCK = THREADS // 32


def num_blocks(rows: int, capacity: int) -> int:
    """Every request gets a warp and every row of the tail a thread. At least 1, because capacity is."""
    return max(cdiv(rows, ROWS_PER_BLOCK), cdiv(capacity - rows, THREADS))


def device_copy(x: Inputs, out: Outputs) -> torch.Tensor:
    """Target of the packed copy: int32 [2 B + P], uninitialised, on the device of ``out``."""
    return torch.empty(len(x.to_device), dtype=torch.int32, device=out.seq_lens.device)


def mapped(x: Inputs, out: Outputs) -> torch.Tensor:
    """The host array, for a kernel to read at its own address. Raises RuntimeError where a GPU cannot."""
    if out.seq_lens.is_cuda and x.to_device.numel() and not x.to_device.is_pinned():
        raise RuntimeError("the host array is not in pinned memory: a kernel cannot read it")
    return x.to_device


def bound_writer(x: Inputs, out: Outputs) -> Callable[[], None]:
    """Writes seq_lens_cpu_upper_bound with numpy, which takes a sixth of torch's time for arrays this small."""
    rows = len(x.num_scheduled)
    computed, scheduled = x.num_computed_tokens_cpu.numpy(), x.num_scheduled.numpy()
    bound, tail = out.seq_lens_cpu_upper_bound[:rows].numpy(), out.seq_lens_cpu_upper_bound[rows:].numpy()

    def write() -> None:
        np.add(computed, scheduled, out=bound)
        tail.fill(0)

    return write


class Sizes(NamedTuple):
    """num_previous: rows of the step before."""

    num_reqs: int
    max_num_seqs: int
    num_previous: int


def sizes(point: Point, x: Inputs) -> Sizes:
    rows = len(x.num_scheduled)
    return Sizes(rows, point.max_num_seqs, len(x.to_device) - 2 * rows)


@triton.jit
def seq_lens_update_kernel(n, x, out, host, BY_SLOT: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    """host: x.to_device, in pinned memory or copied."""
    block = tl.program_id(0)
    past = n.num_reqs + block * ROWS * LANES + tl.arange(0, ROWS * LANES)
    tl.store(out.seq_lens + past, tl.zeros((ROWS * LANES,), tl.int32), mask=past < n.max_num_seqs)

    b = block * ROWS + tl.arange(0, ROWS)
    inside = b < n.num_reqs
    p = tl.load(host + b, mask=inside, other=-1)
    expected = tl.load(host + n.num_reqs + b, mask=inside, other=0)
    start = tl.load(x.query_start_loc + b, mask=inside, other=0)
    scheduled = tl.load(x.query_start_loc + b + 1, mask=inside, other=0) - start
    # By slot, p is the slot, and drafts are by row.
    own = b
    if BY_SLOT:
        own = p
        drafts = tl.load(host + 2 * n.num_reqs + b, mask=inside, other=0)
        old = tl.load(x.prev_num_computed_tokens + p, mask=p >= 0, other=0)
        produced = tl.load(x.valid + p, mask=p >= 0, other=0)
    else:
        # Most requests of a running batch keep their row: what belongs to row b is loaded together with p.
        stayed, moved = p == b, (p >= 0) & (p != b)
        drafts = tl.load(host + 2 * n.num_reqs + b, mask=inside & (b < n.num_previous), other=0)
        old = tl.load(x.prev_num_computed_tokens + b, mask=inside, other=0)
        produced = tl.load(x.valid + b, mask=inside, other=0)
        drafts = tl.where(stayed, drafts, tl.load(host + 2 * n.num_reqs + p, mask=moved, other=0))
        old = tl.where(stayed, old, tl.load(x.prev_num_computed_tokens + p, mask=moved, other=0))
        produced = tl.where(stayed, produced, tl.load(x.valid + p, mask=moved, other=0))
    corrected = drafts > 0
    computed = tl.where(corrected, old + produced, expected)
    if BY_SLOT:
        tl.debug_barrier()  # all threads have read the counts of before, which may be the same array
    tl.store(out.num_computed_tokens + own, computed, mask=inside)
    tl.store(out.num_accepted + own, produced, mask=corrected)
    tl.store(out.seq_lens + b, computed + scheduled, mask=inside)
    lanes = tl.arange(0, LANES)
    for j in range(0, tl.max(scheduled, 0), LANES):
        token = j + lanes
        target = out.positions + start[:, None] + token[None, :]
        tl.store(target, (computed[:, None] + token[None, :]).to(tl.int64), mask=token[None, :] < scheduled[:, None])


@variant("seq_lens_update")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch that reads the pinned host array over the bus; not recompiled for another batch size."""
    write_bound = bound_writer(x, out)
    grid = (num_blocks(len(x.num_scheduled), len(out.seq_lens)),)
    shapes = {"BY_SLOT": by_slot(point), "ROWS": ROWS_PER_BLOCK, "LANES": 32, "num_warps": THREADS // 32}
    arguments = sizes(point, x), bundle(x), bundle(out), mapped(x, out)
    update = fixed_launch(seq_lens_update_kernel, grid, *arguments, **shapes)

    def launch() -> None:
        update()
        write_bound()

    return launch
