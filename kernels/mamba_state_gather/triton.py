"""mamba_state_gather in one launch per step, where the chain takes four per layer. One lane per slot, two loads deep.

On an H200 Triton and CUDA C++ take the same time within a few percent, about a fifth more than the floor. Changes that
did not help (B = 128, 40 layers):

    one load deep                                         8 % slower in Triton, equal in CUDA C++
    a request's slots spread over 32 or 128 threads       5 to 8 % slower
    Triton tiles of 32 x 1 and 128 x 4                    1 to 2 % slower

mamba_state_gather.cu has the versions with their times.
"""

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl

from baselines.mamba_state_gather.operator import Inputs, Outputs
from baselines.workloads import mamba_steps as mamba
from baselines.workloads.integers import cdiv
from harness.contract import Point, variant
from harness.launch import fixed_launch

#: Slots (requests x lanes) of one program, which is one warp.
ENTRIES = 128


@triton.jit(do_not_specialize=["num_reqs"])
def _gather(
    state_indices,
    scheduled,
    previous,
    input_slots,
    output_slots,
    num_reqs,
    table_stride,
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
):
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.arange(0, LANES)[None, :]
    request = b < num_reqs
    inside = request & (j < SLOTS)
    states = state_indices + b.to(tl.int64) * table_stride + j
    read_from = tl.load(previous + b, mask=request, other=0)
    written_from = tl.load(scheduled + b, mask=request, other=0)
    read = tl.load(states + read_from, mask=inside)
    written = tl.load(states + written_from, mask=inside)
    tl.store(input_slots + b * SLOTS + j, read, mask=inside)
    tl.store(output_slots + b * SLOTS + j, written, mask=inside)


@variant("mamba_state_gather")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch for all layers, one warp per program; not recompiled for another batch size or table width;
    of the table's row stride only 1 and divisibility by 16 matter.
    """
    slots = mamba.slots_per_step(point)
    lanes = triton.next_power_of_2(slots)
    rows = ENTRIES // lanes
    grid, stride = (cdiv(point.batch_size, rows),), x.state_indices.stride(0)
    return fixed_launch(
        _gather,
        grid,
        x.state_indices,
        x.block_idx_last_scheduled_token,
        x.block_idx_last_scheduled_token_prev_step,
        out.input_slots,
        out.output_slots,
        point.batch_size,
        stride,
        SLOTS=slots,
        ROWS=rows,
        LANES=lanes,
        num_warps=1,
    )
