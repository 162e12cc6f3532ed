"""post_update in CUDA C++: the launch of post_update.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spec_decode_bench.baselines.post_update.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.post_update.triton import Sizes, sizes

THREADS = 128

SOURCE = cuda_source(Path(__file__).with_name("post_update.cu"), Sizes, Inputs, Outputs, constants={"THREADS": THREADS})


@variant("post_update", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, a warp per row."""
    blocks = cdiv(len(x.idx_mapping), THREADS // 32)
    return launcher(SOURCE, "post_update_kernel", blocks, THREADS, sizes(point, x), bundle(x), bundle(out))
