"""draft_inputs from PyTorch operators, and compiled."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.draft_inputs.operator import Inputs, Outputs, operator
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled, row_of
from spec_decode_bench.harness.contract import COMPILER, Point, variant


def first_pass(x: Inputs, out: Outputs, tokens: torch.Tensor, following: torch.Tensor) -> None:
    """tokens: [A] int64, 0 .. A - 1. following: the same + 1, inside the buffer."""
    rows, count = len(x.seq_lens), len(tokens)
    starts = x.query_start_loc[: rows + 1]
    kept = torch.diff(starts) - x.num_rejected
    end = (starts[:-1] + kept - 1).long()
    row = row_of(starts, tokens).clamp(max=rows - 1)
    left = kept[row] - (tokens - starts[:-1][row])  # kept tokens of the row from this one on
    out.input_ids[:count].copy_(torch.where(left > 1, x.target_input_ids[following], out.input_ids[:count]))
    out.input_ids[end] = torch.where(
        x.num_sampled > 0, x.last_sampled_tokens[x.idx_mapping], x.next_prefill_tokens[x.idx_mapping]
    ).int()
    out.positions[:count].copy_(torch.where(left > 0, x.target_positions[:count], out.positions[:count]))
    out.last_token_indices[:rows].copy_(end)
    out.last_token_indices[rows:].zero_()
    out.seq_lens[:rows].copy_(x.seq_lens)
    out.seq_lens[rows:].zero_()
    out.query_start_loc.copy_(x.query_start_loc)
    out.current_draft_step.zero_()


def second_pass(x: Inputs, out: Outputs, boundaries: torch.Tensor, most: int, advance: bool) -> None:
    """boundaries: [R + 1] int32, 0, 1 .. B, B .."""
    rows = len(x.seq_lens)
    out.input_ids[:rows].copy_(x.draft_tokens[:, 0])
    torch.add(x.positions_before, 2, out=out.sample_src_positions[:rows])
    length = x.seq_lens - x.num_rejected
    out.positions[:rows].copy_((x.positions_before + 1).clamp(max=most - 1) if advance else x.positions_before)
    out.seq_lens[:rows].copy_(length.clamp(max=most - 1) + 1 if advance else length)
    out.seq_lens[rows:].zero_()
    out.query_start_loc.copy_(boundaries)


def later_pass(x: Inputs, out: Outputs, columns: torch.Tensor, most: int, advance: bool) -> None:
    """columns: [k] int64, 0 .. k - 1. After the last pass everything but the drafts is written back as it was."""
    rows = len(x.seq_lens)
    more = x.current_draft_step < len(columns) - 1
    out.draft_tokens[:rows].copy_(
        torch.where(columns == x.current_draft_step, x.sampled[:, None], out.draft_tokens[:rows])
    )
    pos = (x.positions_before + 1).clamp(max=most - 1) if advance else x.positions_before
    lens = x.seq_lens_before.clamp(max=most - 1) + 1 if advance else x.seq_lens_before
    out.input_ids[:rows].copy_(torch.where(more, x.sampled.int(), out.input_ids[:rows]))
    out.positions[:rows].copy_(torch.where(more, pos, out.positions[:rows]))
    out.seq_lens[:rows].copy_(torch.where(more, lens, out.seq_lens[:rows]))
    out.sample_src_positions[:rows].copy_(
        torch.where(more, x.sample_src_positions_before + 1, out.sample_src_positions[:rows])
    )
    out.hidden_states[:rows].copy_(torch.where(more, x.hidden_states_before, out.hidden_states[:rows]))


def set_up_first(point: Point, x: Inputs, out: Outputs, fill: Callable[..., None] = first_pass) -> Callable[[], None]:
    tokens = torch.arange(x.num_tokens, device=out.input_ids.device)
    following = (tokens + 1).clamp(max=len(out.input_ids) - 1)
    return lambda: fill(x, out, tokens, following)


def set_up_second(point: Point, x: Inputs, out: Outputs, fill: Callable[..., None] = second_pass) -> Callable[[], None]:
    boundaries = torch.arange(len(out.query_start_loc), dtype=torch.int32, device=out.input_ids.device).clamp(
        max=len(x.seq_lens)
    )
    return lambda: fill(x, out, boundaries, point.max_model_len, point.advance == "yes")


def set_up_later(point: Point, x: Inputs, out: Outputs, fill: Callable[..., None] = later_pass) -> Callable[[], None]:
    columns = torch.arange(point.next_n - 1, device=out.input_ids.device)
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


_STEP = {
    "batch_size": BUSY_BATCH,
    "max_num_seqs": 270,
    "next_n": 6,
    "decode_len": "ragged",
    "max_num_batched_tokens": 2000,
}


@variant("draft_inputs", requires=COMPILER, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the operator chain."""
    set_up, chain = _PASSES[point.draft_pass]
    examples = [
        step | {"draft_pass": point.draft_pass, "advance": advance}
        for step in (_STEP, {"batch_size": 1})
        for advance in ("yes", "no")
    ]
    return set_up(point, x, out, compiled(chain, set_up, operator, examples, out.input_ids.device))
