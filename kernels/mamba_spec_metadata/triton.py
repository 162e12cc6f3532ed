"""mamba_spec_metadata in one launch, where the operator chain takes 35 to 40.

One group of lanes per request, one lane per slot. Loads are two deep instead of three: the table entry depends on the
anchor, and the anchor on the request slot, but k drafts reach at most one block further unless BS < k. So the anchor is
the last computed column or the one after it; both entries are loaded while the anchor is in flight, which then only
selects.

Tried, on an H200 at B = 128, k = 3: one or two entries per thread (no difference); one load deep, where a warp loads
the whole table row (slower, less so in CUDA C++). Nsight Compute: four fifths of the stalls are for global loads.
What ordered loads gain in CUDA C++ is in mamba_spec_metadata.cu; in Triton they were not tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.mamba_spec_metadata.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads import mamba_steps as mamba
from spec_decode_bench.baselines.workloads.integers import cdiv, reciprocal
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

#: Slots (requests x lanes) of one program, which is one warp.
ENTRIES = 128


class Sizes(NamedTuple):
    """width: columns of the table. slots: of a request in a step, 1 + k. log_lanes: logarithm of the lanes that share a
    request. multiplier, shift: they divide by the block size; multiplier 0: the window starts at column 0.
    """

    num_reqs: int
    num_reqs_padded: int
    width: int
    slots: int
    log_lanes: int
    multiplier: int
    shift: int


def sizes(point: Point, x: Inputs) -> Sizes:
    slots, (multiplier, shift) = mamba.slots_per_step(point), reciprocal(point.mamba_block_size)
    multiplier = 0 if point.cache_mode == "none" else multiplier
    width = x.block_table.shape[1]
    return Sizes(x.num_decodes, point.batch_size, width, slots, mamba.log2_lanes(slots), multiplier, shift)


@triton.jit
def mamba_spec_metadata_kernel(
    n,
    x,
    out,
    table_stride,
    SLOTS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
):
    """table_stride: outside the bundles, as Triton shall specialize on it."""
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.arange(0, LANES)[None, :]
    # Padding rows load the data of the last real request, so that stale slots and anchors are never dereferenced. With
    # no real request they load row 0, but use neither its slot nor its length.
    row = tl.maximum(tl.minimum(b, n.num_reqs - 1), 0)
    live = b < n.num_reqs
    slot = tl.where(n.num_reqs > 0, tl.load(x.request_slots + row), 0)
    start, end = tl.load(x.query_start_loc + row), tl.load(x.query_start_loc + row + 1)
    seq_len = tl.where(n.num_reqs > 0, tl.load(x.seq_lens + row), 0)
    resumed, count = tl.load(x.fresh + row) != 0, tl.load(x.num_accepted_tokens + row)
    anchor = tl.load(x.anchors + slot)

    computed = tl.maximum(seq_len - (end - start) - 1, 0) // BLOCK_SIZE
    scheduled = tl.maximum(seq_len - 1, 0) // BLOCK_SIZE
    states = x.block_table + row.to(tl.int64) * table_stride
    here = tl.load(states + tl.minimum(computed + j, n.width - 1))
    beyond = tl.load(states + tl.minimum(computed + 1 + j, n.width - 1))
    written = tl.load(states + tl.minimum(scheduled + j, n.width - 1))
    previous = tl.where(resumed | (anchor < 0), computed, anchor)
    read = tl.where(previous == computed, here, beyond)
    far = (previous != computed) & (previous != computed + 1)
    read = tl.where(far, tl.load(states + tl.minimum(previous + j, n.width - 1), mask=far & (j < SLOTS), other=0), read)

    inside = (b < n.num_reqs_padded) & (j < SLOTS)
    read, written = tl.where(live, read, 0), tl.where(live, written, 0)
    tl.store(out.input_slots + b * SLOTS + j, read, mask=inside)
    tl.store(out.output_slots + b * SLOTS + j, written, mask=inside)
    first = inside & (j == 0)
    tl.store(out.conv_input_slot + b + j, read, mask=first)
    tl.store(out.conv_output_slot + b + j, written, mask=first)
    request = b < n.num_reqs_padded
    tl.store(out.block_idx_last_scheduled_token + b, tl.where(live, scheduled, 0), mask=request)
    tl.store(out.block_idx_last_computed_token + b, tl.where(live, computed, 0), mask=request)
    tl.store(out.block_idx_last_scheduled_token_prev_step + b, tl.where(live, previous, 0), mask=request)
    tl.store(out.num_accepted_tokens + b, tl.where(live, count, 1), mask=request)
    # The program is one warp, so all its lanes have read their anchors by now: both arrays may be the same.
    tl.store(out.next_anchors + slot, scheduled, mask=live)


@triton.jit
def mamba_spec_metadata_window_kernel(
    n,
    x,
    out,
    table_stride,
    SLOTS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """table_stride: outside the bundles, as Triton shall specialize on it."""
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.arange(0, LANES)[None, :]
    live, request = b < n.num_reqs, b < n.num_reqs_padded
    states = x.block_table + b.to(tl.int64) * table_stride
    if ALIGNED:
        states += tl.maximum(tl.load(x.seq_lens + b, mask=live, other=0) - 1, 0) // BLOCK_SIZE
    count = tl.load(x.num_accepted_tokens + b, mask=live, other=1)
    slots = tl.load(states + j, mask=live & (j < SLOTS), other=0)
    tl.store(out.input_slots + b * SLOTS + j, slots, mask=request & (j < SLOTS))
    tl.store(out.num_accepted_tokens + b, count, mask=request)


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
    arguments = sizes(point, x), bundle(x), bundle(out), stride
    if point.cache_mode == "all":
        return fixed_launch(mamba_spec_metadata_kernel, grid, *arguments, **tile)
    tile |= {"ALIGNED": point.cache_mode == "align"}
    return fixed_launch(mamba_spec_metadata_window_kernel, grid, *arguments, **tile)
