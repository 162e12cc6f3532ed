"""mamba_state_gather in CUDA C++: one lane per slot, as triton.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spec_decode_bench.baselines.mamba_state_gather.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.mamba_state_gather.triton import Sizes, sizes

THREADS = 128

SOURCE = cuda_source(
    Path(__file__).with_name("mamba_state_gather.cu"), Sizes, Inputs, Outputs, constants={"THREADS": THREADS}
)


@variant("mamba_state_gather", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++."""
    n = sizes(point, x)
    blocks, stride = cdiv(point.batch_size << n.log_lanes, THREADS), x.state_indices.stride(0)
    return launcher(SOURCE, "mamba_state_gather_kernel", blocks, THREADS, n, bundle(x), bundle(out), stride)
