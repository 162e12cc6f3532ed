"""paged_mqa_schedule in CUDA C++: the launch. paged_mqa_schedule.cuh explains the kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from baselines.paged_mqa_schedule.operator import Inputs, Outputs, request_lens, with_indices
from baselines.workloads.integers import cdiv, reciprocal
from harness.contract import GPU, Point, variant
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("paged_mqa_schedule.cu")
#: As in the CUDA source: threads of a block, each with a row of the table.
THREADS = 256


@variant("paged_mqa_schedule", requires=GPU, sources=SOURCE, sizes={"num_sms": (THREADS - 1,)})
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch, one block on any current GPU: a scan, one barrier and a binary search per row; any batch in 4 KB of
    shared memory.
    """
    lens = request_lens(x)
    batch_size = len(lens)
    runs = with_indices(point)
    size = "one" if batch_size <= THREADS else "four" if batch_size <= 4 * THREADS else "many"
    return launcher(
        SOURCE,
        ("runs_" if runs else "schedule_") + size,
        cdiv(point.num_sms + 1, THREADS),
        THREADS,
        lens,
        x.indices if runs else lens,
        out.schedule,
        batch_size,
        lens.stride(0),
        cdiv(batch_size, THREADS),
        point.num_sms,
        *reciprocal(point.num_sms),
        point.max_decode_len if runs else point.atoms,
        int(point.remainder == "back"),
    )
