"""paged_mqa_schedule: cut the paged-MQA-logits work of a batch into num_sms contiguous, nearly equal pieces.

A request of ``len`` KV tokens has ceil(len / 256) segments, each of them once per query atom (the query tokens that the
consumer handles together). Requests, their atoms and their segments in lexicographic order are the N units of the step.

    schedule[s] = (query, segment)          s = 0 .. num_sms, int32 (num_sms + 1, 2)

is the first unit of SM s and the end (exclusive) of SM s - 1; query = request * atoms + atom. Every SM gets N div
num_sms units, and N mod num_sms of them one more: the first ones (``remainder: front``, DeepGEMM 2.5.0) or the last
ones (``back``, DeepGEMM's SM90 kernel since June 2026). Where no unit is left the row is (B * atoms, 0). The consumer
skips requests without segments, so no row names one. Tables of different conventions are not interchangeable.

``context_lens`` is a matrix (B, L) whose last column is the request's length, or one length per request; a flattened
batch is one of T requests with next_n = 1. Lengths below zero (padding rows that no chain has clamped) count as zero:
read as uint32 they are 16.7 million segments (vLLM #51538). All lengths may be zero: a dummy run of length 1 is 1 //
compress_ratio 4 = 0 tokens.

Built once per decode step into a persistent table and read by every indexer layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from baselines.paged_mqa_schedule._forms import (
    MAX_UNITS,
    REMAINDER,
    SEGMENT,
    schedule_chain,
    schedule_rows,
    segments_of,
    starts_of,
    table_of_lens,
    table_of_segments,
)
from baselines.paged_mqa_schedule._points import HARD_POINTS, SEQUENCES
from baselines.workloads import axes
from baselines.workloads.decode_batch import make_batch
from baselines.workloads.integers import cdiv
from baselines.workloads.torch_compile import compiled
from harness.contract import COMPILER, Axis, Expected, Operator, Point, Rule, variant

LENS_LAYOUT = Axis(
    "lens_layout",
    axes.choice("2d", "1d"),
    "2d",
    "context_lens as (B, L), the last column being the request's length, or as [B]",
)
ATOMS = Axis(
    "atoms",
    axes.whole(1),
    lambda p: 1 if p.lens_layout == "1d" else cdiv(p.max_decode_len, 2),
    "query atoms per request, the factor on its segments; two tokens make an atom in DeepGEMM 2.5.0",
)
NUM_SMS = Axis(
    "num_sms",
    axes.whole(1),
    132,
    "pieces: SMs of the GPU (H200 132, H20 78, B200 148), half of them with 2-CTA clusters",
)


@dataclass(frozen=True)
class Inputs:
    context_lens: Tensor  # int32 [B] or [B, L], contiguous


@dataclass(frozen=True)
class Outputs:
    schedule: Tensor  # int32 [num_sms + 1, 2]


def make_inputs(point: Point, seed: int) -> Inputs:
    seq_lens = make_batch(point, seed).seq_lens
    if point.lens_layout == "2d":
        shifts = torch.arange(1 - point.max_decode_len, 1, dtype=torch.int32)
        seq_lens = (seq_lens[:, None] + shifts).clamp_(min=0)
    return Inputs(seq_lens // point.compress_ratio)


def make_outputs(point: Point) -> Outputs:
    return Outputs(torch.empty(point.num_sms + 1, 2, dtype=torch.int32))


def views(point: Point, out: Outputs) -> Mapping[str, Tensor]:
    return {"schedule": out.schedule[: point.num_sms + 1]}


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    lens = [row[-1] if isinstance(row, list) else row for row in x.context_lens.tolist()]
    rows = schedule_rows(lens, point.num_sms, point.atoms, point.remainder == "back")
    return {"schedule": Expected(torch.tensor(rows, dtype=torch.int32))}


def bytes_moved(point: Point, x: Inputs) -> int:
    """One length per request, all rows of the table."""
    return 4 * (point.batch_size + 2 * (point.num_sms + 1))


# --- PyTorch-op variants ----------------------------------------------------------------------------------------------


def _lens(x: Inputs) -> Tensor:
    """One length per request, [B]: a view."""
    return x.context_lens if x.context_lens.dim() == 1 else x.context_lens[:, -1]


def _chain(point: Point, x: Inputs, out: Outputs, make=table_of_lens):
    return schedule_chain(
        _lens(x), views(point, out)["schedule"], point.num_sms, point.atoms, point.remainder == "back", make
    )


@variant("paged_mqa_schedule", waives="no_alloc")
def op_chain(point, x, out):
    """Scan and searchsorted over whole tensors into a fresh table, copied into the persistent one."""
    return _chain(point, x, out)


_EXAMPLES = (
    {"batch_size": 24},
    {"batch_size": 24, "remainder": "back"},
    {"batch_size": 24, "next_n": 2},
    {"batch_size": 24, "next_n": 1},
    {"batch_size": 1},
    {"batch_size": 1, "next_n": 2},
)


@variant("paged_mqa_schedule", requires=COMPILER, waives="no_alloc")
def compiled_chain(point, x, out):
    """torch.compile (Inductor, dynamic shapes) of the chain; the copy stays outside, as in an engine."""
    return _chain(point, x, out, compiled(table_of_lens, _chain, operator, _EXAMPLES, x.context_lens.device))


# --- historic defects -------------------------------------------------------------------------------------------------


@variant(
    "paged_mqa_schedule",
    defect="negative lengths are read as uint32: 16.7 million segments (vLLM #51538)",
    waives="no_alloc",
)
def negative_length_unsigned(point, x, out):
    def table(lens, slots, num_sms, atoms, back):
        segments = ((lens.long() & 0xFFFFFFFF) + (SEGMENT - 1)) >> 8
        return table_of_segments(segments.int(), slots, num_sms, atoms, back)

    return _chain(point, x, out, table)


@variant(
    "paged_mqa_schedule",
    defect="made for whole requests, launched in atoms (modes mixed up, as in vLLM #55270)",
    waives="no_alloc",
)
def whole_requests_for_atoms(point, x, out):
    return _chain(point, x, out, lambda lens, slots, num_sms, atoms, back: table_of_lens(lens, slots, num_sms, 1, back))


@variant(
    "paged_mqa_schedule",
    defect="the search goes past the prefix where all lengths are zero and 32 divides B (DeepGEMM #353, vLLM #51970)",
    waives="no_alloc",
)
def search_past_prefix(point, x, out):
    """Upstream's search ends at B where no unit is left, and then reads prefix[B] of an array of B rounded up to 32
    entries: an unused entry, unless B fills its last chunk. There it faults; here 32 zeros that belong to somebody
    else follow the array, so that nothing outside an allocation is read, and the search runs on through them. The
    last row is written without a search.
    """
    room, size = cdiv(point.batch_size, 32) * 32, point.batch_size
    prefix = torch.zeros(room + 32, dtype=torch.int32, device=out.schedule.device)
    prefix[size:room] = torch.iinfo(torch.int32).max

    def table(lens, slots, num_sms, atoms, back):
        segments = segments_of(lens)
        torch.cumsum(segments * atoms, 0, dtype=torch.int32, out=prefix[:size])
        start = starts_of(prefix[size - 1], slots, num_sms, back)
        owner = (prefix <= start[:, None]).int().cumprod(dim=1).sum(dim=1)
        owner[-1] = size
        offset = start - pad(prefix, (1, 0))[owner]
        width = pad(segments, (0, room + 33 - size), value=1)[owner]
        return torch.stack((owner * atoms + offset // width, offset % width), dim=1)

    return _chain(point, x, out, table)


def _same_elsewhere(point: Point) -> str | None:
    if point.lens_layout == "1d" and point.max_decode_len < point.next_n:
        return "1-D lengths do not depend on max_decode_len"
    return axes.same_batch_elsewhere(point)


operator = Operator(
    name="paged_mqa_schedule",
    summary="the KV segments of a batch cut into one contiguous, nearly equal piece per SM, for paged MQA logits",
    axes=(
        axes.BATCH_SIZE,
        axes.NEXT_N,
        axes.MAX_DECODE_LEN,
        axes.CONTEXT_LEN,
        axes.MAX_MODEL_LEN,
        axes.PADDING,
        axes.COMPRESS_RATIO,
        LENS_LAYOUT,
        ATOMS,
        NUM_SMS,
        REMAINDER,
    ),
    make_inputs=make_inputs,
    make_outputs=make_outputs,
    views=views,
    reference=reference,
    bytes_moved=bytes_moved,
    baseline="op_chain",
    hard_points=HARD_POINTS,
    sequences=SEQUENCES,
    rules=(
        *axes.DECODE_STEP_RULES,
        Rule(
            "atoms ({atoms}) must not exceed max_decode_len ({max_decode_len})", lambda p: p.atoms <= p.max_decode_len
        ),
        Rule(
            "batch_size ({batch_size}) requests of max_model_len ({max_model_len}) tokens in {atoms} atoms must make fewer than "
            f"{MAX_UNITS} segments of {SEGMENT} tokens",
            lambda p: p.batch_size * p.atoms * cdiv(p.max_model_len, SEGMENT) < MAX_UNITS,
        ),
    ),
    redundant=_same_elsewhere,
)
