"""step_inputs from PyTorch operators, and compiled."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.step_inputs.operator import Inputs, Outputs, operator
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled, row_of
from spec_decode_bench.harness.contract import COMPILER, Point, variant


def fill(
    x: Inputs, out: Outputs, tokens: torch.Tensor, logits: torch.Tensor, ahead: torch.Tensor, new: int, prompts: bool
) -> None:
    """tokens, logits: int64, 0 .. A - 1 and 0 .. N - 1. ahead: [look_ahead, 1] int64. prompts: some rows may be."""
    rows, count, slots = len(x.idx_mapping), len(tokens), x.idx_mapping
    starts, ends, computed = x.query_start_loc[:rows], x.query_start_loc[1 : rows + 1], x.num_computed_tokens[slots]
    lens, num_logits, prompt = computed + ends - starts, torch.diff(x.cu_num_logits), x.prompt_lens[slots]
    out.seq_lens[:rows].copy_(lens)
    out.seq_lens[rows:].zero_()

    owner = row_of(x.query_start_loc[: rows + 1], tokens).clamp(max=rows - 1)
    position = tokens + (computed - starts)[owner]
    out.positions[:count].copy_(position)
    row = tokens - (ends - num_logits)[owner]  # logit row of the request, negative before the first
    past = (lens > prompt)[owner]
    anchored = ((lens - num_logits >= prompt) & (lens > prompt))[owner]
    ids, owner_slot = out.input_ids[:count], slots[owner]
    if prompts:
        at = position.clamp(max=x.all_token_ids.shape[1] - 1)
        ids = torch.where((computed < prompt)[owner], x.all_token_ids[owner_slot, at], ids)
    if new:
        ids = torch.where(anchored & (row == 0), x.last_sampled_tokens[owner_slot].int(), ids)
    if x.draft_tokens.shape[1]:
        draft = x.draft_tokens[owner_slot, (row - new).clamp(min=0, max=x.draft_tokens.shape[1] - 1)].int()
        ids = torch.where(past & (row >= new), draft, ids)
    out.input_ids[:count].copy_(ids)
    if prompts:
        following = lens + ahead
        token = x.all_token_ids[slots, following.clamp(max=x.all_token_ids.shape[1] - 1)]
        token = torch.where(following < prompt, token, 0)
        out.next_prefill_tokens[:, slots] = torch.where(computed < prompt, token, out.next_prefill_tokens[:, slots])

    n = len(logits)
    owner = row_of(x.cu_num_logits, logits).clamp(max=rows - 1)
    within = logits - x.cu_num_logits[:-1][owner]
    token = (ends - num_logits)[owner] + within
    out.logits_indices[:n].copy_(token)
    out.expanded_idx_mapping[:n].copy_(slots[owner])
    out.expanded_local_pos[:n].copy_(within)
    position = out.positions[token]
    out.logit_positions[:n].copy_(position)
    in_prompt = (within > 0) & (position - within < prompt[owner])
    out.draft_sampled[:n].copy_(torch.where(in_prompt, -1, out.input_ids[token]))


def set_up(point: Point, x: Inputs, out: Outputs, fill: Callable[..., None] = fill) -> Callable[[], None]:
    device = out.seq_lens.device
    tokens, logits = torch.arange(x.num_tokens, device=device), torch.arange(x.num_logits, device=device)
    ahead = torch.arange(point.look_ahead, device=device)[:, None]
    return lambda: fill(x, out, tokens, logits, ahead, point.new_tokens, point.prompt_rows == "some")


def on_device(point: Point) -> str | None:
    return "PyTorch cannot read pinned memory from the device" if point.memory == "uva" else None


@variant("step_inputs", skip=on_device, waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Row of every token and of every logit by search, then gathers, compares and selects."""
    return set_up(point, x, out)


_STEP = {
    "batch_size": BUSY_BATCH,
    "max_num_seqs": 270,
    "next_n": 6,
    "decode_len": "ragged",
    "history_len": 300,
    "max_num_batched_tokens": 3000,
}
_EXAMPLES = (
    _STEP,
    _STEP | {"prefills": 3, "prefill_len": 77, "look_ahead": 2},
    _STEP | {"prefills": 3, "prefill_len": 77},
    {"batch_size": 1},
)


@variant("step_inputs", requires=COMPILER, skip=on_device, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the operator chain."""
    return set_up(point, x, out, compiled(fill, set_up, operator, _EXAMPLES, out.seq_lens.device))
