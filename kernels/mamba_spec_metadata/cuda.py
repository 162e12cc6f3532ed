"""mamba_spec_metadata in CUDA C++: as triton.py, with the division by the block size as a multiplication."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from baselines.mamba_spec_metadata.operator import Inputs, Outputs
from baselines.workloads import mamba_steps as mamba
from baselines.workloads.integers import cdiv, reciprocal
from harness.contract import GPU, Point, variant
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("mamba_spec_metadata.cu")
#: As in the source.
THREADS = 128


@variant("mamba_spec_metadata", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++; the division by the block size is a multiplication."""
    slots = mamba.slots_per_step(point)
    log_lanes = mamba.log2_lanes(slots)
    grid, table = cdiv(point.batch_size << log_lanes, THREADS), x.block_table
    multiplier, shift = reciprocal(point.mamba_block_size)
    if point.cache_mode == "all":
        return launcher(
            SOURCE,
            "all_states",
            grid,
            THREADS,
            x.seq_lens,
            x.query_start_loc,
            x.num_accepted_tokens,
            x.request_slots,
            x.fresh,
            x.anchors,
            table,
            out.input_slots,
            out.output_slots,
            out.conv_input_slot,
            out.conv_output_slot,
            out.block_idx_last_scheduled_token,
            out.block_idx_last_computed_token,
            out.block_idx_last_scheduled_token_prev_step,
            out.num_accepted_tokens,
            out.next_anchors,
            x.num_decodes,
            point.batch_size,
            table.shape[1],
            table.stride(0),
            slots,
            log_lanes,
            multiplier,
            shift,
        )
    # In mode none a multiplier of 0 makes every first column 0.
    return launcher(
        SOURCE,
        "window",
        grid,
        THREADS,
        x.seq_lens,
        x.num_accepted_tokens,
        table,
        out.input_slots,
        out.num_accepted_tokens,
        x.num_decodes,
        point.batch_size,
        table.stride(0),
        slots,
        log_lanes,
        multiplier if point.cache_mode == "align" else 0,
        shift,
    )
