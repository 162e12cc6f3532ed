"""compute_slot_mappings in Triton: rows share a program, and all programs share the tail.

The engine's kernel gives a row of four tokens a program of its own and the whole tail, up to the capacity of a step, to
one program, which is the longest part of a decode step.

compute_slot_mappings.cu has the versions that were tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.compute_slot_mappings.operator import Inputs, Outputs, rank_of
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import row_tiling
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

#: Rows of a program, and entries of the tail that it clears.
ROWS, TAIL = 4, 256


class Sizes(NamedTuple):
    """tokens_per_row: of a steady decode. cp_size, cp_rank, cp_interleave: ranks of context parallelism, this one, and
    tokens that a rank holds in a row.
    """

    num_reqs_padded: int
    max_num_batched_tokens: int
    tokens_per_row: int
    cp_size: int
    cp_rank: int
    cp_interleave: int


def sizes(point: Point, x: Inputs) -> Sizes:
    context_parallel = point.cp_size, rank_of(point), point.cp_interleave
    return Sizes(len(x.idx_mapping), point.max_num_batched_tokens, point.max_decode_len, *context_parallel)


@triton.jit
def slots_of(
    position,
    inside,
    table,
    width,
    block_size,
    is_sharded,
    RANKS: tl.constexpr,
    RANK: tl.constexpr,
    INTERLEAVE: tl.constexpr,
):
    """int64 slots of int32 positions, -1 where not ``inside``, past the table or another rank's; table: pointers to
    rows of ``width`` columns.
    """
    if RANKS > 1:
        local = position // (INTERLEAVE * RANKS) * INTERLEAVE + position % INTERLEAVE
        inside = inside & (tl.where(is_sharded, position // INTERLEAVE % RANKS, RANK) == RANK)
        position = tl.where(is_sharded, local, position)
    inside = inside & (position // block_size < width)
    block = tl.load(table + position // block_size, mask=inside, other=0)
    return tl.where(inside, (block * block_size + position % block_size).to(tl.int64), -1)


@triton.jit
def map_rows(
    program,
    g,
    strip,
    strips,
    x,
    out,
    n,
    num_computed_tokens,
    RANKS: tl.constexpr,
    RANK: tl.constexpr,
    INTERLEAVE: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    TAIL: tl.constexpr,
):
    """ROWS rows of the batch in group g, and TAIL entries behind the last token. Long rows are shared by ``strips``
    programs, LANES tokens in turn.

    num_computed_tokens: by slot, the position of each row's first token; None: x.positions are read.
    """
    target = out.slot_mappings + g.to(tl.int64) * n.max_num_batched_tokens
    past = tl.load(x.query_start_loc + n.num_reqs_padded) + program * TAIL + tl.arange(0, TAIL)
    b = program * ROWS + tl.arange(0, ROWS)
    inside = b < n.num_reqs_padded
    s = tl.load(x.idx_mapping + b, mask=inside, other=-1)
    start = tl.load(x.query_start_loc + b, mask=inside, other=0)
    query = tl.load(x.query_start_loc + b + 1, mask=inside, other=0) - start
    known = tl.where(tl.load(x.enabled + g) != 0, s, -1) >= 0
    width = tl.load(x.widths + g)
    table = x.tables + tl.load(x.starts + g) + s * width
    block_size, is_sharded = tl.load(x.block_sizes + g), None
    if RANKS > 1:
        is_sharded = tl.load(x.sharded + g) != 0
    if num_computed_tokens is not None:
        computed = tl.load(num_computed_tokens + s, mask=s >= 0, other=0)
    lanes = tl.arange(0, LANES)
    if num_computed_tokens is None:
        # The first tokens if every row has as many, as in a steady decode: with the rows' starts, not behind them.
        guess = tl.where(strip == 0, b[:, None] * n.tokens_per_row + lanes[None, :], n.max_num_batched_tokens)
        guessed = tl.load(x.positions + guess, mask=guess < n.max_num_batched_tokens, other=0).to(tl.int32)
    for first in range(strip * LANES, tl.max(query, 0), strips * LANES):
        j = first + lanes[None, :]
        t = start[:, None] + j
        real = j < query[:, None]
        if num_computed_tokens is not None:
            position = computed[:, None] + j
        else:
            position = tl.load(x.positions + t, mask=real & (t != guess), other=0).to(tl.int32)
            position = tl.where(t == guess, guessed, position)
        inside_row = real & known[:, None]
        slot = slots_of(position, inside_row, table[:, None], width, block_size, is_sharded, RANKS, RANK, INTERLEAVE)
        tl.store(target + t, slot, mask=real)
    # After the rows, whose chain of loads is longer.
    end = tl.where(strip == 0, n.max_num_batched_tokens, 0)
    tl.store(target + past, tl.full((TAIL,), -1, tl.int64), mask=past < end)


@triton.jit
def compute_slot_mappings_kernel(
    n,
    x,
    out,
    RANKS: tl.constexpr,
    RANK: tl.constexpr,
    INTERLEAVE: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    TAIL: tl.constexpr,
):
    program, g, strip, strips = tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    map_rows(program, g, strip, strips, x, out, n, None, RANKS, RANK, INTERLEAVE, ROWS, LANES, TAIL)


@variant("compute_slot_mappings")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch: four rows and a strip of the tail per program and group."""
    lanes, strips = row_tiling(point)
    grid = (max(cdiv(len(x.idx_mapping), ROWS), cdiv(out.slot_mappings.shape[1], TAIL)), point.num_groups, strips)
    context_parallel = {"RANKS": point.cp_size, "RANK": rank_of(point), "INTERLEAVE": point.cp_interleave}
    tile = {"ROWS": ROWS, "LANES": lanes, "TAIL": TAIL}
    arguments = sizes(point, x), bundle(x), bundle(out)
    return fixed_launch(compute_slot_mappings_kernel, grid, *arguments, **context_parallel, **tile, num_warps=2)
