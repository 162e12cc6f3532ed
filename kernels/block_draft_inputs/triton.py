"""block_draft_inputs in Triton: one launch for all groups; rows share a program, and all programs share the tails.

The engine's kernel gives a row of a few tokens a program of its own, and all tails, up to the capacity of a step, to
the last of them, once per group.

block_draft_inputs.cu has the versions that were tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.block_draft_inputs.operator import Inputs, Outputs, query_tokens
from spec_decode_bench.baselines.compute_slot_mappings.operator import rank_of
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import row_tiling
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

#: Rows of a program, and entries of each tail that it clears.
ROWS, TAIL = 4, 256


class Sizes(NamedTuple):
    """k: drafts per request. query: its tokens in the drafter's pass. tokens_per_row: of a steady decode. cp_size,
    cp_rank, cp_interleave: ranks of context parallelism, this one, and tokens that a rank holds in a row.
    """

    num_reqs: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    k: int
    query: int
    tokens_per_row: int
    cp_size: int
    cp_rank: int
    cp_interleave: int


def sizes(point: Point) -> Sizes:
    return Sizes(
        point.batch_size,
        point.max_num_seqs,
        point.max_num_batched_tokens,
        point.max_model_len,
        point.next_n - 1,
        query_tokens(point),
        point.max_decode_len,
        point.cp_size,
        rank_of(point),
        point.cp_interleave,
    )


def longest_tail(point: Point) -> int:
    """Entries behind the batch: tokens, boundaries or drafts."""
    idle = point.max_num_seqs - point.batch_size
    tokens = point.max_num_batched_tokens - point.batch_size * query_tokens(point)
    return max(tokens, idle + 1, idle * (point.next_n - 1))


@triton.jit
def slots_of(
    position, inside, table, width, block_size, RANKS: tl.constexpr, RANK: tl.constexpr, INTERLEAVE: tl.constexpr
):
    """int64 slots of int64 positions below 2^32; -1 where not ``inside``, past the table, in the null block or another
    rank's. table: pointers to rows of ``width`` columns.
    """
    per_column = (block_size * RANKS).to(tl.uint32)
    t = position.to(tl.uint32)
    column, own = (t // per_column).to(tl.int64), (t % per_column).to(tl.int64)
    inside = inside & (column < width)
    if RANKS > 1:
        inside = inside & (own // INTERLEAVE % RANKS == RANK)
        own = own // (INTERLEAVE * RANKS) * INTERLEAVE + own % INTERLEAVE
    block = tl.load(table + column, mask=inside, other=0).to(tl.int64)
    return tl.where(block != 0, block * block_size + own, -1)


@triton.jit
def clear_tails(program, first_group, target, out, n, TAIL: tl.constexpr):
    """TAIL entries behind the batch: slots of the group, and in the first one what all have once."""
    i = program * TAIL + tl.arange(0, TAIL)
    token = n.num_reqs * n.query + i
    behind = token < n.max_num_batched_tokens
    tl.store(target + token, -1, mask=behind)
    if first_group:
        tl.store(out.input_ids + token, 0, mask=behind)
        tl.store(out.positions + token, 0, mask=behind)
        tl.store(out.is_padding + token, 1, mask=behind)
        row = n.num_reqs + i
        tl.store(out.query_start_loc + row, n.num_reqs * n.query, row <= n.max_num_seqs)
        tl.store(out.seq_lens + row, 0, mask=row < n.max_num_seqs)
        draft = n.num_reqs * n.k + i
        unused = draft < n.max_num_seqs * n.k
        tl.store(out.sample_indices + draft, 0, mask=unused)
        tl.store(out.sample_pos + draft, 0, mask=unused)
        tl.store(out.sample_idx_mapping + draft, -1, mask=unused)


@triton.jit
def block_draft_inputs_kernel(
    n,
    x,
    out,
    RANKS: tl.constexpr,
    RANK: tl.constexpr,
    INTERLEAVE: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
    TAIL: tl.constexpr,
):
    program, g, strip, strips = tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    b, lanes = program * ROWS + tl.arange(0, ROWS), tl.arange(0, LANES)[None, :]
    inside = b < n.num_reqs
    start = tl.load(x.query_start_loc + b, mask=inside, other=0)
    tokens = tl.load(x.query_start_loc + b + 1, mask=inside, other=0) - start
    kept = tokens - tl.load(x.num_rejected + b, mask=inside, other=0)
    width, block_size = tl.load(x.widths + g), tl.load(x.block_sizes + g)
    table = x.block_tables + tl.load(x.table_starts + g) + b[:, None] * width
    s = tl.load(x.idx_mapping + b, mask=inside, other=0)
    sampled = tl.load(x.num_sampled + b, mask=inside, other=0)
    # The first tokens if every row has as many, as in a steady decode: with the rows' starts, not behind them.
    guess = tl.where(inside[:, None], b[:, None] * n.tokens_per_row + lanes, n.max_num_batched_tokens)
    guessed = tl.load(x.target_positions + guess, mask=guess < n.max_num_batched_tokens, other=0)
    target = out.slot_mappings + g.to(tl.int64) * n.max_num_batched_tokens
    target_context = out.context_slot_mappings + g.to(tl.int64) * n.max_num_batched_tokens

    if strip == 0:
        at = start + kept - 1
        in_sight = guess == at[:, None]
        is_guessed = tl.max(in_sight.to(tl.int32), 1) > 0
        last = tl.load(x.target_positions + at, mask=inside & (is_guessed == 0), other=0)
        last = tl.where(is_guessed, tl.sum(tl.where(in_sight, guessed, 0), 1), last)
        j = tl.arange(0, BLOCK)[None, :]
        i = b[:, None] * n.query + j
        drafted = inside[:, None] & (j < n.query)
        ahead = last[:, None] + 1 + j
        slot = slots_of(ahead, drafted, table, width, block_size, RANKS, RANK, INTERLEAVE)
        tl.store(target + i, slot, mask=drafted)
        if g == 0:
            newest = tl.load(x.last_sampled_tokens + s, mask=inside, other=0).to(tl.int32)
            newest = tl.where(sampled > 0, newest, tl.load(x.next_prefill_tokens + s, mask=inside, other=0))
            temperature = tl.load(x.temperature + s, mask=inside, other=0)
            seed = tl.load(x.seeds + s, mask=inside, other=0)
            tl.store(out.input_ids + i, tl.where(j == 0, newest[:, None], x.mask_token_id), mask=drafted)
            tl.store(out.positions + i, tl.minimum(ahead, n.max_model_len - 1), mask=drafted)
            tl.store(out.is_padding + i, 0, mask=drafted)
            is_draft = inside[:, None] & (j < n.k)
            d = b[:, None] * n.k + j
            tl.store(out.sample_indices + d, (i + n.query - n.k).to(tl.int64), mask=is_draft)
            tl.store(out.sample_pos + d, ahead + 1, mask=is_draft)
            tl.store(out.sample_idx_mapping + d, s[:, None], mask=is_draft)
            tl.store(out.query_start_loc + b, b * n.query, mask=inside)
            length = tl.minimum(last + 1 + n.query, n.max_model_len)
            tl.store(out.seq_lens + b, length.to(tl.int32), mask=inside)
            tl.store(out.temperature + s, temperature, mask=inside)
            tl.store(out.seeds + s, seed, mask=inside)

    for first in range(strip * LANES, tl.max(tokens, 0), strips * LANES):
        j = first + lanes
        t = start[:, None] + j
        real, is_kept = j < tokens[:, None], j < kept[:, None]
        position = tl.load(x.target_positions + t, mask=is_kept & (t != guess), other=0)
        position = tl.where(is_kept & (t == guess), guessed, position)
        slot = slots_of(position, is_kept, table, width, block_size, RANKS, RANK, INTERLEAVE)
        tl.store(target_context + t, slot, mask=real)
        if g == 0:
            tl.store(out.context_positions + t, position, mask=real)

    # After the rows, whose chain of loads is longer.
    if strip == 0:
        clear_tails(program, g == 0, target, out, n, TAIL)


@variant("block_draft_inputs")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch: four rows and a strip of the tails per program and group."""
    lanes, strips = row_tiling(point)
    grid = (max(cdiv(point.batch_size, ROWS), cdiv(longest_tail(point), TAIL)), point.num_groups, strips)
    context_parallel = {"RANKS": point.cp_size, "RANK": rank_of(point), "INTERLEAVE": point.cp_interleave}
    tile = {"ROWS": ROWS, "LANES": lanes, "BLOCK": triton.next_power_of_2(query_tokens(point)), "TAIL": TAIL}
    return fixed_launch(
        block_draft_inputs_kernel, grid, sizes(point), bundle(x), bundle(out), **context_parallel, **tile, num_warps=2
    )
