"""compute_slot_mappings in CUDA C++: the launch of compute_slot_mappings.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from baselines.compute_slot_mappings.operator import Inputs, Outputs, rank_of
from baselines.workloads.integers import cdiv
from baselines.workloads.request_slots import warps_per_row
from harness.contract import GPU, Point, variant
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("compute_slot_mappings.cu")
THREADS = 128


@variant("compute_slot_mappings", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, a warp per row and group."""
    rows, capacity, strips = len(x.idx), out.slots.shape[1], warps_per_row(point)
    return launcher(
        SOURCE,
        "map_one_rank" if point.cp_size == 1 else "map_ranks",
        (max(cdiv(rows, THREADS // 32), cdiv(capacity, 4 * THREADS)), point.num_groups, strips),
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
        capacity,
        point.max_decode_len,
        point.cp_size,
        rank_of(point),
        point.cp_interleave,
    )
