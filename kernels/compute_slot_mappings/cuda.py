"""compute_slot_mappings in CUDA C++: the launch of compute_slot_mappings.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from baselines.compute_slot_mappings.operator import Inputs, Outputs, rank_of
from baselines.workloads.integers import cdiv
from baselines.workloads.request_slots import longest_row
from harness.contract import GPU, Point, variant
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("compute_slot_mappings.cu")
#: As in the CUDA source.
THREADS, MOST_ROWS = 128, 1024
#: Tokens of a row that one warp takes in larger batches.
TOKENS = 64


@variant("compute_slot_mappings", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, a thread per token and group; a warp per row and group in batches of more than 1024."""
    rows, capacity = len(x.idx), out.slots.shape[1]
    by_token = rows <= MOST_ROWS
    by_row = (max(cdiv(rows, THREADS // 32), cdiv(capacity, 4 * THREADS)), point.num_groups, cdiv(longest_row(point), TOKENS))
    return launcher(
        SOURCE,
        ("tokens" if by_token else "rows") + ("_one_rank" if point.cp_size == 1 else "_ranks"),
        (cdiv(capacity, THREADS), point.num_groups) if by_token else by_row,
        THREADS,
        x.idx,
        x.query_start_loc,
        x.positions,
        x.tables,
        x.starts,
        x.widths,
        x.block_sizes,
        x.enabled,
        x.sharded,
        out.slots,
        rows,
        1 << (rows - 1).bit_length() >> 1,
        capacity,
        point.cp_size,
        rank_of(point),
        point.cp_interleave,
    )
