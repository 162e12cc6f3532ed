"""mamba_state_gather in one launch per step, where the chain takes four per layer. One lane per slot, two loads deep.

Changes that did not help (B = 128, 40 layers, on an H200):

    one load deep                                         slower in Triton, equal in CUDA C++
    a request's slots spread over 32 or 128 threads       slower
    Triton tiles of 32 x 1 and 128 x 4                    slower

mamba_state_gather.cu has the versions that were tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.mamba_state_gather.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads import mamba_steps as mamba
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

#: Slots (requests x lanes) of one program, which is one warp.
ENTRIES = 128


class Sizes(NamedTuple):
    """slots: of a request in a step, 1 + k. log_lanes: logarithm of the lanes that share a request."""

    num_reqs_padded: int
    slots: int
    log_lanes: int


def sizes(point: Point, x: Inputs) -> Sizes:
    slots = mamba.slots_per_step(point)
    return Sizes(point.batch_size, slots, mamba.log2_lanes(slots))


@triton.jit
def mamba_state_gather_kernel(n, x, out, table_stride, SLOTS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    """table_stride: outside the bundles, as Triton shall specialize on it."""
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.arange(0, LANES)[None, :]
    request = b < n.num_reqs_padded
    inside = request & (j < SLOTS)
    states = x.state_indices + b.to(tl.int64) * table_stride + j
    read_from = tl.load(x.block_idx_last_scheduled_token_prev_step + b, mask=request, other=0)
    written_from = tl.load(x.block_idx_last_scheduled_token + b, mask=request, other=0)
    read = tl.load(states + read_from, mask=inside)
    written = tl.load(states + written_from, mask=inside)
    tl.store(out.input_slots + b * SLOTS + j, read, mask=inside)
    tl.store(out.output_slots + b * SLOTS + j, written, mask=inside)


@variant("mamba_state_gather")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch for all layers, one warp per program; not recompiled for another batch size or table width;
    of the table's row stride only 1 and divisibility by 16 matter.
    """
    slots = mamba.slots_per_step(point)
    lanes = triton.next_power_of_2(slots)
    rows = ENTRIES // lanes
    grid, stride = (cdiv(point.batch_size, rows),), x.state_indices.stride(0)
    arguments = sizes(point, x), bundle(x), bundle(out), stride
    return fixed_launch(mamba_state_gather_kernel, grid, *arguments, SLOTS=slots, ROWS=rows, LANES=lanes, num_warps=1)
