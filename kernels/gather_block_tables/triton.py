"""gather_block_tables in Triton: a program per row, strip of 256 columns and group; idle strips end at once.

gather_block_tables.cu has the versions that were tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.gather_block_tables.operator import (
    Inputs,
    Outputs,
    entries_per_block,
    rows_to_write,
)
from spec_decode_bench.baselines.workloads.integers import strips_of_rows
from spec_decode_bench.baselines.workloads.request_slots import group_widths
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

COLUMNS = 256
#: From how many threads on further programs cost more than they save: 512 on each SM of an H200.
MOST_THREADS = 2**16


class Sizes(NamedTuple):
    num_reqs: int
    max_num_seqs: int


def sizes(point: Point, x: Inputs) -> Sizes:
    return Sizes(len(x.idx_mapping), point.max_num_seqs)


@triton.jit
def null_columns(computed, reach, block_size):
    """Columns below the window; 0 where there is none."""
    return tl.where(reach > 0, tl.maximum(computed - reach, 0) // block_size, 0)


@triton.jit
def gather_row(b, strip, strips, g, x, out, n, COLUMNS: tl.constexpr, ENTRIES: tl.constexpr = 1):
    """Every strips-th strip of a row of group g. ENTRIES: of a block in a row by slot."""
    lanes = tl.arange(0, COLUMNS)
    start, width = tl.load(x.starts + g), tl.load(x.widths + g)
    row = out.block_tables + start + b * width
    if b < n.num_reqs:
        s = tl.load(x.idx_mapping + b)
        owned = tl.load(x.num_blocks + g * n.max_num_seqs + s)
        null = null_columns(tl.load(x.num_computed_tokens + s), tl.load(x.reach + g), tl.load(x.block_sizes + g))
        source_row = x.tables + start + s * width * ENTRIES
        begin = strip * COLUMNS
        if strip == 0:
            # Does not wait for the count. Of the other strips most have nothing to do.
            ids = tl.load(source_row + lanes * ENTRIES, mask=lanes < width, other=0) // ENTRIES
            tl.store(row + lanes, tl.where(lanes >= null, ids, 0), mask=lanes < owned)
            begin = strips * COLUMNS
        for first in range(begin, owned, strips * COLUMNS):
            columns = first + lanes
            ids = tl.load(source_row + columns * ENTRIES, mask=(columns >= null) & (columns < owned), other=0)
            tl.store(row + columns, ids // ENTRIES, mask=columns < owned)
    else:
        for cleared in range(strip * COLUMNS, width.to(tl.int32), strips * COLUMNS):
            tl.store(row + cleared + lanes, tl.zeros((COLUMNS,), tl.int32), mask=cleared + lanes < width)


@triton.jit
def gather_block_tables_kernel(n, x, out, COLUMNS: tl.constexpr, ENTRIES: tl.constexpr):
    gather_row(tl.program_id(0), tl.program_id(1), tl.num_programs(1), tl.program_id(2), x, out, n, COLUMNS, ENTRIES)


def strips_of(point: Point, columns: int, threads: int = 128) -> int:
    """Programs of a row that take ``columns`` at a time. One where each would read the block count over the bus."""
    if point.memory == "uva":
        return 1
    rows = rows_to_write(point) * point.num_groups
    return strips_of_rows(max(group_widths(point)), columns, rows, MOST_THREADS // threads)


@variant("gather_block_tables")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch for all groups: rows x strips x groups."""
    grid = (rows_to_write(point), strips_of(point, COLUMNS), point.num_groups)
    arguments = sizes(point, x), bundle(x), bundle(out)
    entries = entries_per_block(point)
    return fixed_launch(gather_block_tables_kernel, grid, *arguments, COLUMNS=COLUMNS, ENTRIES=entries)
