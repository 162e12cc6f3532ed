"""step_epilogue in CUDA C++: the launch of step_epilogue.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spec_decode_bench.baselines.step_epilogue.operator import Inputs, Outputs, with_states
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import num_real, warps_per_row
from spec_decode_bench.harness.bundle import bundle, bundle_type
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.draft_inputs import cuda as draft_inputs
from spec_decode_bench.kernels.mamba_align_step import cuda as mamba_align_step
from spec_decode_bench.kernels.post_update import cuda as post_update
from spec_decode_bench.kernels.step_epilogue.triton import INPUTS, OUTPUTS, Sizes, sizes

THREADS = 128

SOURCE = cuda_source(
    Path(__file__).with_name("step_epilogue.cu"),
    Sizes,
    bundle_type(Inputs, *INPUTS),
    bundle_type(Outputs, *OUTPUTS),
    constants={"THREADS": THREADS},
    uses=(draft_inputs.SOURCE, mamba_align_step.SOURCE, post_update.SOURCE),
)


@variant("step_epilogue", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, a warp per row."""
    blocks = max(cdiv(point.batch_size, THREADS // 32), cdiv(point.max_num_seqs + 1 - num_real(point), THREADS))
    arguments = sizes(point, x), bundle(x, *INPUTS), bundle(out, *OUTPUTS)
    kernel = "step_epilogue_states_kernel" if with_states(point) else "step_epilogue_kernel"
    return launcher(SOURCE, kernel, (blocks, warps_per_row(point)), THREADS, *arguments)
