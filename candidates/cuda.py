"""Candidates in CUDA C++ of w/kernels: python bench.py CONFIG --variants candidates/cuda.py"""

from pathlib import Path

from baselines.workloads.integers import reciprocal
from harness.contract import GPU, variant
from harness.cuda import launcher

HERE = Path(__file__).parent


@variant("mla_tile_schedule", requires=GPU, sources="tile.cu")
def cuda_new(point, x, out):
    """One warp for up to 128 requests and 32 parts; doubling where many parts are stretched."""
    return launcher(
        HERE / "tile.cu",
        "tile_schedule",
        1,
        256,
        x.seq_lens,
        out.tile_scheduler_metadata,
        out.num_splits,
        len(x.seq_lens),
        point.num_sm_parts,
        point.overhead,
        *reciprocal(point.num_sm_parts),
        int(point.layout == "old"),
    )
