"""draft_budget in Triton: one launch of one program, which sorts nothing.

The bits of p, as p >= 0, are integers in the same order. The least admitted p is found two bits at a time: each of 15
turns counts the drafts at or above three candidates. Ties at it are taken in order, which a prefix sum over the rows
decides; as they fill up in order, the prefix sum of what is admitted is that of what lies above plus as many ties as
there is room for, so one pass over the rows makes counts and boundaries.

draft_budget.cu does the same with a thread per row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.draft_budget.operator import (
    LEAST_SURVIVAL,
    Inputs,
    Outputs,
    longest_padding,
    num_drafts,
    num_rows,
)
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

#: Drafts held in registers; larger batches are read anew in each turn, so many at a time.
TILE = 8192
#: Entries of the tail that are written at a time.
TAIL = 256
#: Turns of two bits: 1.0 has 30.
TURNS = 15
#: Bits of a count, of which three lie in an int64, and its largest value.
COUNT_BITS, MOST = tl.constexpr(21), tl.constexpr(2**21 - 1)
LEAST = tl.constexpr(LEAST_SURVIVAL)


class Sizes(NamedTuple):
    """num_rows: with drafts to choose from. batch_size: with padding rows. k: drafts per row. turns: none where all
    drafts or none are admitted. least: the bits of the least admitted p, as far as the host knows. longest: tokens of a
    row at most.
    """

    num_rows: int
    batch_size: int
    max_num_seqs: int
    k: int
    turns: int
    least: int
    longest: int


def sizes(point: Point, x: Inputs) -> Sizes:
    chooses = 0 < x.draft_budget < num_drafts(point)
    least = 0 if x.draft_budget else 2**30
    batch = num_rows(point), point.batch_size, point.max_num_seqs, point.next_n - 1
    return Sizes(*batch, TURNS if chooses else 0, least, longest_padding(point))


@triton.jit
def survivals(b, lanes, x, n):
    """The bits of p of rows [ROWS, LANES]; -1 where there is no draft that may be admitted."""
    inside = b < n.num_rows
    if x.idx_mapping is not None:
        row, drafts = tl.load(x.idx_mapping + b, mask=inside, other=0), tl.load(x.num_drafts + b, mask=inside, other=0)
    else:
        row, drafts = b.to(tl.int64), tl.where(inside, n.k, 0)
    mask = inside[:, None] & (lanes < n.k)[None, :]
    confidence = tl.load(x.confidence + row[:, None] * n.k + lanes[None, :], mask=mask, other=1.0)
    survival = tl.cumprod(confidence, 1)
    there = lanes[None, :] < drafts[:, None]
    if x.idx_mapping is None:
        there = there & (survival >= LEAST)
    return tl.where(there, survival.to(tl.int32, bitcast=True), -1)


@triton.jit
def at_least(bits, least, step):
    """How many are at or above least + step, + 2 step, + 3 step; packed."""
    first, second, third = least + step, least + 2 * step, least + 3 * step
    counts = (bits >= first).to(tl.int64) + ((bits >= second).to(tl.int64) << COUNT_BITS)
    return tl.sum(counts + ((bits >= third).to(tl.int64) << 2 * COUNT_BITS))


@triton.jit
def pad(rest, x, out, n, TAIL: tl.constexpr):
    """Lengths and ends of SGLang's padding rows, which share the rest of the tokens."""
    count = n.batch_size - n.num_rows
    shared, longer = rest // count, rest % count
    before, short = x.num_tokens - rest, tl.minimum(shared, n.longest)
    long = tl.minimum(shared + 1, n.longest)
    for first in range(0, count, TAIL):
        j = first + tl.arange(0, TAIL)
        inside = j < count
        tl.store(out.verify_lens + n.num_rows + j, tl.where(j < longer, long, short), mask=inside)
        end = before + (j + 1) * short + tl.minimum(j + 1, longer) * (long - short)
        tl.store(out.query_start_loc + n.num_rows + j + 1, end, mask=inside)


@triton.jit
def draft_budget_kernel(n, x, out, ONE: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, TAIL: tl.constexpr):
    """ONE: all rows are in one tile."""
    SCHEDULED: tl.constexpr = x.idx_mapping is not None
    lanes, tile = tl.arange(0, LANES), tl.arange(0, ROWS)
    bits = survivals(tile, lanes, x, n)
    least = n.least
    for turn in range(n.turns):
        step = 1 << 28 - 2 * turn
        counts = at_least(bits, least, step)
        if not ONE:
            for first in range(ROWS, n.num_rows, ROWS):
                counts += at_least(survivals(first + tile, lanes, x, n), least, step)
        enough = ((counts & MOST) >= x.draft_budget).to(tl.int32) + (
            ((counts >> COUNT_BITS) & MOST) >= x.draft_budget
        ).to(tl.int32)
        least += step * (enough + ((counts >> 2 * COUNT_BITS) >= x.draft_budget).to(tl.int32))

    # Room for ties; by SGLang's rule all of the first drafts have it, and the rest of it is for ties of draft ``last``.
    above = tl.sum((bits > least).to(tl.int32))
    ties = tl.sum((bits == least).to(tl.int32), 0)
    if not ONE:
        for first in range(ROWS, n.num_rows, ROWS):
            more = survivals(first + tile, lanes, x, n)
            above += tl.sum((more > least).to(tl.int32))
            ties += tl.sum((more == least).to(tl.int32), 0)
    room = x.draft_budget - above
    if not SCHEDULED:
        through = tl.cumsum(ties, 0)
        last = tl.sum((through <= room).to(tl.int32))
        room -= tl.sum(tl.where(lanes < last, ties, 0))

    admitted_before, ties_before, others_before = 0, 0, 0
    for first in range(0, n.num_rows, ROWS):
        b = first + tile
        inside = b < n.num_rows
        if not ONE:
            bits = survivals(b, lanes, x, n)
        sure = tl.sum((bits > least).to(tl.int32), 1)
        tied = (bits == least).to(tl.int32)
        if SCHEDULED:
            waiting = tl.sum(tied, 1)
            others = tl.load(x.non_draft_tokens + b, mask=inside, other=0)
        else:
            sure += tl.sum(tl.where(lanes[None, :] < last, tied, 0), 1)
            waiting = tl.sum(tl.where(lanes[None, :] == last, tied, 0), 1)
            others = inside.to(tl.int32)
        waiting_through = ties_before + tl.cumsum(waiting, 0)
        admitted = sure + tl.minimum(tl.maximum(room - waiting_through + waiting, 0), waiting)
        drafts = admitted_before + tl.cumsum(sure, 0) + tl.minimum(waiting_through, room)
        end = drafts + others_before + tl.cumsum(others, 0)
        if SCHEDULED:
            tl.store(out.num_drafts + b, admitted, mask=inside)
            tl.store(out.cu_num_logits + b + 1, drafts + b + 1, mask=inside)
        else:
            length = others + admitted
            takes = (b == n.batch_size - 1) & inside  # the last row, without padding rows
            padded = tl.minimum(x.num_tokens - end + length, n.longest)
            end = tl.where(takes, end - length + padded, end)
            tl.store(out.verify_lens + b, tl.where(takes, padded, length), mask=inside)
        tl.store(out.query_start_loc + b + 1, end, mask=inside)
        admitted_before += tl.sum(sure)
        ties_before += tl.sum(waiting)
        others_before += tl.sum(others)

    tl.store(out.query_start_loc, 0)
    if SCHEDULED:
        tl.store(out.cu_num_logits, 0)
        for first in range(n.num_rows, n.max_num_seqs, TAIL):
            row = first + tl.arange(0, TAIL)
            tl.store(out.query_start_loc + row + 1, x.num_tokens, mask=row < n.max_num_seqs)
    elif n.num_rows < n.batch_size:
        used = admitted_before + tl.minimum(ties_before, room) + others_before
        pad(x.num_tokens - used, x, out, n, TAIL)


@variant(
    "draft_budget",
    skip=lambda p: "its counts have 21 bits" if num_drafts(p) > MOST.value else None,
    sizes={"batch_size": (1024,)},
)
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch of one program: the least admitted p by its bits, then one pass over the rows."""
    lanes = triton.next_power_of_2(max(point.next_n - 1, 1))
    rows = max(min(triton.next_power_of_2(num_rows(point)), TILE // lanes), 1)
    tile = {"ONE": rows >= num_rows(point), "ROWS": rows, "LANES": lanes, "TAIL": TAIL}
    warps = 4 if rows * lanes <= 2048 else 8
    return fixed_launch(draft_budget_kernel, (1,), sizes(point, x), bundle(x), bundle(out), **tile, num_warps=warps)
