"""draft_budget from PyTorch operators, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from spec_decode_bench.baselines.draft_budget.operator import (
    LEAST_SURVIVAL,
    Inputs,
    Outputs,
    by_vllm,
    longest_padding,
    num_drafts,
    on_bus,
    operator,
)
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled
from spec_decode_bench.harness.contract import COMPILER, Point, variant


def best(score: torch.Tensor, budget: int) -> torch.Tensor:
    """Whether each is one of the ``budget`` highest scores; of equal ones the first are. budget: from 1 on.

    topk breaks ties by index on a GPU alone, and does not promise it.
    """
    flat = score.flatten()
    least = flat.topk(budget).values[-1]
    above, equal = flat > least, flat == least
    return (above | (equal & (equal.cumsum(0) <= budget - above.sum()))).view_as(score)


def fill(x: Inputs, out: Outputs, drafts: torch.Tensor, budget: int, num_tokens: int, chooses: bool) -> None:
    """By vLLM's rule. drafts: int64, 0 .. k - 1. chooses: whether some drafts are admitted and some are not."""
    rows = len(x.idx_mapping)
    if chooses:
        survival = x.confidence[x.idx_mapping].cumprod(1)
        survival = survival.masked_fill(drafts >= x.num_drafts[:, None], -float("inf"))
        admitted = best(survival, budget).sum(1, dtype=torch.int32)
    else:
        admitted = x.num_drafts if budget else torch.zeros_like(x.num_drafts)
    out.num_drafts[:rows].copy_(admitted)
    out.cu_num_logits[:1].zero_()
    out.cu_num_logits[1 : rows + 1].copy_((admitted + 1).cumsum(0))
    out.query_start_loc[:1].zero_()
    out.query_start_loc[1 : rows + 1].copy_((admitted + x.non_draft_tokens).cumsum(0))
    out.query_start_loc[rows + 1 :].fill_(num_tokens)


def fill_padded(x: Inputs, out: Outputs, padding: torch.Tensor, budget: int, num_tokens: int, longest: int) -> None:
    """By SGLang's rule. padding: int64, 0 .. padding rows - 1. longest: tokens of a row at most."""
    rows = len(x.confidence)
    survival = x.confidence.cumprod(1).T
    survives = survival >= LEAST_SURVIVAL
    score = survival.masked_fill(~survives, -float("inf"))
    if 0 < budget < score.numel():
        admitted = best(score, budget) & survives
    else:
        admitted = survives if budget else torch.zeros_like(survives)
    lens = 1 + admitted.sum(0)
    rest, count = num_tokens - lens.sum(), len(padding)
    if count:
        lens = torch.cat([lens, rest // count + (padding < rest % count)])
    else:
        lens = torch.cat([lens[:-1], lens[-1:] + rest])
    lens = lens.clamp(max=longest)
    rows = len(lens)
    out.verify_lens[:rows].copy_(lens)
    out.query_start_loc[:1].zero_()
    out.query_start_loc[1 : rows + 1].copy_(lens.cumsum(0))


def set_up(point: Point, x: Inputs, out: Outputs, fill: Callable[..., None] = fill) -> Callable[[], None]:
    device, budget = out.query_start_loc.device, x.draft_budget
    drafts, chooses = torch.arange(point.next_n - 1, device=device), 0 < budget < num_drafts(point)
    if not on_bus(point):
        return lambda: fill(x, out, drafts, budget, x.num_tokens, chooses)
    hosts = x.num_drafts, x.non_draft_tokens
    there = [torch.empty_like(host, device=device) for host in hosts]
    uploaded = replace(x, num_drafts_device=there[0], non_draft_tokens_device=there[1])

    def upload() -> None:
        for target, source in zip(there, hosts, strict=True):
            target.copy_(source, non_blocking=True)

    return in_sequence(upload, lambda: fill(uploaded, out, drafts, budget, x.num_tokens, chooses))


def set_up_padded(point: Point, x: Inputs, out: Outputs, fill: Callable[..., None] = fill_padded) -> Callable[[], None]:
    padding = torch.arange(point.batch_size - len(x.confidence), device=out.verify_lens.device)
    return lambda: fill(x, out, padding, x.draft_budget, x.num_tokens, longest_padding(point))


@variant("draft_budget", waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Products, the least of the highest, comparison, sums and prefix sums; two uploads where counts are the host's."""
    return (set_up if by_vllm(point) else set_up_padded)(point, x, out)


_STEP = {"batch_size": BUSY_BATCH, "max_num_seqs": 270, "next_n": 6, "decode_len": "ragged", "prefills": 3}
_PADDED = {"rule": "sglang", "batch_size": BUSY_BATCH, "max_num_seqs": 270, "next_n": 6, "token_padding": 50}
_EXAMPLES = (
    _STEP,
    _STEP | {"budget": 0.0},
    _STEP | {"budget": 1.0},
    {"batch_size": 1, "next_n": 2},
)
_PADDED_EXAMPLES = (
    _PADDED | {"padding": 0.1},
    _PADDED,
    _PADDED | {"budget": 1.0, "padding": 0.1},
    {"rule": "sglang", "batch_size": 1, "next_n": 2},
)


@variant("draft_budget", requires=COMPILER, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the operator chain, behind the uploads."""
    device = out.query_start_loc.device
    if by_vllm(point):
        return set_up(point, x, out, compiled(fill, set_up, operator, _EXAMPLES, device))
    return set_up_padded(point, x, out, compiled(fill_padded, set_up_padded, operator, _PADDED_EXAMPLES, device))
