"""mla_tile_schedule in CUDA C++: the launch. mla_tile_schedule.cuh explains the kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from baselines.mla_tile_schedule.operator import Inputs, Outputs
from baselines.workloads.integers import reciprocal
from harness.contract import GPU, Point, variant
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("mla_tile_schedule.cu")
#: As in the CUDA source.
THREADS = 256


@variant("mla_tile_schedule", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, one block of 256 threads."""
    return launcher(
        SOURCE,
        "tile_schedule",
        1,
        THREADS,
        x.seq_lens,
        out.tile_scheduler_metadata,
        out.num_splits,
        len(x.seq_lens),
        point.num_sm_parts,
        point.overhead,
        *reciprocal(point.num_sm_parts),
        int(point.layout == "old"),
    )
