"""gather_block_tables of vLLM 0.33: its kernel, and the method of BlockTables that launches it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from spec_decode_bench.baselines.gather_block_tables.operator import Inputs, Outputs, reaches, rows_to_write
from spec_decode_bench.baselines.workloads.request_slots import MAX_GRID_Y, group_tables
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.upstream._vllm import ALIGNED, BLOCK_TABLE, LOAD_PTR, Definitions, addresses, load_ptr, needs

CODE = Definitions(
    BLOCK_TABLE,
    "_gather_block_tables_kernel",
    "BlockTables.gather_block_tables",
    given=load_ptr,
)
NEEDS = needs(CODE, LOAD_PTR)
LIMITS = {"*, unaligned buffers": ALIGNED}
#: Columns that a program copies at a time, as vLLM launches it.
BLOCK_SIZE = 1024


def _skip(point: Point) -> str | None:
    if point.entries == "token":
        return "vLLM's tables have an entry per block"
    return f"its grid has at most {MAX_GRID_Y:,} rows" if rows_to_write(point) > MAX_GRID_Y else None


@variant("gather_block_tables", requires=NEEDS, skip=_skip, known_failures=LIMITS)
def vllm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's kernel."""
    kernel, grid = CODE()._gather_block_tables_kernel, (point.num_groups, rows_to_write(point))
    sources, targets = (addresses(group_tables(point, flat)) for flat in (x.tables, out.block_tables))
    counts, rows, masked = x.num_blocks, len(x.idx_mapping), any(reaches(point))

    def launch() -> None:
        kernel[grid](
            x.idx_mapping,
            sources,
            targets,
            x.widths,
            counts,
            counts.stride(0),
            rows,
            x.num_computed_tokens,
            x.reach,
            x.block_sizes,
            MASK_SLIDING_WINDOW=masked,
            BLOCK_SIZE=BLOCK_SIZE,
        )

    return launch


@variant("gather_block_tables", requires=NEEDS, skip=_skip, known_failures=LIMITS)
def vllm_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's BlockTables.gather_block_tables, as the model runner calls it."""
    gather, targets = CODE().gather_block_tables, group_tables(point, out.block_tables)
    tables = SimpleNamespace(
        num_kv_cache_groups=point.num_groups,
        has_sliding_window_groups=any(reaches(point)),
        sliding_window_reach=x.reach,
        input_block_tables=targets,
        input_block_table_ptrs=addresses(targets),
        block_table_ptrs=addresses(group_tables(point, x.tables)),
        block_table_strides=x.widths,
        block_sizes_tensor=x.block_sizes,
        num_blocks=SimpleNamespace(gpu=x.num_blocks),
    )

    def launch() -> None:
        tables._num_dirty_rows = point.dirty
        gather(tables, x.idx_mapping, point.batch_size, num_computed_tokens=x.num_computed_tokens)

    return launch
