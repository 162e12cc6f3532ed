"""gather_block_tables as an engine launches it: one program per group and row walks over the columns."""

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl

from spec_decode_bench.baselines.gather_block_tables.operator import Inputs, Outputs, rows_to_write
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.kernels.gather_block_tables.triton import null_columns

CHUNK = 1024


@triton.jit(do_not_specialize=["real", "max_num_seqs"])
def gather_block_tables_rows_kernel(
    idx_mapping,
    source,
    num_computed_tokens,
    starts,
    widths,
    block_sizes,
    reach,
    num_blocks,
    target,
    real,
    max_num_seqs,
    CHUNK: tl.constexpr,
):
    g, b = tl.program_id(0), tl.program_id(1)
    start, width = tl.load(starts + g), tl.load(widths + g)
    row, lanes = target + start + b * width, tl.arange(0, CHUNK)
    if b >= real:
        for cleared in range(0, width, CHUNK):
            tl.store(row + cleared + lanes, tl.zeros((CHUNK,), tl.int32), mask=cleared + lanes < width)
    else:
        s = tl.load(idx_mapping + b)
        owned = tl.load(num_blocks + g * max_num_seqs + s)
        null = null_columns(tl.load(num_computed_tokens + s), tl.load(reach + g), tl.load(block_sizes + g))
        for first in range(0, owned, CHUNK):
            columns = first + lanes
            inside = columns < owned
            ids = tl.load(source + start + s * width + columns, mask=inside & (columns >= null), other=0)
            tl.store(row + columns, ids, mask=inside)


@variant("gather_block_tables")
def unfused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The engine's way: one launch, grid (groups, rows)."""
    grid = (point.num_groups, rows_to_write(point))

    def launch() -> None:
        gather_block_tables_rows_kernel[grid](
            x.idx_mapping,
            x.tables,
            x.num_computed_tokens,
            x.starts,
            x.widths,
            x.block_sizes,
            x.reach,
            x.num_blocks,
            out.block_tables,
            len(x.idx_mapping),
            point.max_num_seqs,
            CHUNK=CHUNK,
        )

    return launch
