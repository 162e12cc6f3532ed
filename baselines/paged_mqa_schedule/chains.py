"""paged_mqa_schedule in PyTorch operators: scan, search, split offsets into atom and segment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from spec_decode_bench.baselines.paged_mqa_schedule.operator import (
    Inputs,
    Outputs,
    operator,
    request_lens,
    with_indices,
)
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled
from spec_decode_bench.harness.contract import COMPILER, Point, variant

#: (lens int32 [B], slots int32 [num_sms + 1], num_sms, atoms, is_back) -> a fresh table, int32 [num_sms + 1, 2].
#: With indices, lens are [T] and atoms the ids, int32 [T]. slots: 0 .. num_sms. is_back: whether the last SMs get the
#: remainder.
MakeTable: TypeAlias = "Callable[[torch.Tensor, torch.Tensor, int, Any, bool], torch.Tensor]"


def segments_of(lens: torch.Tensor) -> torch.Tensor:
    """ceil(lens / 256), 0 for negative lengths, without a sum that overflows near 2^31."""
    return -(-lens.clamp(min=0) >> 8)


def starts_of(units: torch.Tensor, slots: torch.Tensor, num_sms: int, is_back: bool) -> torch.Tensor:
    """First unit of every SM, and N: [num_sms + 1]. units: N as a 0-d tensor, so that it never leaves the device."""
    share, rest = units // num_sms, units % num_sms
    return slots * share + ((slots - num_sms + rest).clamp(min=0) if is_back else torch.minimum(slots, rest))


def table_of_segments(
    segments: torch.Tensor, slots: torch.Tensor, num_sms: int, atoms: int, is_back: bool
) -> torch.Tensor:
    """The schedule from segments per request, [B]."""
    # ``ends`` is not a slice of ``before``: given a slice, Inductor of torch 2.11 fails or searches from the start of
    # its storage.
    ends = torch.cumsum(segments * atoms, 0, dtype=torch.int32)
    before = torch.nn.functional.pad(ends, (1, 0))
    start = starts_of(before[-1], slots, num_sms, is_back)
    owner = torch.searchsorted(ends, start, right=True, out_int32=True)
    offset = start - before[owner]
    if atoms == 1:
        return torch.stack((owner, offset), dim=1)
    width = torch.nn.functional.pad(segments, (0, 1), value=1)[owner]
    return torch.stack((owner * atoms + offset // width, offset % width), dim=1)


def table_of_lens(lens: torch.Tensor, slots: torch.Tensor, num_sms: int, atoms: int, is_back: bool) -> torch.Tensor:
    """The schedule from one length per request, [B]."""
    return table_of_segments(segments_of(lens), slots, num_sms, atoms, is_back)


def table_of_runs(
    lens: torch.Tensor, slots: torch.Tensor, num_sms: int, ids: torch.Tensor, is_back: bool
) -> torch.Tensor:
    """The schedule from a length and an id per token, [T]: every token has the segments of its run."""
    tokens = len(lens)
    token = torch.arange(tokens, device=lens.device)
    changes = ids[1:] != ids[:-1]
    first = torch.cummax(token * torch.nn.functional.pad(changes, (1, 0), value=True), 0).values
    behind = (tokens - 1 - token) * torch.nn.functional.pad(changes, (0, 1), value=True)
    last = tokens - 1 - torch.cummax(behind.flip(0), 0).values.flip(0)
    segments = segments_of(lens)[last]
    owner, offset = table_of_segments(segments, slots, num_sms, 1, is_back).unbind(1)
    begin = torch.nn.functional.pad(first, (0, 1), value=tokens)[owner]
    offset = offset + (owner - begin) * torch.nn.functional.pad(segments, (0, 1))[owner]
    return torch.stack((begin, offset // torch.nn.functional.pad(last + 1 - first, (0, 1), value=1)[owner]), dim=1)


def chain_of(point: Point) -> MakeTable:
    return table_of_runs if with_indices(point) else table_of_lens


def copy_fresh(point: Point, x: Inputs, out: Outputs, make_table: MakeTable | None = None) -> Callable[[], None]:
    """A fresh table, as upstream's call returns it, then a copy into the persistent one."""
    make_table = make_table or chain_of(point)
    lens, target = request_lens(x), out.views(point)["schedule"]
    num_sms, atoms, is_back = point.num_sms, point.atoms, point.remainder == "back"
    if with_indices(point):
        atoms = x.indices
    slots = torch.arange(num_sms + 1, dtype=torch.int32, device=target.device)

    def launch():
        target.copy_(make_table(lens, slots, num_sms, atoms, is_back))

    return launch


@variant("paged_mqa_schedule", waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Scan and searchsorted over whole tensors into a fresh table, copied into the persistent one."""
    return copy_fresh(point, x, out)


#: Points that compiled_chain is compiled for: general sizes, the other remainder, one or two tokens, one request.
_EXAMPLES = (
    {"batch_size": BUSY_BATCH},
    {"batch_size": BUSY_BATCH, "remainder": "back"},
    {"batch_size": BUSY_BATCH, "next_n": 2},
    {"batch_size": BUSY_BATCH, "next_n": 1},
    {"batch_size": 1},
    {"batch_size": 1, "next_n": 2},
)
_RUNS = (
    {"batch_size": BUSY_BATCH, "indices": "yes"},
    {"batch_size": BUSY_BATCH, "indices": "yes", "remainder": "back"},
)


@variant("paged_mqa_schedule", requires=COMPILER, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the chain; the copy stays outside, as in an engine."""
    examples = _RUNS if with_indices(point) else _EXAMPLES
    chain = compiled(chain_of(point), copy_fresh, operator, examples, x.context_lens.device)
    return copy_fresh(point, x, out, chain)
