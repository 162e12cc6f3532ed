"""draft_inputs in CUDA C++: the launches of draft_inputs.cu, one per pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from baselines.draft_inputs.operator import Inputs, Outputs
from baselines.workloads.integers import cdiv
from baselines.workloads.request_slots import warps_per_row
from harness.contract import GPU, Point, variant
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("draft_inputs.cu")
THREADS = 128


@variant("draft_inputs", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++."""
    rows, capacity, k, most = len(x.seq_lens), point.max_num_seqs, point.next_n - 1, point.max_model_len
    advance = int(point.advance == "yes")
    if point.draft_pass == "first":
        return launcher(
            SOURCE,
            "first_pass",
            (max(cdiv(rows, THREADS // 32), cdiv(capacity + 1 - rows, THREADS)), warps_per_row(point)),
            THREADS,
            x.query_start_loc,
            x.seq_lens,
            x.num_rejected,
            x.target_ids,
            x.target_pos,
            x.idx,
            x.num_sampled,
            x.last,
            x.next_prefill,
            out.ids,
            out.pos,
            out.lens,
            out.starts,
            out.last_index,
            out.step,
            rows,
            capacity,
        )
    if point.draft_pass == "second":
        return launcher(
            SOURCE,
            "second_pass",
            cdiv(capacity + 1, THREADS),
            THREADS,
            x.seq_lens,
            x.num_rejected,
            x.pos_before,
            x.drafts,
            out.ids,
            out.pos,
            out.lens,
            out.starts,
            out.src,
            rows,
            capacity,
            k,
            most,
            advance,
        )
    aligned = point.hidden_size % 8 == 0 and x.hidden_before.data_ptr() % 16 == out.hidden.data_ptr() % 16 == 0
    vector = 8 if aligned else 1
    return launcher(
        SOURCE,
        f"later_pass_vec{vector}",
        (rows, min(cdiv(point.hidden_size, THREADS * vector), 8)),
        THREADS,
        x.step,
        x.sampled,
        x.pos_before,
        x.src_before,
        x.lens_before,
        x.hidden_before,
        out.ids,
        out.pos,
        out.lens,
        out.src,
        out.drafts,
        out.hidden,
        k,
        most,
        point.hidden_size,
        advance,
    )
