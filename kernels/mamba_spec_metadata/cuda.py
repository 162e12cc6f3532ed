"""mamba_spec_metadata in CUDA C++: as triton.py, with the division by the block size as a multiplication."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spec_decode_bench.baselines.mamba_spec_metadata.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.mamba_spec_metadata.triton import Sizes, sizes

THREADS = 128

SOURCE = cuda_source(
    Path(__file__).with_name("mamba_spec_metadata.cu"), Sizes, Inputs, Outputs, constants={"THREADS": THREADS}
)


@variant("mamba_spec_metadata", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++; the division by the block size is a multiplication."""
    n = sizes(point, x)
    blocks, stride = cdiv(point.batch_size << n.log_lanes, THREADS), x.block_table.stride(0)
    kernel = f"mamba_spec_metadata_{'' if point.cache_mode == 'all' else 'window_'}kernel"
    return launcher(SOURCE, kernel, blocks, THREADS, n, bundle(x), bundle(out), stride)
