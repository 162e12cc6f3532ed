"""paged_mqa_schedule: cut the paged-MQA-logits work of a batch into num_sms contiguous, nearly equal pieces.

A request of ``len`` KV tokens has ceil(len / 256) segments, once per query atom (the query tokens that the consumer
handles together). Requests, their atoms and their segments in lexicographic order are the N units of the step.

    schedule[s] = (query, segment)          s = 0 .. num_sms, int32 (num_sms + 1, 2)

is the first unit of SM s and the exclusive end of SM s - 1; query = request * atoms + atom. Every SM gets N div num_sms
units, and N mod num_sms SMs get one more: the first ones (``remainder: front``, DeepGEMM 2.5.0) or the last ones
(``back``, DeepGEMM's SM90 kernel since June 2026). Where no unit is left the row is (B * atoms, 0). The consumer skips
requests without segments, so no row names one.

Tokens of one request may also be found by their ids (``indices``, one per token of a flattened step; DeepGEMM's SM100
kernel since June 2026): a request is a run of n equal ids side by side, has the length of its last token, and its
ceil(len / 256) segments count n times. The consumer takes all n tokens of a segment at once, so a row names the first
token of the run and the segment (offset in the run's units) div n; the end of the batch is (T, 0).

``context_lens`` is a matrix (B, L) whose last column is the request's length, or one length per request; a flattened
batch is a batch of T requests with next_n = 1. Negative lengths (padding rows that no chain has clamped) count as zero:
read as uint32, one of them is 16.7 million segments (vLLM #51538). All lengths may be zero: a dummy run of length 1
with compress_ratio 4.

Where the table has room for more pieces than the producer makes (``table_rows``, vLLM 0.33), rows behind the last one
keep their contents.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch

from spec_decode_bench.baselines.paged_mqa_schedule.cases import CONTENTS, EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads.decode_batch import Batch, make_batch
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I32, Tensors, field

#: KV tokens of one segment: four blocks of 64.
SEGMENT = 256
#: A legal step has fewer units than this, so that kernels can divide by num_sms with ``reciprocal``. A batch of 8192
#: requests of a million tokens has 2^25 segments.
MAX_UNITS = 2**30

INDICES = Axis(
    "indices",
    axes.choice("no", "yes"),
    "no",
    "whether lengths come by token, B x L of them, with the id of each token's request",
)
LENS_LAYOUT = Axis(
    "lens_layout",
    axes.choice("2d", "1d"),
    lambda p: "1d" if with_indices(p) else "2d",
    "context_lens as (B, L), the last column being the request's length, or as [B]",
)
ATOMS = Axis(
    "atoms",
    axes.whole(1),
    lambda p: 1 if p.lens_layout == "1d" else cdiv(p.max_decode_len, 2),
    "query atoms per request, the factor on its segments; two tokens make an atom in DeepGEMM 2.5.0",
)
NUM_SMS = axes.num_sms("pieces: SMs of the GPU (H200 132, H20 78, B200 148), half of them with 2-CTA clusters")
REMAINDER = Axis(
    "remainder",
    axes.choice("front", "back"),
    "front",
    "which SMs get one unit more where num_sms does not divide the work",
)
TABLE_ROWS = Axis(
    "table_rows",
    axes.whole(2),
    lambda p: p.num_sms + 1,
    "rows of the persistent table, of which the first num_sms + 1 are written",
    largest=1024,
)


def with_indices(point: Point) -> bool:
    return point.indices == "yes"


def _lens_shape(point: Point) -> tuple[int, ...]:
    if with_indices(point):
        return (point.batch_size * point.max_decode_len,)
    return (point.batch_size, point.max_decode_len) if point.lens_layout == "2d" else (point.batch_size,)


class Inputs(Tensors):
    context_lens: I32[_lens_shape]  # [B], or [B, L] with the request's length in the last column; [T] with indices
    # T = B * L: the request of each token, an id of its own for padding
    indices: I32["batch_size * max_decode_len"] = field(where=with_indices)


class Outputs(Tensors):
    schedule: I32["table_rows", 2] = field(read="num_sms + 1")


def request_lens(x: Inputs) -> torch.Tensor:
    """One length per request (with indices, per token): int32 [B], a view that may be strided."""
    return x.context_lens if x.context_lens.dim() == 1 else x.context_lens[:, -1]


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    batch = make_batch(point, seed)
    lens = batch.seq_lens
    if with_indices(point):
        return _by_token(point, batch)
    if point.lens_layout == "2d":
        shifts = torch.arange(1 - point.max_decode_len, 1, dtype=torch.int32)
        lens = (lens[:, None] + shifts).clamp_(min=0)
    return Inputs(lens // point.compress_ratio)


def _by_token(point: Point, batch: Batch) -> Inputs:
    """As decode_flatten writes them for a step that was captured for B * L tokens."""
    rows, tokens = batch.decode_lens.long(), point.batch_size * point.max_decode_len
    owner = torch.repeat_interleave(torch.arange(point.batch_size), rows)
    ahead = batch.query_start_loc[1:].long()[owner] - 1 - torch.arange(len(owner))
    lens, indices = torch.zeros(tokens, dtype=torch.int64), torch.arange(tokens) + point.batch_size - len(owner)
    lens[: len(owner)] = (batch.seq_lens[owner] - ahead).clamp(min=0)
    indices[: len(owner)] = owner
    return Inputs(lens.int() // point.compress_ratio, indices=indices.int())


LETTERS = {"schedule": ("s", lambda point: ("query", "segment"))}


def runs(x: Inputs) -> list[tuple[int, int]]:
    """(first token, tokens) of each run of equal ids."""
    ids = x.indices.tolist()
    starts = [t for t, owner in enumerate(ids) if t == 0 or ids[t - 1] != owner]
    return [(start, end - start) for start, end in pairwise([*starts, len(ids)])]


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    """SM by SM, walking over the requests."""
    num_sms, lens = point.num_sms, request_lens(x).tolist()
    if with_indices(point):
        requests = [(first, count, lens[first + count - 1]) for first, count in runs(x)]
    else:
        requests = [(b * point.atoms, point.atoms, length) for b, length in enumerate(lens)]
    requests = [(first, factor, cdiv(max(length, 0), SEGMENT)) for first, factor, length in requests]
    share, rest = divmod(sum(factor * segments for _, factor, segments in requests), num_sms)
    longer = range(num_sms - rest, num_sms) if point.remainder == "back" else range(rest)
    rows, start, request, passed = [], 0, 0, 0
    for sm in range(num_sms + 1):
        while request < len(requests) and passed + requests[request][1] * requests[request][2] <= start:
            passed += requests[request][1] * requests[request][2]
            request += 1
        if request == len(requests):
            rows.append((len(lens) * point.atoms, 0))
        elif with_indices(point):
            first, count, _ = requests[request]
            rows.append((first, (start - passed) // count))
        else:
            first, _, segments = requests[request]
            atom, segment = divmod(start - passed, segments)
            rows.append((first + atom, segment))
        start += share + (sm in longer)
    unused = point.table_rows - len(rows)
    table = torch.tensor(rows + [(0, 0)] * unused, dtype=torch.int32)
    if not unused:
        return {"schedule": Expected(table)}
    return {"schedule": Expected(table, untouched=(torch.arange(len(table)) >= len(rows))[:, None].expand(-1, 2))}


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point, rows=False)


def bytes_moved(point: Point, x: Inputs) -> int:
    """One length per request, the id of every token, all rows that the producer makes."""
    read = len(x.indices) + len(runs(x)) if with_indices(point) else point.batch_size
    return 4 * (read + 2 * (point.num_sms + 1))


def same_elsewhere(point: Point) -> str | None:
    """Why another point measures the same."""
    if not with_indices(point) and point.decode_len != "uniform":
        return "lengths by request do not depend on decode_len"
    if not with_indices(point) and point.lens_layout == "1d" and point.max_decode_len < point.next_n:
        return "1-D lengths do not depend on max_decode_len"
    return axes.same_batch_elsewhere(point)


operator = Operator(
    name="paged_mqa_schedule",
    summary="the KV segments of a batch cut into one contiguous, nearly equal piece per SM, for paged MQA logits",
    axes=(
        *axes.DECODE_STEP,
        axes.COMPRESS_RATIO,
        INDICES,
        LENS_LAYOUT,
        ATOMS,
        NUM_SMS,
        REMAINDER,
        TABLE_ROWS,
        axes.contents(CONTENTS),
    ),
    indices=LETTERS,
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
    rules=(
        *axes.DECODE_STEP_RULES,
        Rule(
            "atoms ({atoms}) must not exceed max_decode_len ({max_decode_len})", lambda p: p.atoms <= p.max_decode_len
        ),
        Rule(
            "batch_size ({batch_size}) requests of max_model_len ({max_model_len}) tokens in {atoms} atoms must make "
            f"fewer than {MAX_UNITS} segments of {SEGMENT} tokens",
            lambda p: (
                p.batch_size * (p.max_decode_len if with_indices(p) else p.atoms) * cdiv(p.max_model_len, SEGMENT)
                < MAX_UNITS
            ),
        ),
        Rule(
            "indices are by token: lens_layout ({lens_layout}) must be 1d, atoms ({atoms}) 1",
            lambda p: not with_indices(p) or (p.lens_layout == "1d" and p.atoms == 1),
        ),
        Rule("table_rows ({table_rows}) must exceed num_sms ({num_sms})", lambda p: p.table_rows > p.num_sms),
    ),
    redundant=same_elsewhere,
)
