"""step_epilogue as the fused kernels of its parts, one after another."""

from __future__ import annotations

from collections.abc import Callable

from spec_decode_bench.baselines.step_epilogue.operator import PARTS, Inputs, Outputs
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.kernels.draft_inputs import cuda as drafter_cuda
from spec_decode_bench.kernels.mamba_align_step import cuda as states_cuda
from spec_decode_bench.kernels.post_update import cuda as update_cuda

CUDA_PARTS = (update_cuda, drafter_cuda, states_cuda)


@variant("step_epilogue", requires=GPU, sources=[part.SOURCE for part in CUDA_PARTS])
def cuda_sequence(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The fused CUDA kernels of the parts in sequence: two launches, three with states."""
    return PARTS.sequence(*(part.cuda_fused for part in CUDA_PARTS))(point, x, out)
