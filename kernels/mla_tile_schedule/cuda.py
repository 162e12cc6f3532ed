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


#: Requests and parts of one warp, and those up to which stretched parts are found by doubling.
SIZES = {"batch_size": (128, THREADS), "num_sm_parts": (32, THREADS)}


@variant("mla_tile_schedule", requires=GPU, sources=SOURCE, sizes=SIZES)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, one block of 256 threads. Up to 128 requests and 32 parts are scheduled by one warp."""
    return launcher(
        SOURCE,
        "schedule_few" if len(x.seq_lens) <= THREADS else "schedule_many",
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
