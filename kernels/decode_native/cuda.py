"""decode_native in CUDA C++: the launch of decode_native.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spec_decode_bench.baselines.decode_native.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.dcp_lengths.cuda import local
from spec_decode_bench.kernels.decode_native.triton import Sizes, sizes

SOURCE = cuda_source(Path(__file__).with_name("decode_native.cu"), Sizes, Inputs, Outputs)
THREADS = 128


@variant("decode_native", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++."""
    blocks = cdiv(len(x.seq_lens) * point.max_decode_len, THREADS)
    arguments = sizes(point, x), bundle(x), bundle(out)
    if point.cp_size > 1:
        return launcher(SOURCE, "decode_native_ranks_kernel", blocks, THREADS, *arguments, local(point))
    return launcher(SOURCE, "decode_native_kernel", blocks, THREADS, *arguments)
