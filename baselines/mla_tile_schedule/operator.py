"""mla_tile_schedule: FlashMLA's split-KV schedule, B requests over P persistent parts: long ones split, short packed.

A request of length s costs blocks(s) + overhead, with blocks of 64 tokens. Parts take work in request order:

    payload = ceil(sum over requests of (blocks + overhead) / P) + overhead
    for every part:  while a request is left and payload allows: finish it, and pay blocks left + overhead
                     else if more than the overhead is left: take that many blocks of the request, and stop

tile_scheduler_metadata[p], int32 (P, 8), is the row of part p. num_splits, int32 (B + 1), is the exclusive prefix sum
of the number of parts that work on each request; the combine kernel reads it. Two layouts of a row are in use:

    int    old (FlashMLA's FP8 extension in vLLM)              new (FlashMLA since January 2026)
    0      begin request                                       begin request
    1      begin token                                         end request, inclusive
    2      end request, inclusive                              begin block
    3      end token, exclusive (the length where finished)    end block, exclusive (0 where the length is 0)
    4      begin split                                         begin split
    5      not written                                         first request is split
    6      not written                                         last request is split
    7      not written                                         not written

The new layout counts a zero length as one block, the old one as zero blocks. Parts without work start at request B;
consumers read only int 0 of their rows. What is not written may hold anything. Rows past P and entries past B + 1 keep
their contents.

P depends only on SMs, heads and query rows, so it is constant for a CUDA graph. The extension returns fresh tensors,
which the caller must copy into persistent buffers: a graph that captured the fresh ones reads memory that has been
reused since (vLLM #35175).

An equivalent form, on which fresh_copy and the fused kernels are built: let pre[i] be the cost of all requests before i
and w = payload - overhead. A part that starts at block c of request i starts at x = pre[i] + c. The next part starts at
x + w, or at the last pre[j] in [x + w, x + w + overhead] if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from spec_decode_bench.baselines.mla_tile_schedule.cases import CONTENTS, EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads.decode_batch import make_batch
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I32, Tensors, field

#: KV tokens of a block of work, independent of the page size of the cache.
BLOCK_N = 64
#: Query rows (tokens x heads) that one CTA of the attention kernel takes.
BLOCK_M = 64
#: Leading ints of a row that are written; consumers read no others.
FIELDS = {"old": 5, "new": 7}
FIELD_NAMES = {
    "old": ("begin request", "begin token", "end request", "end token", "begin split"),
    "new": (
        *("begin request", "end request", "begin block", "end block", "begin split"),
        *("first request is split", "last request is split"),
    ),
}
LETTERS = {"tile_scheduler_metadata": ("p", lambda point: FIELD_NAMES[point.layout])}


def unbounded_parts(point: Point) -> int:
    """SMs over CTAs per token tile, as the FP8 extension derives P: 0 where there are more CTAs than SMs. Ranks that
    share a context gather their heads.
    """
    heads = point.num_heads_q * point.get("cp_size", 1)
    return point.num_sms // cdiv(point.max_decode_len * heads, BLOCK_M)


NUM_HEADS_Q = Axis("num_heads_q", axes.whole(1), 128, "query heads per rank; one latent KV head")
NUM_SMS = axes.num_sms("SMs of the GPU the schedule is for; rows of the persistent metadata", maximum=512)
NUM_SM_PARTS = Axis(
    "num_sm_parts",
    axes.whole(1),
    lambda p: max(unbounded_parts(p), 1),
    "parts (P): max(num_sms // ceil(L * heads / 64), 1) unless given",
)
LAYOUT = Axis(
    "layout",
    axes.choice("old", "new"),
    "new",
    "fields of a row: old (FP8 extension) or new (FlashMLA since January 2026)",
)
OVERHEAD = Axis(
    "overhead",
    axes.whole(1, 64),
    5,
    "cost of a request in a part besides its blocks: 5; 3 in the SM100 sparse kernel for 128 heads",
)
MAX_NUM_SEQS = Axis("max_num_seqs", axes.whole(1), 1024, "requests the server admits; num_splits holds one entry more")


class Inputs(Tensors):
    seq_lens: I32["batch_size"]  # 0 = padding request


class Outputs(Tensors):
    """FlashMLA reads a row for each part, and the split counts of B requests."""

    tile_scheduler_metadata: I32["num_sms", 8] = field(read="num_sm_parts")
    num_splits: I32["max_num_seqs + 1"] = field(read="batch_size + 1")


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    return Inputs(make_batch(point, seed).seq_lens)


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    """The serial greedy loop, as the single thread of FlashMLA's kernel runs it."""
    lengths, overhead, new = x.seq_lens.tolist(), point.overhead, point.layout == "new"
    blocks = [cdiv(max(s, 1) if new else s, BLOCK_N) for s in lengths]
    payload = cdiv(sum(blocks) + len(blocks) * overhead, point.num_sm_parts) + overhead
    rows = torch.zeros(point.num_sms, 8, dtype=torch.int32)
    unread = torch.zeros(point.num_sms, 8, dtype=torch.bool)
    unread[: point.num_sm_parts, FIELDS[point.layout] :] = True
    splits, request, block, split = [0], 0, 0, 0
    for part in range(point.num_sm_parts):
        begin, begin_block, begin_split, left = request, block, split, payload
        while request < len(lengths):
            needed = blocks[request] - block + overhead
            if left < needed:
                if left > overhead:
                    block, split = block + left - overhead, split + 1
                break
            splits.append(splits[-1] + split + 1)
            request, block, split, left = request + 1, 0, 0, left - needed
        last = request if block else request - 1
        if new:
            end_block = block or (blocks[last] if lengths[last] else 0)
            first_split, last_split = begin_block > 0, lengths[last] > 0 and end_block != blocks[last]
            if begin == last:
                first_split = last_split = first_split or last_split
            row = [begin, last, begin_block, end_block, begin_split, first_split, last_split, 0]
        else:
            row = [begin, begin_block * BLOCK_N, last, block * BLOCK_N or lengths[last], begin_split, 0, 0, 0]
        rows[part] = torch.tensor(row, dtype=torch.int32)
        unread[part, 1:] |= begin == len(lengths)
    assert (request, block, split) == (len(lengths), 0, 0)
    capacity = point.max_num_seqs + 1
    past_parts = torch.arange(point.num_sms) >= point.num_sm_parts
    return {
        "tile_scheduler_metadata": Expected(rows, dont_care=unread, untouched=past_parts[:, None].expand(rows.shape)),
        "num_splits": Expected(
            torch.tensor(splits + [0] * (capacity - len(splits)), dtype=torch.int32),
            untouched=torch.arange(capacity) >= len(splits),
        ),
    }


def bytes_moved(point: Point, x: Inputs) -> int:
    """Lengths once, the fields of P rows, B + 1 split counts."""
    return 4 * (2 * point.batch_size + 1 + point.num_sm_parts * FIELDS[point.layout])


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point, rows=False)


operator = Operator(
    name="mla_tile_schedule",
    summary="FlashMLA's split-KV schedule: B requests over P parts, long ones split, short ones packed",
    axes=(
        axes.BATCH_SIZE,
        axes.NEXT_N,
        axes.MAX_DECODE_LEN,
        axes.CONTEXT_LEN,
        axes.MAX_MODEL_LEN,
        axes.PADDING,
        NUM_HEADS_Q,
        NUM_SMS,
        NUM_SM_PARTS,
        LAYOUT,
        OVERHEAD,
        MAX_NUM_SEQS,
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
    baseline="fresh_copy",
    rules=(
        *axes.DECODE_STEP_RULES,
        Rule(
            "num_sm_parts ({num_sm_parts}) must not exceed num_sms ({num_sms})", lambda p: p.num_sm_parts <= p.num_sms
        ),
        Rule(
            "batch_size ({batch_size}) must be at most 4095, as in FlashMLA's extension", lambda p: p.batch_size < 4096
        ),
        Rule(
            "batch_size ({batch_size}) requests of max_model_len {max_model_len} cost too many blocks for 32 bits",
            lambda p: p.batch_size * (cdiv(p.max_model_len, BLOCK_N) + p.overhead) + p.num_sm_parts < 2**30,
        ),
        axes.SEQS_FIT,
    ),
    redundant=axes.same_batch_elsewhere,
)
