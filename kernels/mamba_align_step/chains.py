"""mamba_align_step as an engine launches it: columns, moves, counts of the batch, state slots of all groups from the
tables in batch order, and copies into persistent buffers; after sampling a snapshot of the counts and the decision.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from spec_decode_bench.baselines.mamba_align_step.operator import Inputs, Outputs, table_columns
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.kernels.mamba_align_step.triton import column_of, freeze, store_move

BLOCK = 256


@triton.jit(do_not_specialize=["num_reqs_padded", "block_size"])
def columns_kernel(
    idx_mapping,
    num_computed_tokens,
    state_columns_before,
    num_accepted_tokens_before,
    query_start_loc,
    num_accepted_tokens,
    columns,
    source_columns,
    source_offsets,
    num_reqs_padded,
    block_size,
    BLOCK: tl.constexpr,
):
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(idx_mapping + b, mask=b < num_reqs_padded, other=-1)
    live = s >= 0
    start = tl.load(query_start_loc + b, mask=live, other=0)
    query = tl.load(query_start_loc + b + 1, mask=live, other=0) - start
    old = tl.load(state_columns_before + s, mask=live, other=-1)
    count = tl.load(num_accepted_tokens_before + s, mask=live, other=1)
    new = column_of(tl.load(num_computed_tokens + s, mask=live, other=0), query, block_size)
    tl.store(source_columns + s, old, mask=live)
    tl.store(source_offsets + s, tl.maximum(count - 1, 0), mask=live)
    tl.store(columns + s, new, mask=live)
    tl.store(num_accepted_tokens + s, tl.where((old >= 0) & (old != new), 1, count), mask=live)


@triton.jit(do_not_specialize=["num_reqs_padded"])
def moves_kernel(idx_mapping, columns, source_columns, source_offsets, moves, num_reqs_padded, BLOCK: tl.constexpr):
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(idx_mapping + b, mask=b < num_reqs_padded, other=-1)
    live = s >= 0
    old = tl.load(source_columns + s, mask=live, other=-1)
    new = tl.load(columns + s, mask=live, other=-1)
    shift = tl.load(source_offsets + s, mask=live, other=0)
    store_move(moves, b, old, new, shift, (old >= 0) & (old != new), b < num_reqs_padded)


@triton.jit(do_not_specialize=["num_reqs_padded"])
def gather_counts_kernel(idx_mapping, num_accepted_tokens, batch_accepted, num_reqs_padded, BLOCK: tl.constexpr):
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(idx_mapping + b, mask=b < num_reqs_padded, other=-1)
    tl.store(batch_accepted + b, tl.load(num_accepted_tokens + s, mask=s >= 0, other=1), mask=b < num_reqs_padded)


@triton.jit(do_not_specialize=["group_stride", "max_num_seqs", "width", "slots_per_row", "block_size"])
def state_slots_kernel(
    seq_lens,
    batch_tables,
    state_slots,
    group_stride,
    max_num_seqs,
    width,
    slots_per_row,
    block_size,
    SLOTS: tl.constexpr,
):
    b, g, j = tl.program_id(0), tl.program_id(1), tl.arange(0, SLOTS)
    first = tl.load(seq_lens + b) - 1
    first = tl.where(first > 0, first // block_size, 0)
    row = batch_tables + g.to(tl.int64) * group_stride + b.to(tl.int64) * width
    slot = tl.load(row + first + j, mask=j < slots_per_row, other=0)
    tl.store(state_slots + (g.to(tl.int64) * max_num_seqs + b) * slots_per_row + j, slot, mask=j < slots_per_row)


@triton.jit(do_not_specialize=["num_reqs_padded"])
def mask_kernel(idx_mapping, mask, num_reqs_padded, BLOCK: tl.constexpr):
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(idx_mapping + b, mask=b < num_reqs_padded, other=-1)
    tl.store(mask + b, (s >= 0).to(tl.uint8), mask=b < num_reqs_padded)


@triton.jit(do_not_specialize=["num_reqs_padded", "block_size"])
def freeze_kernel(
    idx_mapping,
    num_computed_tokens,
    state_columns_before,
    snapshot,
    num_accepted_tokens,
    moves,
    num_reqs_padded,
    block_size,
    BLOCK: tl.constexpr,
):
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(idx_mapping + b, mask=b < num_reqs_padded, other=-1)
    live = s >= 0
    column = tl.load(state_columns_before + s, mask=live, other=0)
    count = tl.load(snapshot + s, mask=live, other=1)
    frozen, to, shift = freeze(tl.load(num_computed_tokens + s, mask=live, other=0), column, count, block_size)
    tl.store(num_accepted_tokens + s, tl.where(frozen & (to == column), 1, count), mask=live)
    store_move(moves, b, column, to, shift, live & frozen & ((to != column) | (shift > 0)), b < num_reqs_padded)


@variant("mamba_align_step")
def unfused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The engine's way, without the copies of states: six launches before the forward pass, two after sampling."""
    rows, size = len(x.idx_mapping), point.mamba_block_size
    grid = (cdiv(rows, BLOCK),)
    if point.phase == "after_sampling":
        snapshot = torch.empty_like(x.num_accepted_tokens_before)

        def launch() -> None:
            snapshot.copy_(x.num_accepted_tokens_before)
            freeze_kernel[grid](
                x.idx_mapping,
                x.num_computed_tokens,
                x.state_columns_before,
                snapshot,
                out.num_accepted_tokens,
                out.moves,
                rows,
                size,
                BLOCK=BLOCK,
            )

        return launch
    mask, starts, source = out.mask.view(torch.uint8), out.starts[: rows + 1], x.query_start_loc[: rows + 1]
    slots = triton.next_power_of_2(point.next_n)

    def launch() -> None:
        columns_kernel[grid](
            x.idx_mapping,
            x.num_computed_tokens,
            x.state_columns_before,
            x.num_accepted_tokens_before,
            x.query_start_loc,
            out.num_accepted_tokens,
            out.state_columns,
            out.source_columns,
            out.source_offsets,
            rows,
            size,
            BLOCK=BLOCK,
        )
        moves_kernel[grid](
            x.idx_mapping, out.state_columns, out.source_columns, out.source_offsets, out.moves, rows, BLOCK=BLOCK
        )
        gather_counts_kernel[grid](x.idx_mapping, out.num_accepted_tokens, out.batch_accepted, rows, BLOCK=BLOCK)
        state_slots_kernel[(rows, point.num_groups)](
            x.seq_lens,
            x.batch_tables,
            out.state_slots,
            x.batch_tables.stride(0),
            point.max_num_seqs,
            table_columns(point),
            point.next_n,
            size,
            SLOTS=slots,
            num_warps=1,
        )
        mask_kernel[grid](x.idx_mapping, mask, rows, BLOCK=BLOCK)
        starts.copy_(source)

    return launch
