"""compute_slot_mappings in Triton: rows share a program, and all programs share the tail.

The engine's kernel gives a row of four tokens a program of its own and the whole tail, up to the capacity of a step, to
one program, which is the longest part of a decode step.

compute_slot_mappings.cu has the versions with their times.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from baselines.compute_slot_mappings.operator import Inputs, Outputs, rank_of
from baselines.workloads.integers import cdiv
from baselines.workloads.request_slots import row_tiling
from harness.contract import Point, variant
from harness.launch import fixed_launch

#: Rows of a program, and entries of the tail that it clears.
ROWS, TAIL = 4, 256


@triton.jit
def slots_of(
    position,
    inside,
    table,
    block_size,
    is_sharded,
    RANKS: tl.constexpr,
    RANK: tl.constexpr,
    INTERLEAVE: tl.constexpr,
):
    """int64 slots of int32 positions, -1 where not ``inside`` or another rank's; table: pointers to rows."""
    if RANKS > 1:
        own = position % (block_size * RANKS)
        local = position // (block_size * RANKS) * block_size
        local += own // (INTERLEAVE * RANKS) * INTERLEAVE + own % INTERLEAVE
        inside = inside & (tl.where(is_sharded, own // INTERLEAVE % RANKS, RANK) == RANK)
        position = tl.where(is_sharded, local, position)
    block = tl.load(table + position // block_size, mask=inside, other=0)
    return tl.where(inside, (block * block_size + position % block_size).to(tl.int64), -1)


@triton.jit
def map_rows(
    program,
    g,
    strip,
    strips,
    idx,
    query_start_loc,
    positions,
    tables,
    starts,
    widths,
    block_sizes,
    enabled,
    sharded,
    slots,
    rows,
    capacity,
    per_row,
    RANKS: tl.constexpr,
    RANK: tl.constexpr,
    INTERLEAVE: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    TAIL: tl.constexpr,
    COUNTED: tl.constexpr,
):
    """ROWS rows of the batch in group g, and TAIL entries behind the last token. Long rows are shared by ``strips``
    programs, LANES tokens in turn.

    per_row: tokens of a row in a steady decode.
    COUNTED: ``positions`` are those of each row's first token by slot, from where the row counts.
    """
    target = slots + g.to(tl.int64) * capacity
    past = tl.load(query_start_loc + rows) + program * TAIL + tl.arange(0, TAIL)
    b = program * ROWS + tl.arange(0, ROWS)
    inside = b < rows
    s = tl.load(idx + b, mask=inside, other=-1)
    start = tl.load(query_start_loc + b, mask=inside, other=0)
    query = tl.load(query_start_loc + b + 1, mask=inside, other=0) - start
    known = tl.where(tl.load(enabled + g) != 0, s, -1) >= 0
    table = tables + tl.load(starts + g) + s * tl.load(widths + g)
    block_size, is_sharded = tl.load(block_sizes + g), tl.load(sharded + g) != 0
    if COUNTED:
        computed = tl.load(positions + s, mask=s >= 0, other=0)
    lanes = tl.arange(0, LANES)
    if not COUNTED:
        # The first tokens if every row has per_row, as in a steady decode: with the rows' starts, not behind them.
        guess = tl.where(strip == 0, b[:, None] * per_row + lanes[None, :], capacity)
        guessed = tl.load(positions + guess, mask=guess < capacity, other=0).to(tl.int32)
    for first in range(strip * LANES, tl.max(query, 0), strips * LANES):
        j = first + lanes[None, :]
        t = start[:, None] + j
        real = j < query[:, None]
        if COUNTED:
            position = computed[:, None] + j
        else:
            position = tl.load(positions + t, mask=real & (t != guess), other=0).to(tl.int32)
            position = tl.where(t == guess, guessed, position)
        slot = slots_of(
            position, real & known[:, None], table[:, None], block_size, is_sharded, RANKS, RANK, INTERLEAVE
        )
        tl.store(target + t, slot, mask=real)
    # After the rows, whose chain of loads is longer.
    tl.store(target + past, tl.full((TAIL,), -1, tl.int64), mask=past < tl.where(strip == 0, capacity, 0))


@triton.jit(do_not_specialize=["rows", "capacity", "per_row"])
def _map(
    idx,
    query_start_loc,
    positions,
    tables,
    starts,
    widths,
    block_sizes,
    enabled,
    sharded,
    slots,
    rows,
    capacity,
    per_row,
    RANKS: tl.constexpr,
    RANK: tl.constexpr,
    INTERLEAVE: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    TAIL: tl.constexpr,
):
    map_rows(
        tl.program_id(0),
        tl.program_id(1),
        tl.program_id(2),
        tl.num_programs(2),
        idx,
        query_start_loc,
        positions,
        tables,
        starts,
        widths,
        block_sizes,
        enabled,
        sharded,
        slots,
        rows,
        capacity,
        per_row,
        RANKS=RANKS,
        RANK=RANK,
        INTERLEAVE=INTERLEAVE,
        ROWS=ROWS,
        LANES=LANES,
        TAIL=TAIL,
        COUNTED=False,
    )


@variant("compute_slot_mappings")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch: four rows and a strip of the tail per program and group."""
    rows, capacity = len(x.idx), out.slots.shape[1]
    lanes, strips = row_tiling(point)
    grid = (max(cdiv(rows, ROWS), cdiv(capacity, TAIL)), point.num_groups, strips)

    return fixed_launch(
        _map,
        grid,
        x.idx,
        x.query_start_loc,
        x.positions,
        x.tables,
        x.starts,
        x.widths,
        x.block_sizes,
        x.enabled.view(torch.uint8),
        x.sharded.view(torch.uint8),
        out.slots,
        rows,
        capacity,
        point.max_decode_len,
        RANKS=point.cp_size,
        RANK=rank_of(point),
        INTERLEAVE=point.cp_interleave,
        ROWS=ROWS,
        LANES=lanes,
        TAIL=TAIL,
        num_warps=2,
    )
