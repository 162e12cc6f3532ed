"""draft_inputs from PyTorch operators, and compiled."""

from __future__ import annotations

from collections.abc import Callable

import torch

from baselines.draft_inputs.operator import Inputs, Outputs, operator
from baselines.workloads.torch_compile import compiled, row_of
from harness.contract import COMPILER, Point, variant


def first_pass(x: Inputs, out: Outputs, tokens: torch.Tensor, following: torch.Tensor) -> None:
    """tokens: [A] int64, 0 .. A - 1. following: the same + 1, inside the buffer."""
    rows, count = len(x.seq_lens), len(tokens)
    starts = x.query_start_loc[: rows + 1]
    kept = torch.diff(starts) - x.num_rejected
    end = (starts[:-1] + kept - 1).long()
    row = row_of(starts, tokens).clamp(max=rows - 1)
    left = kept[row] - (tokens - starts[:-1][row])  # kept tokens of the row from this one on
    out.ids[:count].copy_(torch.where(left > 1, x.target_ids[following], out.ids[:count]))
    out.ids[end] = torch.where(x.num_sampled > 0, x.last[x.idx_mapping], x.next_prefill[x.idx_mapping]).int()
    out.pos[:count].copy_(torch.where(left > 0, x.target_pos[:count], out.pos[:count]))
    out.last_index[:rows].copy_(end)
    out.last_index[rows:].zero_()
    out.lens[:rows].copy_(x.seq_lens)
    out.lens[rows:].zero_()
    out.starts.copy_(x.query_start_loc)
    out.step.zero_()


def second_pass(x: Inputs, out: Outputs, boundaries: torch.Tensor, most: int, advance: bool) -> None:
    """boundaries: [R + 1] int32, 0, 1 .. B, B .."""
    rows = len(x.seq_lens)
    out.ids[:rows].copy_(x.drafts[:, 0])
    torch.add(x.pos_before, 2, out=out.src[:rows])
    length = x.seq_lens - x.num_rejected
    out.pos[:rows].copy_((x.pos_before + 1).clamp(max=most - 1) if advance else x.pos_before)
    out.lens[:rows].copy_(length.clamp(max=most - 1) + 1 if advance else length)
    out.lens[rows:].zero_()
    out.starts.copy_(boundaries)


def later_pass(x: Inputs, out: Outputs, columns: torch.Tensor, most: int, advance: bool) -> None:
    """columns: [k] int64, 0 .. k - 1. After the last pass everything but the drafts is written back as it was."""
    rows = len(x.seq_lens)
    more = x.step < len(columns) - 1
    out.drafts[:rows].copy_(torch.where(columns == x.step, x.sampled[:, None], out.drafts[:rows]))
    pos = (x.pos_before + 1).clamp(max=most - 1) if advance else x.pos_before
    lens = x.lens_before.clamp(max=most - 1) + 1 if advance else x.lens_before
    out.ids[:rows].copy_(torch.where(more, x.sampled.int(), out.ids[:rows]))
    out.pos[:rows].copy_(torch.where(more, pos, out.pos[:rows]))
    out.lens[:rows].copy_(torch.where(more, lens, out.lens[:rows]))
    out.src[:rows].copy_(torch.where(more, x.src_before + 1, out.src[:rows]))
    out.hidden[:rows].copy_(torch.where(more, x.hidden_before, out.hidden[:rows]))


def set_up_first(point: Point, x: Inputs, out: Outputs, fill: Callable[..., None] = first_pass) -> Callable[[], None]:
    tokens = torch.arange(x.num_tokens, device=out.ids.device)
    following = (tokens + 1).clamp(max=len(out.ids) - 1)
    return lambda: fill(x, out, tokens, following)


def set_up_second(point: Point, x: Inputs, out: Outputs, fill: Callable[..., None] = second_pass) -> Callable[[], None]:
    boundaries = torch.arange(len(out.starts), dtype=torch.int32, device=out.ids.device).clamp(max=len(x.seq_lens))
    return lambda: fill(x, out, boundaries, point.max_model_len, point.advance == "yes")


def set_up_later(point: Point, x: Inputs, out: Outputs, fill: Callable[..., None] = later_pass) -> Callable[[], None]:
    columns = torch.arange(point.next_n - 1, device=out.ids.device)
    return lambda: fill(x, out, columns, point.max_model_len, point.advance == "yes")


_PASSES = {
    "first": (set_up_first, first_pass),
    "second": (set_up_second, second_pass),
    "later": (set_up_later, later_pass),
}


@variant("draft_inputs", waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Row of every token by search, masked shift, tails; in further passes an add, a clamp and a copy per buffer."""
    return _PASSES[point.draft_pass][0](point, x, out)


_STEP = {"batch_size": 24, "max_num_seqs": 40, "next_n": 6, "decode_len": "ragged", "max_num_batched_tokens": 300}


@variant("draft_inputs", requires=COMPILER, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the operator chain."""
    set_up, chain = _PASSES[point.draft_pass]
    examples = [
        step | {"draft_pass": point.draft_pass, "advance": advance}
        for step in (_STEP, {"batch_size": 1})
        for advance in ("yes", "no")
    ]
    return set_up(point, x, out, compiled(chain, set_up, operator, examples, out.ids.device))
