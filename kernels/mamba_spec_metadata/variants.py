"""mamba_spec_metadata, fused: one launch where the operator chain takes 35, and 40 where there is padding.

A group of lanes per request, a lane per slot. What a lane needs waits for two loads, not three: the anchor hangs on the
request slot, and the table entry on the anchor. But drafts reach no further than k tokens, so the anchor is the last
computed column or the one after it (unless BS < k); both entries are loaded while the anchor is on its way, and it only
chooses.

On an H200 at B = 128, k = 3 this takes 1.60 us in Triton and 1.69 in CUDA C++, where the floor is 1.06 and the aim was 1.3. Tried
there: one or two entries per Triton thread 1.57 and 1.63; in CUDA C++ loads pinned in source order 1.67, output pointers used
early 1.67; one load deep, with the whole row per warp, 1.84 and 1.78. So it is neither the depth of the loads nor the size of a
block that keeps it from the floor.
"""

from __future__ import annotations

from pathlib import Path

import triton
import triton.language as tl

from baselines.workloads.integers import cdiv, reciprocal
from harness.contract import GPU, variant
from harness.cuda import launcher
from kernels.mamba_state_gather._lanes import ENTRIES, THREADS, lanes_per_request

SOURCE = Path(__file__).with_name("mamba_spec_metadata.cu")


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
    # Padding rows load what the last real request does, so that stale slots and anchors are never looked at. Where no
    # request is real they load row 0, and no anchor by its slot.
    row = tl.maximum(tl.minimum(b, num_decodes - 1), 0)
    live = b < num_decodes
    slot = tl.where(num_decodes > 0, tl.load(request_slots + row), 0)
    start, end = tl.load(query_start_loc + row), tl.load(query_start_loc + row + 1)
    seq_len, resumed, count = tl.load(seq_lens + row), tl.load(fresh + row), tl.load(accepted + row)
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
    # One warp, so that every lane of it has read the anchor: both arrays may be the same.
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
def triton_fused(point, x, out):
    """One launch, one warp per program; nothing is compiled per batch size or table width, and the table's row stride
    counts only by whether 16 divides it.
    """
    slots = 1 + point.num_speculative_blocks
    lanes = lanes_per_request(slots)
    rows = max(ENTRIES // lanes, 1)
    grid, stride = (cdiv(point.batch_size, rows),), x.block_table.stride(0)
    tile = {"SLOTS": slots, "BLOCK_SIZE": point.mamba_block_size, "ROWS": rows, "LANES": lanes, "num_warps": 1}
    if point.cache_mode == "all":
        width = x.block_table.shape[1]

        def launch():
            _all_states[grid](
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

    else:
        aligned = point.cache_mode == "align"

        def launch():
            _window[grid](
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

    return launch


@variant("mamba_spec_metadata", requires=GPU, sources=SOURCE)
def cuda_fused(point, x, out):
    """The same in CUDA C++; the division by the block size is a multiplication."""
    slots = 1 + point.num_speculative_blocks
    log_lanes = lanes_per_request(slots).bit_length() - 1
    grid, table = cdiv(point.batch_size << log_lanes, THREADS), x.block_table
    multiplier, shift = reciprocal(point.mamba_block_size)
    if point.cache_mode == "all":
        return launcher(
            SOURCE,
            "all_states",
            grid,
            THREADS,
            x.seq_lens,
            x.query_start_loc,
            x.num_accepted_tokens,
            x.request_slots,
            x.fresh,
            x.anchors,
            table,
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
            table.shape[1],
            table.stride(0),
            slots,
            log_lanes,
            multiplier,
            shift,
        )
    # A multiplier of 0 makes every first column 0: mode none.
    return launcher(
        SOURCE,
        "window",
        grid,
        THREADS,
        x.seq_lens,
        x.num_accepted_tokens,
        table,
        out.input_slots,
        out.num_accepted_tokens,
        x.num_decodes,
        point.batch_size,
        table.stride(0),
        slots,
        log_lanes,
        multiplier if point.cache_mode == "align" else 0,
        shift,
    )
