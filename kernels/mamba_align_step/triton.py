"""mamba_align_step in Triton: one launch per phase. Rows are lines of a tile, state slots its columns.

Slots are read from the tables by request slot, so the launch does not wait for the tables in batch order.

mamba_align_step.cu has the versions that were tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.mamba_align_step.operator import Inputs, Outputs, table_columns
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle, bundle_type
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

#: Entries of a tile before the forward pass: rows x (1 + k). Rows of a program after sampling.
TILE, ROWS = 64, 64


#: Fields of the inputs that the fused kernels read.
INPUTS = (
    "idx_mapping",
    "num_computed_tokens",
    "state_columns_before",
    "num_accepted_tokens_before",
    "query_start_loc",
    "slot_tables",
)


class Sizes(NamedTuple):
    """width: columns of a table. slots_per_row: state slots of a row, 1 + k. block_size: tokens of a state."""

    num_reqs_padded: int
    max_num_seqs: int
    width: int
    slots_per_row: int
    num_groups: int
    block_size: int


def sizes(point: Point, x: Inputs) -> Sizes:
    groups, block_size = point.num_groups, point.mamba_block_size
    return Sizes(len(x.idx_mapping), point.max_num_seqs, table_columns(point), point.next_n, groups, block_size)


class Arguments(NamedTuple):
    """The sizes, and bundles of the inputs and outputs."""

    n: Sizes
    x: bundle_type(Inputs, *INPUTS)
    out: bundle_type(Outputs)


def arguments(point: Point, x: Inputs, out: Outputs) -> Arguments:
    return Arguments(sizes(point, x), bundle(x, *INPUTS), bundle(out))


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
def before_rows(program, x, out, n, ROWS: tl.constexpr, SLOTS: tl.constexpr):
    """ROWS rows of the batch before the forward pass."""
    b = program * ROWS + tl.arange(0, ROWS)
    inside = b < n.num_reqs_padded
    s = tl.load(x.idx_mapping + b, mask=inside, other=-1)
    live = s >= 0
    start = tl.load(x.query_start_loc + b, mask=inside, other=0)
    query = tl.load(x.query_start_loc + b + 1, mask=inside, other=0) - start
    old = tl.load(x.state_columns_before + s, mask=live, other=-1)
    count = tl.load(x.num_accepted_tokens_before + s, mask=live, other=1)
    new = column_of(tl.load(x.num_computed_tokens + s, mask=live, other=0), query, n.block_size)
    shift = tl.maximum(count - 1, 0)
    crosses = live & (old >= 0) & (old != new)
    count = tl.where(crosses, 1, count)
    tl.debug_barrier()  # one array may be input and output, and several warps may have loaded the same element
    tl.store(out.source_columns + s, old, mask=live)
    tl.store(out.source_offsets + s, shift, mask=live)
    tl.store(out.state_columns + s, new, mask=live)
    tl.store(out.num_accepted_tokens + s, count, mask=live)
    store_move(out.moves, b, old, new, shift, crosses, inside)
    tl.store(out.batch_accepted + b, count, mask=inside)
    tl.store(out.mask + b, live.to(tl.uint8), mask=inside)
    tl.store(out.starts + b, start, mask=inside)
    if program == 0:
        tl.store(out.starts + n.num_reqs_padded, tl.load(x.query_start_loc + n.num_reqs_padded))

    j = tl.arange(0, SLOTS)[None, :]
    wanted = inside[:, None] & (j < n.slots_per_row)
    for g in range(0, n.num_groups):
        entry = x.slot_tables + (g * n.max_num_seqs + s[:, None]) * n.width + tl.maximum(new, 0)[:, None] + j
        slot = tl.load(entry, mask=wanted & live[:, None], other=0)
        tl.store(out.state_slots + (g * n.max_num_seqs + b[:, None]) * n.slots_per_row + j, slot, mask=wanted)


@triton.jit
def mamba_align_step_before_kernel(n, x, out, ROWS: tl.constexpr, SLOTS: tl.constexpr):
    before_rows(tl.program_id(0), x, out, n, ROWS, SLOTS)


@triton.jit
def freeze(computed, column, count, block_size):
    """(state is frozen, column it goes to, tokens to shift by)."""
    running = computed - count + 1
    aligned = computed // block_size * block_size
    return aligned >= running, aligned // block_size - 1, aligned - running


@triton.jit
def mamba_align_step_after_kernel(n, x, out, ROWS: tl.constexpr):
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = b < n.num_reqs_padded
    s = tl.load(x.idx_mapping + b, mask=inside, other=-1)
    live = s >= 0
    column = tl.load(x.state_columns_before + s, mask=live, other=0)
    count = tl.load(x.num_accepted_tokens_before + s, mask=live, other=1)
    computed = tl.load(x.num_computed_tokens + s, mask=live, other=0)
    frozen, to, shift = freeze(computed, column, count, n.block_size)
    tl.store(out.num_accepted_tokens + s, tl.where(frozen & (to == column), 1, count), mask=live)
    store_move(out.moves, b, column, to, shift, live & frozen & ((to != column) | (shift > 0)), inside)


class Tile(NamedTuple):
    """ROWS: of a program before the forward pass. SLOTS: lanes of a row."""

    ROWS: int
    SLOTS: int


def tiling(point: Point, entries: int) -> Tile:
    slots = triton.next_power_of_2(point.next_n)
    return Tile(max(entries // slots, 1), slots)


@variant("mamba_align_step")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch per phase, where the engine takes six before the forward pass and two after sampling."""
    rows, taken = len(x.idx_mapping), arguments(point, x, out)
    if point.phase == "after_sampling":
        return fixed_launch(mamba_align_step_after_kernel, (cdiv(rows, ROWS),), *taken, ROWS=ROWS, num_warps=2)
    tile = tiling(point, TILE)
    grid = (cdiv(rows, tile.ROWS),)
    return fixed_launch(mamba_align_step_before_kernel, grid, *taken, *tile, num_warps=1)
