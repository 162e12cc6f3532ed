"""chain_step in Triton: one launch before the drafter runs.

The engine walks the table once per pass of the drafter, for long contexts with several programs per row, and each of
them adds up the lengths of all rows in front. Here a program loads a strip of a row once, before it adds the lengths,
and stores it for every pass: row b of pass i starts at that sum + b * i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.chain_step.operator import Inputs, Outputs, longest, passes, with_kv_indices
from spec_decode_bench.baselines.workloads.integers import strips_of_rows
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

#: Entries of a row that a program takes at a time, lengths that it adds at a time, and cells of the mask.
TOKENS, SUMMED, CELLS = 1024, 256, 128
#: Rows are split over strips until the grid has this many programs, several per SM of a large GPU.
TARGET_PROGRAMS = 1056


class Sizes(NamedTuple):
    """passes: with packed slots. capacity: entries of a pass."""

    num_reqs: int
    max_num_seqs: int
    columns: int
    passes: int
    capacity: int


def sizes(point: Point, x: Inputs, out: Outputs) -> Sizes:
    packed = out.kv_indices
    count, capacity = (0, 0) if packed is None else (passes(point), packed.shape[1])
    return Sizes(len(x.seq_lens), point.max_num_seqs, x.req_to_token.shape[1], count, capacity)


@triton.jit
def chain_step_kernel(n, x, out, WIDTH: tl.constexpr, TOKENS: tl.constexpr, SUMMED: tl.constexpr, CELLS: tl.constexpr):
    b, strip, strips = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    length = tl.load(x.seq_lens + b).to(tl.int32)
    row = x.req_to_token + tl.load(x.req_pool_indices + b) * n.columns
    if strip == 0:
        for first in range(0, WIDTH, CELLS):
            j = first + tl.arange(0, CELLS)
            inside, at = j < WIDTH, b.to(tl.int64) * WIDTH + j
            slot = tl.load(row + length + j, mask=inside, other=0).to(tl.int64)
            position, none = (length + j).to(tl.int64), tl.full((CELLS,), -1, tl.int64)
            child = tl.where(j + 1 < WIDTH, j + 1, -1).to(tl.int64)
            tl.store(out.positions + at, position, mask=inside)
            tl.store(out.tree + at, at, mask=inside)
            tl.store(out.tree + n.num_reqs * WIDTH + at, child, mask=inside)
            tl.store(out.tree + 2 * n.num_reqs * WIDTH + at, none, mask=inside)
            tl.store(out.slots + at, slot, mask=inside)
            tl.store(out.draft_slots + at - b, slot, mask=j < WIDTH - 1)
        for first in range(0, WIDTH * WIDTH, CELLS):
            cell = first + tl.arange(0, CELLS)
            target = out.tree_mask + b.to(tl.int64) * (WIDTH * WIDTH) + cell
            tl.store(target, cell % WIDTH <= cell // WIDTH, mask=cell < WIDTH * WIDTH)
        tl.store(out.draft_positions + b, length.to(tl.int64))
        tl.store(out.prefix_lens + b, length)
        tl.store(out.extend_lens + b, WIDTH)
        tl.store(out.start_locs + b, b * WIDTH)
        tl.store(out.post_lens + b, length.to(tl.int64) + WIDTH)
    if out.kv_indices is not None:
        lanes, summed = tl.arange(0, TOKENS), tl.arange(0, SUMMED)
        begin = strip * TOKENS
        if begin < length + n.passes:
            # The first strip before the lengths are added: both wait for memory.
            entries = tl.load(row + begin + lanes, mask=begin + lanes < length + n.passes, other=0)
            total = tl.zeros((SUMMED,), tl.int32)
            for first in range(0, b, SUMMED):
                total += tl.load(x.seq_lens + first + summed, mask=first + summed < b, other=0).to(tl.int32)
            start = tl.sum(total, 0)
            for first in range(begin, length + n.passes, strips * TOKENS):
                if first > begin:
                    entries = tl.load(row + first + lanes, mask=first + lanes < length + n.passes, other=0)
                target = out.kv_indices + start + b + first
                for i in range(n.passes):
                    tl.store(target + lanes, entries, mask=first + lanes < length + i + 1)
                    target += n.capacity + b
            if strip == 0:
                for i in range(n.passes):
                    starts = out.kv_indptr + i * (n.max_num_seqs + 1)
                    tl.store(starts + b + 1, start + length + (b + 1) * (i + 1))
                    if b == 0:
                        tl.store(starts, 0)


@variant("chain_step")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch: a row, or a strip of its packed slots, per program. Not recompiled for another table or batch."""
    rows = point.batch_size
    strips = strips_of_rows(longest(point), TOKENS, rows, TARGET_PROGRAMS) if with_kv_indices(point) else 1
    tile = {"WIDTH": point.next_n, "TOKENS": TOKENS, "SUMMED": SUMMED, "CELLS": CELLS, "num_warps": 4}
    return fixed_launch(chain_step_kernel, (rows, strips), sizes(point, x, out), bundle(x), bundle(out), **tile)
