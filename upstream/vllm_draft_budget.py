"""draft_budget of vLLM 0.33: what adaptive verification runs on the device, and the method around it.

Both compile the function that ranks drafts as vLLM does. torch.topk breaks ties by index on a GPU alone, hence GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from spec_decode_bench.baselines.draft_budget.operator import Inputs, Outputs, by_vllm, num_drafts, operator
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled
from spec_decode_bench.harness.contract import COMPILER, GPU, Point, variant
from spec_decode_bench.harness.engine_launch import EngineLaunch, own
from spec_decode_bench.upstream._vllm import Definitions, needs
from spec_decode_bench.upstream.vllm_mamba_align_step import STAGING

FILE, MANAGER = "v1/worker/gpu/spec_decode/adaptive_verification.py", "AdaptiveVerificationManager"
RANKING = Definitions(FILE, "_assign_draft_token_budget")
METHOD = Definitions(
    FILE,
    "AdmittedDraftCounts",
    f"{MANAGER}.reallocate_drafts",
    given=lambda: {"async_tensor_h2d": STAGING().async_tensor_h2d},
)
NEEDS = (*needs(RANKING), COMPILER, GPU)
#: What the ranking is compiled for first: a server of many requests, and one request.
EXAMPLES = (
    {"batch_size": BUSY_BATCH, "max_num_seqs": 270, "next_n": 6, "decode_len": "ragged", "prefills": 3},
    {"batch_size": 1},
)


def _skip(point: Point) -> str | None:
    return None if by_vllm(point) else "vLLM's rule is another one"


def _skip_call(point: Point) -> str | None:
    return _skip(point) or (None if point.memory == "uva" else "vLLM's counts are the host's (memory: uva)")


def _ranking(out: Outputs) -> Callable[..., None]:
    """vLLM's function, compiled as vLLM does."""
    return compiled(RANKING()._assign_draft_token_budget, _set_up, operator, EXAMPLES, out.query_start_loc.device)


def _set_up(point: Point, x: Inputs, out: Outputs, assign: Callable[..., None]) -> Callable[[], None]:
    rows, budget, chooses = len(x.idx_mapping), x.draft_budget, 0 < x.draft_budget < num_drafts(point)
    admitted, logits, starts = out.num_drafts[:rows], out.cu_num_logits, out.query_start_loc
    others = torch.empty_like(x.non_draft_tokens, device=admitted.device)

    def launch() -> None:
        if budget:
            admitted.copy_(x.num_drafts, non_blocking=True)
        else:
            admitted.zero_()
        if chooses:
            assign(x.confidence, x.idx_mapping, admitted, budget, point.next_n - 1)
        others.copy_(x.non_draft_tokens, non_blocking=True)
        logits[:1].zero_()
        torch.cumsum(admitted + 1, dim=0, out=logits[1 : rows + 1])
        starts[:1].zero_()
        torch.cumsum(admitted + others, dim=0, out=starts[1 : rows + 1])
        starts[rows + 1 :].fill_(x.num_tokens)

    return launch


@variant("draft_budget", requires=NEEDS, skip=_skip, waives="no_alloc")
def vllm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's compiled ranking between two uploads, two prefix sums and fills."""
    return _set_up(point, x, out, _ranking(out))


@variant(
    "draft_budget",
    requires=(*NEEDS, *needs(METHOD, STAGING)),
    skip=_skip_call,
    waives=("no_alloc", "graph_safe"),
)
def vllm_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """reallocate_drafts, which stages the host's counts in fresh pinned memory. The scheduler's dictionaries, which it
    reads, are not timed.
    """
    call, requests = METHOD(), list(map(str, range(len(x.idx_mapping))))
    vars(call)["reallocate_drafts"].__globals__["_assign_draft_token_budget_compiled"] = _ranking(out)
    state: Any = SimpleNamespace(
        _confidence_probs=x.confidence,
        _batch_draft_capacity=out.num_drafts,
        _num_non_draft_tokens=torch.empty_like(out.num_drafts),
        _cu_num_logits=out.cu_num_logits,
        query_start_loc=out.query_start_loc,
        num_speculative_steps=point.next_n - 1,
        num_bonus_tokens=1,
        _copy_admitted_drafts_to_host=False,
    )

    def schedule() -> None:
        counts = (dict(zip(requests, one.tolist(), strict=True)) for one in (x.num_drafts, x.non_draft_tokens))
        state._batch_budget = (*counts, x.draft_budget)

    return EngineLaunch(own(schedule), lambda: call.reallocate_drafts(state, requests, x.idx_mapping))
