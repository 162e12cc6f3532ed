"""step_inputs in CUDA C++: the launch of step_inputs.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spec_decode_bench.baselines.step_inputs.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import warps_per_row
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.step_inputs.triton import Sizes, sizes

THREADS = 128

SOURCE = cuda_source(Path(__file__).with_name("step_inputs.cu"), Sizes, Inputs, Outputs, constants={"THREADS": THREADS})


@variant("step_inputs", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, a warp per row."""
    rows, capacity = len(x.idx_mapping), point.max_num_seqs
    grid = (max(cdiv(rows, THREADS // 32), cdiv(capacity - rows, THREADS)), warps_per_row(point))
    return launcher(SOURCE, "step_inputs_kernel", grid, THREADS, sizes(point, x), bundle(x), bundle(out))
