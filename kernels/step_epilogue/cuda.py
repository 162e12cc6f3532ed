"""step_epilogue in CUDA C++: the launch of step_epilogue.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch

from baselines.step_epilogue.operator import Inputs, Outputs
from baselines.workloads.integers import cdiv
from baselines.workloads.request_slots import num_real, warps_per_row
from harness.contract import GPU, Point, variant
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("step_epilogue.cu")
THREADS = 128


def _or_null(tensor: torch.Tensor | None) -> torch.Tensor | ctypes.c_longlong:
    return ctypes.c_longlong(0) if tensor is None else tensor


@variant("step_epilogue", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, a warp per row."""
    rows, real, capacity = point.batch_size, num_real(point), point.max_num_seqs
    return launcher(
        SOURCE,
        "epilogue",
        (max(cdiv(rows, THREADS // 32), cdiv(capacity + 1 - real, THREADS)), warps_per_row(point)),
        THREADS,
        x.idx,
        x.cu_num_logits,
        x.query_start_loc,
        x.seq_lens,
        x.num_sampled,
        x.tokens,
        x.num_computed,
        x.total,
        _or_null(x.bins),
        x.prompt_lens_device if x.prompt_lens_host is None else x.prompt_lens_host,
        x.next_prefill,
        x.target_ids,
        x.target_pos,
        _or_null(x.columns_before),
        out.num_sampled,
        out.num_rejected,
        out.num_computed,
        out.total,
        out.last,
        out.accepted,
        _or_null(out.bins),
        out.all_ids_device if out.all_ids_host is None else out.all_ids_host,
        out.ids,
        out.pos,
        out.lens,
        out.starts,
        out.last_index,
        out.step,
        _or_null(out.moves),
        rows,
        real,
        capacity,
        x.tokens.stride(0),
        point.history_len,
        point.vocab_size,
        point.mamba_block_size,
    )
