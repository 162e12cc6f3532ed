"""post_update from PyTorch operators, and compiled."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.post_update.operator import Inputs, Outputs, operator
from spec_decode_bench.baselines.workloads.request_slots import rows_of_slots
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled
from spec_decode_bench.harness.contract import COMPILER, Point, variant


def update(x: Inputs, out: Outputs, columns: torch.Tensor) -> None:
    """columns: [next_n] int64, 0 .. k. By slot, where a slot without a row keeps what it has."""
    count = len(x.idx_mapping)
    stops = (x.idx_mapping < 0) | (x.seq_lens < x.prompt_lens[x.idx_mapping.clamp(min=0)])
    sampled = torch.where(stops, 0, x.num_sampled)
    rejected = torch.where(stops, 0, torch.diff(x.cu_num_logits) - sampled)
    out.num_sampled[:count].copy_(sampled)
    out.num_rejected[:count].copy_(rejected)

    row, live = rows_of_slots(x.idx_mapping, len(x.num_computed_tokens))
    gained = torch.diff(x.query_start_loc[: count + 1]) - rejected
    out.num_computed_tokens.copy_(torch.where(live, x.num_computed_tokens + gained[row], out.num_computed_tokens))
    ns, tokens = torch.where(live, sampled[row], 0), x.sampled_tokens[row]
    out.num_accepted_tokens.copy_(torch.where(live, ns.clamp(min=1), out.num_accepted_tokens))
    newest = tokens.gather(1, (ns[:, None] - 1).clamp(min=0).long())[:, 0]
    out.last_sampled_tokens.copy_(torch.where(ns > 0, newest, out.last_sampled_tokens))

    new = columns < ns[:, None]
    width = out.all_token_ids.shape[1]
    place = (x.total_len[:, None] + columns) % width  # distinct in a row, also where a slot holds junk
    out.all_token_ids.scatter_(1, place, torch.where(new, tokens.int(), out.all_token_ids.gather(1, place)))
    if x.output_bin_counts is not None:
        # Junk is replaced by the row's first token, whose count is then stored several times.
        known = torch.where(new, tokens, torch.where(ns[:, None] > 0, tokens[:, :1], 0))
        occurs = ((known[:, :, None] == known[:, None, :]) & new[:, None, :]).sum(2)
        counts = torch.where(
            ns[:, None] > 0, x.output_bin_counts.gather(1, known) + occurs, out.output_bin_counts.gather(1, known)
        )
        out.output_bin_counts.scatter_(1, known, counts.int())
    if x.new_drafts is not None:
        out.draft_tokens.copy_(torch.where(live[:, None], x.new_drafts[row], out.draft_tokens))
    # Last, because it may be one array: the history is placed by the old lengths.
    out.total_len.copy_(torch.where(live, x.total_len + ns, out.total_len))


def set_up(point: Point, x: Inputs, out: Outputs, update: Callable[..., None] = update) -> Callable[[], None]:
    columns = torch.arange(point.next_n, device=out.total_len.device)
    return lambda: update(x, out, columns)


def on_device(point: Point) -> str | None:
    return "PyTorch cannot write to pinned memory from the device" if point.memory == "uva" else None


@variant("post_update", skip=on_device, waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Counts of the rows, then every array by slot: gather, select, copy; history and penalties by scatter."""
    return set_up(point, x, out)


_STEP = {"batch_size": BUSY_BATCH, "max_num_seqs": 270, "history_len": 300, "vocab_size": 500, "decode_len": "ragged"}
_EXAMPLES = (
    _STEP,
    _STEP | {"penalties": "on", "new_drafts": "yes"},
    {"batch_size": 1},
)


@variant("post_update", requires=COMPILER, skip=on_device, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the operator chain."""
    return set_up(point, x, out, compiled(update, set_up, operator, _EXAMPLES, out.total_len.device))
