"""gdn_split in Triton: one launch, no sort.

A program takes ROWS requests and counts the speculative ones before them, and their tokens, from the inputs again: a
batch has few requests, and a load in sequence costs less than a second launch. A request then writes one row of both
kinds: its own, and one of the rows behind the last request of the other kind, of which there are just as many. Several
lanes write its tokens; where rows are long, programs share them in strips, as in token_requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.gdn_split.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv, strips_of_rows, tile
from spec_decode_bench.baselines.workloads.request_slots import longest_row
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

#: Tokens that a program writes at a time, programs that share long rows at most (four per SM of a large GPU), and
#: requests before its own that it counts at a time.
TOKENS, PROGRAMS, COUNTED = 256, 528, 512


class Sizes(NamedTuple):
    """stride: from one row of the table to the next."""

    batch_size: int
    next_n: int
    stride: int


@triton.jit
def kinds(b, inside, x):
    """(start, tokens, whether it is speculative) of requests."""
    drafts = tl.load(x.num_draft_tokens + b, mask=inside, other=-1)
    start = tl.load(x.query_start_loc + b, mask=inside, other=0)
    return start, tl.load(x.query_start_loc + b + 1, mask=inside, other=0) - start, drafts >= 0


@triton.jit
def store_rows(b, inside, spec, before, start, tokens, tokens_before, n, x, out, SLOTS: tl.constexpr):
    """Rows of both kinds. before, tokens_before: speculative requests before it, and their tokens."""
    count, total = x.num_spec_requests, x.num_spec_tokens
    of_spec = tl.where(spec, before, count + b - before)
    of_plain = tl.where(spec, n.batch_size - count + before, b - before)
    accepted = tl.load(x.num_accepted_tokens + b, mask=spec, other=1)
    seq_lens = tl.load(x.seq_lens + b, mask=inside & ~spec, other=0)
    j = tl.arange(0, SLOTS)[None, :]
    entry = x.block_table + b.to(tl.int64)[:, None] * n.stride + j
    slots = tl.load(entry, mask=spec[:, None] & (j < n.next_n), other=0)
    slot = tl.load(x.block_table + b.to(tl.int64) * n.stride, mask=inside & ~spec, other=0)
    tl.store(out.spec_mask + b, spec.to(tl.uint8), mask=inside)
    tl.store(out.spec_accepted + of_spec, accepted, mask=inside)
    tl.store(out.spec_query_start_loc + of_spec + 1, tl.where(spec, tokens_before + tokens, total), mask=inside)
    tl.store(out.spec_state_slots + of_spec[:, None] * n.next_n + j, slots, mask=inside[:, None] & (j < n.next_n))
    tl.store(out.plain_state_slots + of_plain, slot, mask=inside)
    tl.store(out.has_initial_state + of_plain, (seq_lens > tokens).to(tl.uint8), mask=inside)
    end = tl.where(spec, x.num_tokens - total, start - tokens_before + tokens)
    tl.store(out.plain_query_start_loc + of_plain + 1, end, mask=inside)


@triton.jit
def gdn_split_kernel(
    n, x, out, ROWS: tl.constexpr, LANES: tl.constexpr, SLOTS: tl.constexpr, COUNTED: tl.constexpr
):  # fmt: skip
    program, strip, strips = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    first = program * ROWS
    b = first + tl.arange(0, ROWS)
    inside = b < n.batch_size
    start, tokens, spec = kinds(b, inside, x)
    counts, sums = tl.zeros((COUNTED,), tl.int32), tl.zeros((COUNTED,), tl.int32)
    for earlier in range(0, first, COUNTED):
        other = earlier + tl.arange(0, COUNTED)
        _, lens, counted = kinds(other, other < first, x)
        counts += counted.to(tl.int32)
        sums += tl.where(counted, lens, 0)
    one, own = spec.to(tl.int32), tl.where(spec, tokens, 0)
    before, tokens_before = tl.sum(counts) + tl.cumsum(one, 0) - one, tl.sum(sums) + tl.cumsum(own, 0) - own
    if strip == 0:
        store_rows(b, inside, spec, before, start, tokens, tokens_before, n, x, out, SLOTS)
        if program == 0:
            tl.store(out.spec_query_start_loc, 0)
            tl.store(out.plain_query_start_loc, 0)

    place = tl.where(spec, tokens_before, start - tokens_before)[:, None]
    for k in range(strip * LANES, tl.max(tokens), strips * LANES):
        j = k + tl.arange(0, LANES)[None, :]
        token, there = start[:, None] + j, j < tokens[:, None]
        tl.store(out.spec_tokens + place + j, token, mask=there & spec[:, None])
        tl.store(out.plain_tokens + place + j, token, mask=there & ~spec[:, None])


@variant("gdn_split")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch: a program counts the requests before its own, then writes rows and tokens."""
    lanes = tile(min(longest_row(point), 64), (4, 16, 64))
    rows = TOKENS // lanes
    programs = cdiv(point.batch_size, rows)
    grid = programs, strips_of_rows(longest_row(point), lanes, programs, PROGRAMS)
    n = Sizes(point.batch_size, point.next_n, x.block_table.stride(0))
    tiling = {"ROWS": rows, "LANES": lanes, "SLOTS": triton.next_power_of_2(point.next_n), "COUNTED": COUNTED}
    return fixed_launch(gdn_split_kernel, grid, n, bundle(x), bundle(out), **tiling)
