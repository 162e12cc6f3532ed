"""post_update in CUDA C++: the launch of post_update.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch

from baselines.post_update.operator import Inputs, Outputs
from baselines.workloads.integers import cdiv
from harness.contract import GPU, Point, variant
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("post_update.cu")
THREADS = 128


def _or_null(tensor: torch.Tensor | None) -> torch.Tensor | ctypes.c_longlong:
    return ctypes.c_longlong(0) if tensor is None else tensor


@variant("post_update", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, a warp per row."""
    return launcher(
        SOURCE,
        "update",
        cdiv(len(x.idx), THREADS // 32),
        THREADS,
        x.idx,
        x.cu_num_logits,
        x.query_start_loc,
        x.seq_lens,
        x.num_sampled,
        x.tokens,
        x.num_computed,
        x.total,
        _or_null(x.new_drafts),
        _or_null(x.bins),
        x.prompt_lens,
        out.num_sampled,
        out.num_rejected,
        out.num_computed,
        out.total,
        out.last,
        out.accepted,
        _or_null(out.draft),
        _or_null(out.bins),
        out.all_ids,
        len(x.idx),
        x.tokens.stride(0),
        point.next_n - 1,
        point.history_len,
        point.vocab_size,
    )
