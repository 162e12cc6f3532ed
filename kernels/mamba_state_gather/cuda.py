"""mamba_state_gather in CUDA C++: one lane per slot, as triton.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from baselines.mamba_state_gather.operator import Inputs, Outputs
from baselines.workloads import mamba_steps as mamba
from baselines.workloads.integers import cdiv
from harness.contract import GPU, Point, variant
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("mamba_state_gather.cu")
#: As in the source.
THREADS = 128


@variant("mamba_state_gather", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++."""
    slots = mamba.slots_per_step(point)
    log_lanes = mamba.log2_lanes(slots)
    return launcher(
        SOURCE,
        "gather",
        cdiv(point.batch_size << log_lanes, THREADS),
        THREADS,
        x.state_indices,
        x.block_idx_last_scheduled_token,
        x.block_idx_last_scheduled_token_prev_step,
        out.input_slots,
        out.output_slots,
        point.batch_size,
        x.state_indices.stride(0),
        slots,
        log_lanes,
    )
