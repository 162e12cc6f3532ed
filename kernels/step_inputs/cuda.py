"""step_inputs in CUDA C++: the launch of step_inputs.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from baselines.step_inputs.operator import Inputs, Outputs
from baselines.workloads.integers import cdiv
from baselines.workloads.request_slots import warps_per_row
from harness.contract import GPU, Point, variant
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("step_inputs.cu")
THREADS = 128


@variant("step_inputs", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, a warp per row."""
    rows, capacity = len(x.idx), point.max_num_seqs
    return launcher(
        SOURCE,
        "prepare",
        (max(cdiv(rows, THREADS // 32), cdiv(capacity - rows, THREADS)), warps_per_row(point)),
        THREADS,
        x.idx,
        x.query_start_loc,
        x.cu_num_logits,
        x.num_computed,
        x.last,
        x.draft,
        x.prompt_lens,
        x.all_ids,
        out.seq_lens,
        out.positions,
        out.input_ids,
        out.next_prefill,
        out.logits_indices,
        out.expanded_idx,
        out.expanded_pos,
        out.drafted,
        out.logit_positions,
        rows,
        capacity,
        point.next_n - 1,
        point.history_len,
        point.look_ahead,
        point.new_tokens,
    )
