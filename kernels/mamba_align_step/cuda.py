"""mamba_align_step in CUDA C++: the launches of mamba_align_step.cu, one per phase."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spec_decode_bench.baselines.mamba_align_step.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle_type
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.mamba_align_step.triton import INPUTS, Arguments, Sizes, arguments

THREADS = 128
#: Threads of a row before the forward pass.
LANES = 8

SOURCE = cuda_source(
    Path(__file__).with_name("mamba_align_step.cu"),
    Sizes,
    bundle_type(Inputs, *INPUTS),
    Outputs,
    Arguments,
    constants={"THREADS": THREADS, "LANES": LANES},
)


@variant("mamba_align_step", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, eight threads per row before the forward pass and one after sampling."""
    rows, taken = len(x.idx_mapping), arguments(point, x, out)
    if point.phase == "after_sampling":
        return launcher(SOURCE, "mamba_align_step_after_kernel", cdiv(rows, THREADS), THREADS, *taken)
    return launcher(SOURCE, "mamba_align_step_before_kernel", cdiv(rows, THREADS // LANES), THREADS, *taken)
