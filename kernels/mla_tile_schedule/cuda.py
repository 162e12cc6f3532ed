"""mla_tile_schedule in CUDA C++: the launch. mla_tile_schedule.cuh explains the kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spec_decode_bench.baselines.mla_tile_schedule.operator import Inputs, Outputs
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.mla_tile_schedule.triton import Sizes, sizes

THREADS = 256


#: Requests and parts of one warp, and those up to which stretched parts are found by doubling.
SIZES = {"batch_size": (128, THREADS), "num_sm_parts": (32, THREADS)}

SOURCE = cuda_source(
    Path(__file__).with_name("mla_tile_schedule.cu"), Sizes, Inputs, Outputs, constants={"THREADS": THREADS}
)


@variant("mla_tile_schedule", requires=GPU, sources=SOURCE, sizes=SIZES)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, one block of 256 threads. Up to 128 requests and 32 parts are scheduled by one warp."""
    kernel = f"mla_tile_schedule_{'few' if len(x.seq_lens) <= THREADS else 'many'}_kernel"
    return launcher(SOURCE, kernel, 1, THREADS, sizes(point, x), bundle(x), bundle(out))
