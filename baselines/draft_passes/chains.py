"""draft_passes from PyTorch operators, pass after pass."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.compute_slot_mappings import chains as compute_slot_mappings
from spec_decode_bench.baselines.dcp_lengths.chains import local_lengths
from spec_decode_bench.baselines.dcp_lengths.operator import ranks_of
from spec_decode_bench.baselines.draft_passes.operator import (
    Inputs,
    Outputs,
    passes,
    schedule_part,
    slots_part,
    with_indexer,
    with_ranks,
)
from spec_decode_bench.baselines.paged_mqa_schedule import chains as paged_mqa_schedule
from spec_decode_bench.baselines.workloads.request_slots import num_real
from spec_decode_bench.harness.contract import Point, variant


def advance(out: Outputs, i: int, length: torch.Tensor, most: int, further: int) -> None:
    """Positions, lengths and keys of pass i from the kept tokens of the rows; further: tokens ahead of them."""
    real = len(length)
    torch.add(length, i, out=out.sample_src_positions[i - 1, :real])
    out.positions[i - 1, :real].copy_((length + (further - 1)).clamp(max=most - 1))
    out.seq_lens[i - 1, :real].copy_((length + further).clamp(max=most))
    out.seq_lens[i - 1, real:].zero_()


def localized(out: Outputs, i: int, ranks: tuple[int, int, int]) -> Callable[[], None]:
    lengths, local = out.seq_lens[i - 1], out.local_seq_lens[i - 1]
    return lambda: local.copy_(local_lengths(lengths, ranks))


def set_up(point: Point, x: Inputs, out: Outputs, ahead: Callable[[int], int]) -> Callable[[], None]:
    """ahead: tokens by which the positions of pass i lie ahead of the last kept token."""
    real, most = num_real(point), point.max_model_len
    boundaries = torch.arange(point.max_num_seqs + 1, dtype=torch.int32, device=out.positions.device).clamp(max=real)
    length = torch.empty(real, dtype=torch.int64, device=out.positions.device)
    parts = []
    for i in range(1, passes(point) + 1):
        made = [compute_slot_mappings.op_chain(*slots_part(point, x, out, i))]
        if with_indexer(point):
            made.append(paged_mqa_schedule.op_chain(*schedule_part(point, x, out, i)))
        if with_ranks(point):
            made.append(localized(out, i, ranks_of(point)))
        parts.append((i, ahead(i), made))

    def launch() -> None:
        out.query_start_loc.copy_(boundaries)
        torch.sub(x.seq_lens[:real], x.num_rejected[:real], out=length)
        for i, further, made in parts:
            advance(out, i, length, most, further)
            for part in made:
                part()

    return launch


# There is no compiled_chain: draft_inputs, compute_slot_mappings and paged_mqa_schedule have theirs.
@variant("draft_passes", waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Per pass: an add, two clamps and copies, the chains of slot mappings and schedule."""
    return set_up(point, x, out, lambda i: i if point.advance == "yes" else 0)
