"""draft_budget in CUDA C++: the launch of draft_budget.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spec_decode_bench.baselines.draft_budget.operator import Inputs, Outputs, num_rows
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.draft_budget.triton import Sizes, sizes

#: Threads of the block: one per row, within these bounds.
FEWEST, MOST = 128, 1024
#: Drafts whose p lies in shared memory; in larger batches it is multiplied anew in each turn.
KEPT = 8192

CONSTANTS = {"MOST_WARPS": MOST // 32, "KEPT": KEPT}
SOURCE = cuda_source(Path(__file__).with_name("draft_budget.cu"), Sizes, Inputs, Outputs, constants=CONSTANTS)


@variant("draft_budget", requires=GPU, sources=SOURCE, sizes={"batch_size": (FEWEST, MOST)})
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, one block with a thread per row."""
    threads = min(max(32 * cdiv(num_rows(point), 32), FEWEST), MOST)
    kernel = f"draft_budget_{point.rule}_kernel"
    return launcher(SOURCE, kernel, 1, threads, sizes(point, x), bundle(x), bundle(out))
