"""draft_inputs in CUDA C++: the launches of draft_inputs.cu, one per pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spec_decode_bench.baselines.draft_inputs.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import warps_per_row
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.draft_inputs.triton import Sizes, sizes

THREADS = 128

SOURCE = cuda_source(
    Path(__file__).with_name("draft_inputs.cu"), Sizes, Inputs, Outputs, constants={"THREADS": THREADS}
)


@variant("draft_inputs", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++."""
    rows, capacity, arguments = len(x.seq_lens), point.max_num_seqs, (sizes(point, x), bundle(x), bundle(out))
    advance = int(point.advance == "yes")
    if point.draft_pass == "first":
        grid = (max(cdiv(rows, THREADS // 32), cdiv(capacity + 1 - rows, THREADS)), warps_per_row(point))
        return launcher(SOURCE, "draft_inputs_first_kernel", grid, THREADS, *arguments)
    if point.draft_pass == "second":
        return launcher(SOURCE, "draft_inputs_second_kernel", cdiv(capacity + 1, THREADS), THREADS, *arguments, advance)
    aligned = (
        point.hidden_size % 8 == 0 and x.hidden_states_before.data_ptr() % 16 == out.hidden_states.data_ptr() % 16 == 0
    )
    vector = 8 if aligned else 1
    grid = (rows, min(cdiv(point.hidden_size, THREADS * vector), 8))
    return launcher(SOURCE, f"draft_inputs_later_kernel_vec{vector}", grid, THREADS, *arguments, advance)
