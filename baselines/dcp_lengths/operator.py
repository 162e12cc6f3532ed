"""dcp_lengths: how much of each request's context lies on one rank of decode context parallelism (DCP).

CP ranks take I tokens of every request in turn (the interleave), so position p lies on rank p // I % CP. For the real
rows of a step, and rank r:

    local_seq_lens[b] = positions p < seq_lens[b] with p // I % CP = r
                      = seq_lens[b] // (CP * I) * I + min(max(seq_lens[b] % (CP * I) - r * I, 0), I)
    local_seq_lens[b] = 0                                            behind the real rows, over the whole capacity

A rank may have nothing of a short request. Entries of seq_lens behind the real rows are not read. A replayed graph
reads a length for every captured row, hence the zeros.

vLLM 0.33 runs this once before the target's forward pass and once before each pass of the drafter:
v1/worker/gpu/cp_utils.py:prepare_dcp_local_seq_lens. I divides the block size there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from spec_decode_bench.baselines.compute_slot_mappings.operator import rank_of
from spec_decode_bench.baselines.dcp_lengths.cases import CONTENTS, EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.context_lengths import draw_lengths
from spec_decode_bench.baselines.workloads.decode_batch import int32
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point
from spec_decode_bench.harness.tensors import I32, Tensors

CP_SIZE = Axis(
    "cp_size",
    axes.whole(2, 1024),
    8,
    "ranks of decode context parallelism (CP)",
    largest=65,
    used={2: "two GPUs", 4: "half a node", 8: "a node"},
    idle=axes.has_no_request,
)
CP_RANK = Axis(
    "cp_rank",
    axes.choice("first", "middle", "last"),
    "first",
    "which of the context-parallel ranks this is",
    idle=axes.has_no_request,
)
CP_INTERLEAVE = Axis(
    "cp_interleave",
    axes.whole(1, 4096),
    1,
    "consecutive tokens of a context-parallel rank (I), up to those of a block",
    largest=257,
    used={64: "a block of FlashMLA", 128: "vLLM #51031"},
    idle=axes.has_no_request,
)
AXES = slots.bounded(
    axes.BATCH_SIZE,
    axes.CONTEXT_LEN,
    axes.MAX_MODEL_LEN,
    slots.PADDING,
    slots.MAX_NUM_SEQS,
    CP_SIZE,
    CP_RANK,
    CP_INTERLEAVE,
    axes.contents(CONTENTS),
)


def redundant(point: Point) -> str | None:
    if point.cp_size == 2 and point.cp_rank == "middle":
        return "of two ranks the middle one is the last"
    return axes.same_batch_elsewhere(point)


class Inputs(Tensors):
    seq_lens: I32["max_num_seqs"]  # KV tokens, this step's included; anything behind the real rows
    num_reqs: int  # real rows


class Outputs(Tensors):
    local_seq_lens: I32["max_num_seqs"]


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    real, lengths = slots.num_real(point), np.full(point.max_num_seqs, slots.UNUSED)
    drawn = draw_lengths(point.context_len, real, np.random.default_rng(seed))
    lengths[:real] = np.minimum(drawn, point.max_model_len)
    return Inputs(int32(lengths), real)


def ranks_of(point: Point) -> tuple[int, int, int]:
    """(CP, rank, interleave); of a single rank where a step has no such axes."""
    return (point.cp_size, rank_of(point), point.cp_interleave) if "cp_size" in point else (1, 0, 1)


def held_of(point: Point) -> Callable[[int], int]:
    """Tokens of a context -> those on this rank, all of them on a single one. Of the I tokens that a rank takes in a
    row, the j-th ones lie CP * I positions apart.
    """
    size, rank, interleave = ranks_of(point)
    if size == 1:
        return lambda length: length
    apart, first = size * interleave, rank * interleave

    @cache
    def held(length: int) -> int:
        return sum(len(range(first + j, length, apart)) for j in range(interleave))

    return held


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    """Request by request."""
    value = [0] * point.max_num_seqs
    value[: x.num_reqs] = map(held_of(point), x.seq_lens[: x.num_reqs].tolist())
    return {"local_seq_lens": Expected(int32(value))}


def bytes_moved(point: Point, x: Inputs) -> int:
    """A length per real row, and one written for every row of the buffer."""
    return 4 * (x.num_reqs + point.max_num_seqs)


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point, rows=False)


operator = Operator(
    name="dcp_lengths",
    summary="context of each request on one rank of decode context parallelism, 0 behind the batch",
    axes=AXES,
    rules=(axes.CONTEXT_FITS, axes.LENGTHS_FIT, slots.SEQS_FIT),
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    redundant=redundant,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
)
