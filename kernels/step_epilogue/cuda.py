"""step_epilogue in CUDA C++: the launch of step_epilogue.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spec_decode_bench.baselines.step_epilogue.operator import Inputs, Outputs, with_states
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import num_real, warps_per_row
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import launcher
from spec_decode_bench.kernels.step_epilogue.triton import INPUTS, OUTPUTS, sizes

SOURCE = Path(__file__).with_name("step_epilogue.cu")
THREADS = 128


@variant("step_epilogue", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, a warp per row."""
    blocks = max(cdiv(point.batch_size, THREADS // 32), cdiv(point.max_num_seqs + 1 - num_real(point), THREADS))
    arguments = sizes(point, x), bundle(x, *INPUTS), bundle(out, *OUTPUTS)
    kernel = "step_epilogue_states_kernel" if with_states(point) else "step_epilogue_kernel"
    return launcher(SOURCE, kernel, (blocks, warps_per_row(point)), THREADS, *arguments)
