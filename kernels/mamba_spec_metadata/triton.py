"""mamba_spec_metadata in one launch, where the operator chain takes 35 to 40.

One group of lanes per request, one lane per slot. Loads are two deep instead of three: the table entry depends on the
anchor, and the anchor on the request slot, but k drafts reach at most one block further unless BS < k. So the anchor is
the last computed column or the one after it; both entries are loaded while the anchor is in flight, which then only
selects.

Tried, on an H200 at B = 128, k = 3: one or two entries per thread (within 2 %); one load deep, where a warp loads the
whole table row (15 % slower, 5 % in CUDA C++). Nsight Compute: four fifths of the stalls are for global loads.
What ordered loads gain in CUDA C++ is in mamba_spec_metadata.cu; in Triton they were not tried.
"""

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl

from baselines.mamba_spec_metadata.operator import Inputs, Outputs
from baselines.workloads import mamba_steps as mamba
from baselines.workloads.integers import cdiv
from harness.contract import Point, variant
from harness.launch import fixed_launch

#: Slots (requests x lanes) of one program, which is one warp.
ENTRIES = 128


@triton.jit(do_not_specialize=["num_decodes", "num_reqs", "width"])
def _all_states(
    seq_lens,
    query_start_loc,
    accepted,
    request_slots,
    fresh,
    anchors,
    table,
    input_slots,
    output_slots,
    conv_input,
    conv_output,
    scheduled_out,
    computed_out,
    previous_out,
    accepted_out,
    next_anchors,
    num_decodes,
    num_reqs,
    width,
    table_stride,
    SLOTS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
):
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.arange(0, LANES)[None, :]
    # Padding rows load the data of the last real request, so that stale slots and anchors are never dereferenced. With
    # no real request they load row 0, but use neither its slot nor its length.
    row = tl.maximum(tl.minimum(b, num_decodes - 1), 0)
    live = b < num_decodes
    slot = tl.where(num_decodes > 0, tl.load(request_slots + row), 0)
    start, end = tl.load(query_start_loc + row), tl.load(query_start_loc + row + 1)
    seq_len = tl.where(num_decodes > 0, tl.load(seq_lens + row), 0)
    resumed, count = tl.load(fresh + row), tl.load(accepted + row)
    anchor = tl.load(anchors + slot)

    computed = tl.maximum(seq_len - (end - start) - 1, 0) // BLOCK_SIZE
    scheduled = tl.maximum(seq_len - 1, 0) // BLOCK_SIZE
    states = table + row.to(tl.int64) * table_stride
    here = tl.load(states + tl.minimum(computed + j, width - 1))
    beyond = tl.load(states + tl.minimum(computed + 1 + j, width - 1))
    written = tl.load(states + tl.minimum(scheduled + j, width - 1))
    previous = tl.where(resumed | (anchor < 0), computed, anchor)
    read = tl.where(previous == computed, here, beyond)
    far = (previous != computed) & (previous != computed + 1)
    read = tl.where(far, tl.load(states + tl.minimum(previous + j, width - 1), mask=far & (j < SLOTS), other=0), read)

    inside = (b < num_reqs) & (j < SLOTS)
    read, written = tl.where(live, read, 0), tl.where(live, written, 0)
    tl.store(input_slots + b * SLOTS + j, read, mask=inside)
    tl.store(output_slots + b * SLOTS + j, written, mask=inside)
    first = inside & (j == 0)
    tl.store(conv_input + b + j, read, mask=first)
    tl.store(conv_output + b + j, written, mask=first)
    request = b < num_reqs
    tl.store(scheduled_out + b, tl.where(live, scheduled, 0), mask=request)
    tl.store(computed_out + b, tl.where(live, computed, 0), mask=request)
    tl.store(previous_out + b, tl.where(live, previous, 0), mask=request)
    tl.store(accepted_out + b, tl.where(live, count, 1), mask=request)
    # The program is one warp, so all its lanes have read their anchors by now: both arrays may be the same.
    tl.store(next_anchors + slot, scheduled, mask=live)


@triton.jit(do_not_specialize=["num_decodes", "num_reqs"])
def _window(
    seq_lens,
    accepted,
    table,
    input_slots,
    accepted_out,
    num_decodes,
    num_reqs,
    table_stride,
    SLOTS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
):
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.arange(0, LANES)[None, :]
    live, request = b < num_decodes, b < num_reqs
    states = table + b.to(tl.int64) * table_stride
    if ALIGNED:
        states += tl.maximum(tl.load(seq_lens + b, mask=live, other=0) - 1, 0) // BLOCK_SIZE
    count = tl.load(accepted + b, mask=live, other=1)
    slots = tl.load(states + j, mask=live & (j < SLOTS), other=0)
    tl.store(input_slots + b * SLOTS + j, slots, mask=request & (j < SLOTS))
    tl.store(accepted_out + b, count, mask=request)


@variant("mamba_spec_metadata")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch, one warp per program; not recompiled for another batch size or table width; of the table's row
    stride only 1 and divisibility by 16 matter.
    """
    slots = mamba.slots_per_step(point)
    lanes = triton.next_power_of_2(slots)
    rows = ENTRIES // lanes
    grid, stride = (cdiv(point.batch_size, rows),), x.block_table.stride(0)
    tile = {"SLOTS": slots, "BLOCK_SIZE": point.mamba_block_size, "ROWS": rows, "LANES": lanes, "num_warps": 1}
    if point.cache_mode == "all":
        width = x.block_table.shape[1]
        return fixed_launch(
            _all_states,
            grid,
            x.seq_lens,
            x.query_start_loc,
            x.num_accepted_tokens,
            x.request_slots,
            x.fresh,
            x.anchors,
            x.block_table,
            out.input_slots,
            out.output_slots,
            out.conv_input_slot,
            out.conv_output_slot,
            out.block_idx_last_scheduled_token,
            out.block_idx_last_computed_token,
            out.block_idx_last_scheduled_token_prev_step,
            out.num_accepted_tokens,
            out.next_anchors,
            x.num_decodes,
            point.batch_size,
            width,
            stride,
            **tile,
        )
    aligned = point.cache_mode == "align"
    return fixed_launch(
        _window,
        grid,
        x.seq_lens,
        x.num_accepted_tokens,
        x.block_table,
        out.input_slots,
        out.num_accepted_tokens,
        x.num_decodes,
        point.batch_size,
        stride,
        ALIGNED=aligned,
        **tile,
    )
