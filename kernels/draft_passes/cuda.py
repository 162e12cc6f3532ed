"""draft_passes in CUDA C++: the launch of draft_passes.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from baselines.draft_passes.operator import Inputs, Outputs, passes, with_indexer
from baselines.workloads.integers import cdiv, reciprocal
from baselines.workloads.request_slots import num_real
from harness.contract import GPU, Point, variant
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("draft_passes.cu")
THREADS = 256


@variant("draft_passes", requires=GPU, sources=SOURCE, sizes={"batch_size": (THREADS,), "num_sms": (THREADS - 1,)})
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, a thread per row, pass and group."""
    rows, capacity = point.batch_size, point.max_num_seqs
    name, schedulers, schedule = "passes", 0, ()
    if with_indexer(point):
        name = "schedules"
        schedulers = cdiv(point.num_sms + 1, THREADS)
        sms = (point.num_sms, *reciprocal(point.num_sms))
        schedule = (out.schedule, rows, schedulers, *sms, int(point.remainder == "back"))
    return launcher(
        SOURCE,
        name,
        (schedulers + cdiv(capacity + 1, THREADS), passes(point), point.num_groups),
        THREADS,
        x.idx,
        x.seq_lens,
        x.num_rejected,
        x.tables,
        x.table_starts,
        x.widths,
        x.block_sizes,
        x.enabled,
        out.pos,
        out.lens,
        out.src,
        out.slots,
        out.starts,
        num_real(point),
        capacity,
        point.max_model_len,
        int(point.advance == "yes"),
        *schedule,
    )
