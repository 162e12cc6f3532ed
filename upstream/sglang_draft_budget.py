"""draft_budget of SGLang 0.5.23: the kernels of its DSpark planner and of its ragged layout, and the functions around
them, read from its files.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

import torch
import triton

from spec_decode_bench.baselines.draft_budget.operator import (
    LEAST_SURVIVAL,
    Inputs,
    Outputs,
    by_sglang,
    longest_padding,
)
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.engine_launch import EngineLaunch, own
from spec_decode_bench.harness.packages import file_in
from spec_decode_bench.upstream._kernel_source import definitions

SCHEDULE = "kernels/ops/speculative/dspark/dspark_schedule.py"
LAYOUT = "kernels/ops/speculative/ragged_verify_kernels.py"
PLANNER = tuple(f"_schedule_topk_{name}_kernel" for name in ("prep", "selected_extra", "finalize"))
RAGGED = ("_padded_to_bucket_kernel", "_qo_indptr_kernel")
PLAN, PAD, BOUNDARIES = "schedule_verify_lens_topk_triton", "pad_verify_lens_to_bucket_triton", "build_qo_indptr_triton"
NEEDS = tuple(
    f"sglang:{file}::{','.join(names)}"
    for file, names in ((SCHEDULE, (*PLANNER, PLAN)), (LAYOUT, (*RAGGED, PAD, "QoIndptrResult", BOUNDARIES)))
)
#: Drafts ranked by a program, those that it compares them with at a time, and rows of a program of the last kernel.
RANKED, COMPARED, ROWS = 64, 256, 256


@cache
def _code() -> SimpleNamespace:
    planner = definitions(file_in("sglang", SCHEDULE), (*PLANNER, PLAN), DSparkScheduleConfig=object)
    record = SimpleNamespace(Struct=_Record)
    layout = definitions(file_in("sglang", LAYOUT), (*RAGGED, PAD, "QoIndptrResult", BOUNDARIES), msgspec=record)
    return SimpleNamespace(**vars(planner), **vars(layout))


class _Record(SimpleNamespace):
    """Stands for msgspec's."""


def _skip(point: Point) -> str | None:
    if not by_sglang(point):
        return "SGLang's rule is another one"
    return None if point.next_n > 1 else "a step without drafts is not one of SGLang's"


@variant("draft_budget", requires=NEEDS, skip=_skip)
def sglang(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """SGLang's kernels: a plan in three launches, its boundaries, padding, boundaries; one more where rows are cut."""
    kernels, (rows, k), padded = _code(), x.confidence.shape, point.batch_size
    size, padded_size = (triton.next_power_of_2(max(count, 1)) for count in (rows, padded))
    device = out.verify_lens.device
    planned, chosen, starts, unpadded = (
        torch.empty(count, dtype=torch.int32, device=device) for count in (rows, rows, padded, rows + 1)
    )
    survival = torch.empty_like(x.confidence)
    lens, capped = out.verify_lens[:padded], point.capped == "yes"

    def launch() -> None:
        kernels._schedule_topk_prep_kernel[(rows,)](
            x.confidence, survival, chosen, k, k, G_P2=triton.next_power_of_2(k)
        )
        if x.draft_budget > 0:
            kernels._schedule_topk_selected_extra_kernel[(cdiv(rows * k, RANKED),)](
                survival, chosen, x.draft_budget, k, rows * k, LEAST_SURVIVAL, BLOCK_C=RANKED, BLOCK_CP=COMPARED
            )
        kernels._schedule_topk_finalize_kernel[(cdiv(rows, ROWS),)](chosen, planned, 1, 1, k + 1, rows, BLOCK=ROWS)
        kernels._qo_indptr_kernel[(1,)](planned, unpadded, starts, rows, BLOCK=size)
        kernels._padded_to_bucket_kernel[(1,)](planned, lens, rows, padded, x.num_tokens, BLOCK=padded_size)
        if capped:
            lens.clamp_(max=longest_padding(point))
        kernels._qo_indptr_kernel[(1,)](lens, out.query_start_loc, starts, padded, BLOCK=padded_size)

    return launch


@variant("draft_budget", requires=NEEDS, skip=_skip, waives="no_alloc")
def sglang_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """SGLang's functions, which allocate; the copies into persistent buffers are not timed."""
    calls, rows, made = _code(), len(x.confidence), SimpleNamespace()
    plan = SimpleNamespace(min_verify_len=1, survival_eps=LEAST_SURVIVAL, resolved_max_verify_len=lambda: point.next_n)
    padded = {"graph_num_tokens": x.num_tokens, "bs": rows, "padded_bs": point.batch_size}

    def launch() -> None:
        lens = calls.schedule_verify_lens_topk_triton(confidence=x.confidence, budget=x.draft_budget, cfg=plan)
        calls.build_qo_indptr_triton(verify_lens=lens)
        lens = calls.pad_verify_lens_to_bucket_triton(verify_lens=lens, **padded)
        made.lens = lens.clamp(max=longest_padding(point)) if point.capped == "yes" else lens
        made.starts = calls.build_qo_indptr_triton(verify_lens=made.lens).qo_indptr

    def hand_on() -> None:
        out.verify_lens[: point.batch_size].copy_(made.lens)
        out.query_start_loc[: point.batch_size + 1].copy_(made.starts)

    return EngineLaunch(launch, own(hand_on))
