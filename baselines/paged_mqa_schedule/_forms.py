"""Two forms of the paged-MQA schedule: the scalar loop, and a chain of torch operators into a fresh table."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from baselines.workloads.axes import choice
from baselines.workloads.integers import cdiv
from harness.contract import Axis

#: KV tokens of one segment: four blocks of 64.
SEGMENT = 256
#: Units of a step stay below this, so that kernels divide by num_sms with one 64-bit product. A batch of 8192 requests
#: of a million tokens has 2^25 segments.
MAX_UNITS = 2**30

REMAINDER = Axis(
    "remainder", choice("front", "back"), "front", "which SMs get one unit more where num_sms does not divide the work"
)


def schedule_rows(lens: Sequence[int], num_sms: int, atoms: int, back: bool) -> list[tuple[int, int]]:
    """num_sms + 1 rows (query, segment), SM by SM."""
    segments = [cdiv(max(length, 0), SEGMENT) for length in lens]
    share, rest = divmod(sum(segments) * atoms, num_sms)
    longer = range(num_sms - rest, num_sms) if back else range(rest)
    rows, start, request, passed = [], 0, 0, 0
    for sm in range(num_sms + 1):
        while request < len(lens) and passed + segments[request] * atoms <= start:
            passed += segments[request] * atoms
            request += 1
        atom, segment = divmod(start - passed, segments[request]) if request < len(lens) else (0, 0)
        rows.append((request * atoms + atom, segment))
        start += share + (sm in longer)
    return rows


def _slots(num_sms: int, device: torch.device) -> Tensor:
    return torch.arange(num_sms + 1, dtype=torch.int32, device=device)


def segments_of(lens: Tensor) -> Tensor:
    """ceil(lens / 256) without a sum that overflows near 2^31."""
    return -(-lens.clamp(min=0) >> 8)


def starts_of(units: Tensor, slots: Tensor, num_sms: int, back: bool) -> Tensor:
    """First unit of every SM, and N. units: N, a 0-d tensor: it never leaves the device."""
    share, rest = units // num_sms, units % num_sms
    return slots * share + ((slots - num_sms + rest).clamp(min=0) if back else torch.minimum(slots, rest))


def table_of_segments(segments: Tensor, slots: Tensor, num_sms: int, atoms: int, back: bool) -> Tensor:
    """The schedule as a fresh tensor from segments [B]: scan, search, split offsets into atom and segment."""
    # ``ends`` is no slice of ``before``: Inductor of torch 2.11 searches a slice from the start of its storage, or
    # fails.
    ends = torch.cumsum(segments * atoms, 0, dtype=torch.int32)
    before = pad(ends, (1, 0))
    start = starts_of(before[-1], slots, num_sms, back)
    owner = torch.searchsorted(ends, start, right=True, out_int32=True)
    offset = start - before[owner]
    if atoms == 1:
        return torch.stack((owner, offset), dim=1)
    width = pad(segments, (0, 1), value=1)[owner]
    return torch.stack((owner * atoms + offset // width, offset % width), dim=1)


def table_of_lens(lens: Tensor, slots: Tensor, num_sms: int, atoms: int, back: bool) -> Tensor:
    return table_of_segments(segments_of(lens), slots, num_sms, atoms, back)


def schedule_chain(lens: Tensor, target: Tensor, num_sms: int, atoms: int, back: bool, make=table_of_lens):
    """``make`` makes a fresh tensor, as upstream's call does; a copy puts it into the persistent one, ``target``."""
    slots = _slots(num_sms, target.device)

    def launch():
        target.copy_(make(lens, slots, num_sms, atoms, back))

    return launch
