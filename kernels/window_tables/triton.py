"""window_tables in Triton: one launch. A program has one token of a request, or takes padding tokens and tails in turn.

A program knows its request and token from its number, so boundaries and length are loaded at once and no map of tokens
is read back. Where lists are long and tokens are few, programs share a token's list in strips.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.window_tables.operator import Inputs, Outputs, list_capacity, list_width
from spec_decode_bench.baselines.workloads.integers import cdiv, strips_of_rows
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

#: Columns that a program writes at a time, and programs that share lists at most: four per SM of a large GPU.
LANES, PROGRAMS = 128, 528
#: Programs that take padding tokens at most, and elements of the tails of each.
MOST_WORKERS, TAIL = 132, 1024


class Sizes(NamedTuple):
    """longest: tokens of the longest request, as the host knows it. capacity: tokens of the buffers. list_stride: from
    one list to the next.
    """

    batch_size: int
    longest: int
    capacity: int
    window_columns: int
    state_columns: int
    list_width: int
    list_stride: int


def sizes(point: Point, x: Inputs) -> Sizes:
    columns = x.window_table.shape[1], x.c4_table.shape[1]
    lists = list_width(point), list_capacity(point)
    return Sizes(point.batch_size, point.max_decode_len, point.max_num_batched_tokens, *columns, *lists)


def blocks(point: Point, x: Inputs) -> tuple[int, int]:
    """The grid: max_decode_len programs for every request and for every row of workers, and strips of lists."""
    real = x.num_tokens - point.token_padding if point.host_lens == "exact" else 1
    workers = max(min(x.num_tokens - real, MOST_WORKERS), cdiv(point.max_num_batched_tokens - x.num_tokens, TAIL))
    rows = point.batch_size + cdiv(workers, point.max_decode_len)
    programs = rows * point.max_decode_len
    return programs, strips_of_rows(list_width(point), LANES, programs, PROGRAMS)


@triton.jit
def slot_of(row, entry, there, BLOCK: tl.constexpr):
    """-1 where no entry is there."""
    block = tl.load(row + entry // BLOCK, mask=there, other=0)
    return tl.where(there, block * BLOCK + entry % BLOCK, -1)


@triton.jit
def write_token(
    t, b, p, strip, strips, n, x, out, WINDOW: tl.constexpr, WINDOW_BLOCK: tl.constexpr, STATES: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Everything of token t of request b at position p; of its list the columns of the strip."""
    lanes, wide = tl.arange(0, LANES), b.to(tl.int64)
    c128_row = x.c128_table + wide * n.state_columns
    ended = (p + 1) // 128
    if strip == 0:
        has_window = tl.load(x.slot_mappings + t) >= 0
        has_c4 = tl.load(x.slot_mappings + n.capacity + t) >= 0
        has_c128 = tl.load(x.slot_mappings + 2 * n.capacity + t) >= 0
        first = tl.maximum(p - (WINDOW - 1), 0)
        length = tl.where(has_window, p + 1 - first, 0)
        for c in tl.static_range(0, WINDOW, LANES):
            i = c + lanes
            slots = slot_of(x.window_table + wide * n.window_columns, first + i, i < length, WINDOW_BLOCK)
            tl.store(out.swa_indices + t.to(tl.int64) * WINDOW + i, slots, mask=i < WINDOW)
        c4_row = x.c4_table + wide * n.state_columns
        tl.store(out.requests + t, b)
        tl.store(out.is_valid_token + t, has_window.to(tl.uint8))
        tl.store(out.swa_lens + t, length)
        tl.store(out.c4_slots + t, slot_of(c4_row, p // 4, ((p + 1) % 4 == 0) & has_c4, 32 * STATES).to(tl.int64))
        c128 = slot_of(c128_row, p // 128, ((p + 1) % 128 == 0) & has_c128, STATES)
        tl.store(out.c128_slots + t, c128.to(tl.int64))
        tl.store(out.c128_lens + t, tl.where(has_c128, ended, 0))
    for c in range(strip * LANES, n.list_width, strips * LANES):
        i = c + lanes
        slots = slot_of(c128_row, i, i < ended, STATES)
        tl.store(out.c128_indices + t.to(tl.int64) * n.list_stride + i, slots, mask=i < n.list_width)


@triton.jit
def window_tables_kernel(
    n, x, out, WINDOW: tl.constexpr, WINDOW_BLOCK: tl.constexpr, STATES: tl.constexpr, LANES: tl.constexpr
):
    strip, strips = tl.program_id(1), tl.num_programs(1)
    b, j = tl.program_id(0) // n.longest, tl.program_id(0) % n.longest
    if b < n.batch_size:
        start, end, length = tl.load(x.query_start_loc + b), tl.load(x.query_start_loc + b + 1), tl.load(x.seq_lens + b)
        if j < end - start:
            p = length - (end - start) + j
            write_token(start + j, b, p, strip, strips, n, x, out, WINDOW, WINDOW_BLOCK, STATES, LANES)
    else:
        # Padding tokens: of request 0, at position 0, without slots.
        worker, workers = tl.program_id(0) - n.batch_size * n.longest, tl.num_programs(0) - n.batch_size * n.longest
        actual = tl.load(x.query_start_loc + n.batch_size)
        for k in range(worker, x.num_tokens - actual, workers):
            write_token(actual + k, b * 0, b * 0, strip, strips, n, x, out, WINDOW, WINDOW_BLOCK, STATES, LANES)
        if strip == 0:
            for first in range(x.num_tokens + worker * LANES, n.capacity, workers * LANES):
                t = first + tl.arange(0, LANES)
                tl.store(out.swa_lens + t, tl.zeros((LANES,), tl.int32), mask=t < n.capacity)
                tl.store(out.c4_slots + t, tl.full((LANES,), -1, tl.int64), mask=t < n.capacity)
                tl.store(out.c128_slots + t, tl.full((LANES,), -1, tl.int64), mask=t < n.capacity)


@variant("window_tables")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch: a program per token writes its window, slots and list, further ones padding tokens and tails."""
    constants = {"WINDOW": point.window_size, "WINDOW_BLOCK": point.window_block, "STATES": point.c128_block}
    arguments = sizes(point, x), bundle(x), bundle(out)
    return fixed_launch(window_tables_kernel, blocks(point, x), *arguments, LANES=LANES, **constants)
