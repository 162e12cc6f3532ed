"""mamba_align_step in CUDA C++: the launches of mamba_align_step.cu, one per phase."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from baselines.mamba_align_step.operator import Inputs, Outputs, table_columns
from baselines.workloads.integers import cdiv
from harness.contract import GPU, Point, variant
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("mamba_align_step.cu")
THREADS = 128
#: Threads of a row before the forward pass.
LANES = 8


@variant("mamba_align_step", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, eight threads per row before the forward pass and one after sampling."""
    rows = len(x.idx)
    if point.phase == "after_sampling":
        return launcher(
            SOURCE,
            "after_sampling",
            cdiv(rows, THREADS),
            THREADS,
            x.idx,
            x.num_computed,
            x.columns_before,
            x.accepted_before,
            out.accepted,
            out.moves,
            rows,
            point.mamba_block_size,
        )
    return launcher(
        SOURCE,
        "before_forward",
        cdiv(rows, THREADS // LANES),
        THREADS,
        x.idx,
        x.num_computed,
        x.columns_before,
        x.accepted_before,
        x.query_start_loc,
        x.slot_tables,
        out.accepted,
        out.moves,
        out.columns,
        out.source_columns,
        out.source_offsets,
        out.batch_accepted,
        out.state_slots,
        out.mask,
        out.starts,
        rows,
        point.max_num_seqs,
        table_columns(point),
        point.next_n,
        point.num_groups,
        point.mamba_block_size,
    )
