"""Historic bugs of paged_mqa_schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spec_decode_bench.baselines.paged_mqa_schedule.chains import (
    copy_fresh,
    segments_of,
    starts_of,
    table_of_lens,
    table_of_segments,
)
from spec_decode_bench.baselines.paged_mqa_schedule.operator import SEGMENT, Inputs, Outputs, with_indices
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Point, variant


def _by_request(point: Point) -> str | None:
    return "lengths are by token" if with_indices(point) else None


def _by_token(point: Point) -> str | None:
    return None if with_indices(point) else "lengths are by request"


def _one_by_one(lens: torch.Tensor, slots: torch.Tensor, num_sms: int, atoms: Any, is_back: bool) -> torch.Tensor:
    """As if no length had company: one atom per request, or no runs of tokens."""
    return table_of_lens(lens, slots, num_sms, 1, is_back)


@variant(
    "paged_mqa_schedule",
    defect="negative lengths are read as uint32: 16.7 million segments (vLLM #51538)",
    skip=_by_request,
)
def negative_length_unsigned(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    def table(lens, slots, num_sms, atoms, is_back):
        segments = ((lens.long() & 0xFFFFFFFF) + (SEGMENT - 1)) >> 8
        return table_of_segments(segments.int(), slots, num_sms, atoms, is_back)

    return copy_fresh(point, x, out, table)


@variant(
    "paged_mqa_schedule",
    defect="the schedule is built for whole requests and launched in atoms (mixed modes, as in vLLM #55270)",
    skip=_by_request,
)
def whole_requests_for_atoms(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return copy_fresh(point, x, out, _one_by_one)


@variant(
    "paged_mqa_schedule",
    defect="the schedule is cut for the rows of the persistent table, not for those of the producer",
)
def cut_for_the_table(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The consumer reads num_sms + 1 rows, and so leaves out the work of the others."""
    return copy_fresh(Point({**point, "num_sms": len(out.schedule) - 1}), x, out)


@variant(
    "paged_mqa_schedule",
    defect="the search runs past the prefix sums if all lengths are 0 and 32 divides B (DeepGEMM #353, vLLM #51970)",
    skip=_by_request,
)
def search_past_prefix(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Upstream's search ends at B where no unit is left, and then reads prefix[B] of an array of B rounded up to 32
    entries: an unused entry, unless B fills its last chunk. There it faults; here 32 unrelated zeros follow the
    array, so that nothing outside an allocation is read, and the search runs on through them. The last row is
    written without a search.
    """
    room, size = cdiv(point.batch_size, 32) * 32, point.batch_size
    prefix = torch.zeros(room + 32, dtype=torch.int32, device=out.schedule.device)
    prefix[size:room] = torch.iinfo(torch.int32).max

    def table(lens, slots, num_sms, atoms, is_back):
        segments = segments_of(lens)
        torch.cumsum(segments * atoms, 0, dtype=torch.int32, out=prefix[:size])
        start = starts_of(prefix[size - 1], slots, num_sms, is_back)
        owner = (prefix <= start[:, None]).int().cumprod(dim=1).sum(dim=1)
        owner[-1] = size
        offset = start - torch.nn.functional.pad(prefix, (1, 0))[owner]
        width = torch.nn.functional.pad(segments, (0, room + 33 - size), value=1)[owner]
        return torch.stack((owner * atoms + offset // width, offset % width), dim=1)

    return copy_fresh(point, x, out, table)


@variant(
    "paged_mqa_schedule",
    defect="the schedule is built for single tokens and launched for runs (ids on one side only, vLLM #55270)",
    skip=_by_token,
)
def tokens_for_runs(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return copy_fresh(point, x, out, _one_by_one)


@variant(
    "paged_mqa_schedule",
    defect="the segments of a run count once instead of once per token, so SMs with long runs are the last to finish",
    skip=_by_token,
)
def runs_count_once(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    def table(lens, slots, num_sms, ids, is_back):
        last = torch.nn.functional.pad(ids[1:] != ids[:-1], (0, 1), value=True)
        query, segment = table_of_lens(lens * last, slots, num_sms, 1, is_back).unbind(1)
        first = torch.searchsorted(ids, torch.nn.functional.pad(ids, (0, 1))[query], out_int32=True)
        return torch.stack((torch.where(query < len(ids), first, query), segment), dim=1)

    return copy_fresh(point, x, out, table)
