"""mamba_align_step in Triton: one launch per phase. Rows are lines of a tile, state slots its columns.

Slots are read from the tables by request slot, so the launch does not wait for the tables in batch order.

mamba_align_step.cu has the versions with their times.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from baselines.mamba_align_step.operator import Inputs, Outputs, table_columns
from baselines.workloads.integers import cdiv
from harness.contract import Point, variant
from harness.launch import fixed_launch

#: Entries of a tile before the forward pass: rows x (1 + k). Rows of a program after sampling.
TILE, ROWS = 64, 64


@triton.jit
def column_of(computed, query, block_size):
    """Column of the last scheduled token."""
    return (computed + query - 1) // block_size


@triton.jit
def store_move(moves, b, source, target, shift, moved, inside):
    tl.store(moves + 3 * b, tl.where(moved, source, -1), mask=inside)
    tl.store(moves + 3 * b + 1, tl.where(moved, target, -1), mask=inside)
    tl.store(moves + 3 * b + 2, tl.where(moved, shift, 0), mask=inside)


@triton.jit
def before_rows(
    program,
    idx,
    num_computed,
    columns_before,
    accepted_before,
    query_start_loc,
    slot_tables,
    accepted,
    moves,
    columns,
    source_columns,
    source_offsets,
    batch_accepted,
    state_slots,
    mask,
    starts,
    rows,
    capacity,
    width,
    slots_per_row,
    groups,
    block_size,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """ROWS rows of the batch before the forward pass."""
    b = program * ROWS + tl.arange(0, ROWS)
    inside = b < rows
    s = tl.load(idx + b, mask=inside, other=-1)
    live = s >= 0
    start = tl.load(query_start_loc + b, mask=inside, other=0)
    query = tl.load(query_start_loc + b + 1, mask=inside, other=0) - start
    old = tl.load(columns_before + s, mask=live, other=-1)
    count = tl.load(accepted_before + s, mask=live, other=1)
    new = column_of(tl.load(num_computed + s, mask=live, other=0), query, block_size)
    shift = tl.maximum(count - 1, 0)
    crosses = live & (old >= 0) & (old != new)
    count = tl.where(crosses, 1, count)
    tl.debug_barrier()  # one array may be input and output, and several warps may have loaded the same element
    tl.store(source_columns + s, old, mask=live)
    tl.store(source_offsets + s, shift, mask=live)
    tl.store(columns + s, new, mask=live)
    tl.store(accepted + s, count, mask=live)
    store_move(moves, b, old, new, shift, crosses, inside)
    tl.store(batch_accepted + b, count, mask=inside)
    tl.store(mask + b, live.to(tl.uint8), mask=inside)
    tl.store(starts + b, start, mask=inside)
    if program == 0:
        tl.store(starts + rows, tl.load(query_start_loc + rows))

    j = tl.arange(0, SLOTS)[None, :]
    wanted = inside[:, None] & (j < slots_per_row)
    for g in range(0, groups):
        entry = slot_tables + (g * capacity + s[:, None]) * width + tl.maximum(new, 0)[:, None] + j
        slot = tl.load(entry, mask=wanted & live[:, None], other=0)
        tl.store(state_slots + (g * capacity + b[:, None]) * slots_per_row + j, slot, mask=wanted)


@triton.jit(do_not_specialize=["rows", "capacity", "width", "slots_per_row", "groups", "block_size"])
def _before(
    idx,
    num_computed,
    columns_before,
    accepted_before,
    query_start_loc,
    slot_tables,
    accepted,
    moves,
    columns,
    source_columns,
    source_offsets,
    batch_accepted,
    state_slots,
    mask,
    starts,
    rows,
    capacity,
    width,
    slots_per_row,
    groups,
    block_size,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    before_rows(
        tl.program_id(0),
        idx,
        num_computed,
        columns_before,
        accepted_before,
        query_start_loc,
        slot_tables,
        accepted,
        moves,
        columns,
        source_columns,
        source_offsets,
        batch_accepted,
        state_slots,
        mask,
        starts,
        rows,
        capacity,
        width,
        slots_per_row,
        groups,
        block_size,
        ROWS=ROWS,
        SLOTS=SLOTS,
    )


@triton.jit
def freeze(computed, column, count, block_size):
    """(state is frozen, column it goes to, tokens to shift by)."""
    running = computed - count + 1
    aligned = computed // block_size * block_size
    return aligned >= running, aligned // block_size - 1, aligned - running


@triton.jit(do_not_specialize=["rows", "block_size"])
def _after(idx, num_computed, columns_before, accepted_before, accepted, moves, rows, block_size, ROWS: tl.constexpr):
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = b < rows
    s = tl.load(idx + b, mask=inside, other=-1)
    live = s >= 0
    column = tl.load(columns_before + s, mask=live, other=0)
    count = tl.load(accepted_before + s, mask=live, other=1)
    computed = tl.load(num_computed + s, mask=live, other=0)
    frozen, to, shift = freeze(computed, column, count, block_size)
    tl.store(accepted + s, tl.where(frozen & (to == column), 1, count), mask=live)
    store_move(moves, b, column, to, shift, live & frozen & ((to != column) | (shift > 0)), inside)


@variant("mamba_align_step")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch per phase, where the engine takes six before the forward pass and two after sampling."""
    rows = len(x.idx)
    if point.phase == "after_sampling":
        grid = (cdiv(rows, ROWS),)

        return fixed_launch(
            _after,
            grid,
            x.idx,
            x.num_computed,
            x.columns_before,
            x.accepted_before,
            out.accepted,
            out.moves,
            rows,
            point.mamba_block_size,
            ROWS=ROWS,
            num_warps=2,
        )
    slots = triton.next_power_of_2(point.next_n)
    tile_rows, mask = max(TILE // slots, 1), out.mask.view(torch.uint8)
    grid = (cdiv(rows, tile_rows),)

    return fixed_launch(
        _before,
        grid,
        x.idx,
        x.num_computed,
        x.columns_before,
        x.accepted_before,
        x.query_start_loc,
        x.slot_tables,
        out.accepted,
        out.moves,
        out.columns,
        out.source_columns,
        out.source_offsets,
        out.batch_accepted,
        out.state_slots,
        mask,
        out.starts,
        rows,
        point.max_num_seqs,
        table_columns(point),
        point.next_n,
        point.num_groups,
        point.mamba_block_size,
        ROWS=tile_rows,
        SLOTS=slots,
        num_warps=1,
    )
