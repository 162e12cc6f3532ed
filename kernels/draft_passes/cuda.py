"""draft_passes in CUDA C++: the launch of draft_passes.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spec_decode_bench.baselines.compute_slot_mappings.operator import rank_of
from spec_decode_bench.baselines.draft_passes.operator import Inputs, Outputs, passes, with_indexer, with_ranks
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle, bundle_type
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.draft_passes.triton import Sizes, sizes
from spec_decode_bench.kernels.paged_mqa_schedule import cuda as paged_mqa_schedule

THREADS = 256
#: Fields of the inputs and outputs that every kernel reads.
INPUTS = (
    "idx_mapping",
    "seq_lens",
    "num_rejected",
    "tables",
    "table_starts",
    "widths",
    "block_sizes",
    "enabled",
)
OUTPUTS = ("positions", "seq_lens", "sample_src_positions", "slot_mappings", "query_start_loc")

SOURCE = cuda_source(
    Path(__file__).with_name("draft_passes.cu"),
    Sizes,
    bundle_type(Inputs, *INPUTS),
    bundle_type(Outputs, *OUTPUTS),
    constants={"THREADS": THREADS},
    uses=(paged_mqa_schedule.SOURCE,),
)


@variant("draft_passes", requires=GPU, sources=SOURCE, sizes={"batch_size": (THREADS,), "num_sms": (THREADS - 1,)})
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, a thread per row, pass and group."""
    num_schedulers = cdiv(point.num_sms + 1, THREADS) if with_indexer(point) else 0
    grid = (num_schedulers + cdiv(point.max_num_seqs + 1, THREADS), passes(point), point.num_groups)
    arguments = [sizes(point, num_schedulers), bundle(x, *INPUTS), bundle(out, *OUTPUTS)]
    if with_indexer(point):
        return launcher(SOURCE, "draft_passes_indexer_kernel", grid, THREADS, *arguments, out.schedule)
    if with_ranks(point):
        ranks = x.sharded, out.local_seq_lens, point.cp_size, rank_of(point), point.cp_interleave
        return launcher(SOURCE, "draft_passes_ranks_kernel", grid, THREADS, *arguments, *ranks)
    return launcher(SOURCE, "draft_passes_kernel", grid, THREADS, *arguments)
