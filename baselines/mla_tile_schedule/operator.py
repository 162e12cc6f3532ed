"""mla_tile_schedule: FlashMLA's split-KV schedule, B requests over P persistent parts, so that long ones are split and short packed.

A request of length s costs blocks(s) + overhead; part p takes work in request order until its payload is spent:

    payload = ceil(sum over requests of (blocks + overhead) / P) + overhead
    for every part:  while a request is left and payload allows: finish it, and pay blocks left + overhead
                     else if more than the overhead is left: take that many blocks of the request, and stop

tile_scheduler_metadata[p] int32 (P, 8), one row per part; num_splits int32 (B + 1), exclusive prefix of the number of
parts that work on each request, which the combine kernel reads. blocks are of 64 tokens. Two layouts of a row are
about:

    int    old (FlashMLA's FP8 extension in vLLM)              new (FlashMLA since January 2026)
    0      begin request                                       begin request
    1      begin token                                         end request, inclusive
    2      end request, inclusive                              begin block
    3      end token, exclusive (the length where finished)    end block, exclusive (0 where the length is 0)
    4      begin split                                         begin split
    5      not written                                         first request is split
    6      not written                                         last request is split
    7      not written                                         not written

The new one counts a zero length as one block, the old one as none. Parts without work start at request B; of their rows
a consumer reads int 0 alone. Rows past P and entries past B + 1 keep what they held.

P depends on SMs, heads and query rows alone, hence is constant for a CUDA graph. The extension returns fresh tensors,
which the caller must copy into its persistent buffers: a graph that captured the fresh ones reads memory that now
belongs to somebody else (vLLM #35175: right tokens at first, garbage after about fifty).

Another way to say it: let pre[i] be the cost of all requests before i and w = payload - overhead. A part that starts at
block c of request i starts at x = pre[i] + c. The next one starts at x + w, or at the last pre[j] in [x + w, x + w +
overhead] if there is one: a walk in steps of w that snaps forward onto request boundaries. fresh_copy and the fused
kernels are built on that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from baselines.mla_tile_schedule._forms import copied, fresh_tiles, greedy_schedule, tile_views
from baselines.mla_tile_schedule._loop import scheduled
from baselines.mla_tile_schedule._points import (
    HARD_POINTS,
    LAYOUT,
    MAX_NUM_SEQS,
    NUM_HEADS_Q,
    NUM_SM_PARTS,
    NUM_SMS,
    OVERHEAD,
    RULES,
    SEQUENCES,
    unbounded_parts,
)
from baselines.workloads import axes
from baselines.workloads.decode_batch import make_batch
from harness.contract import Expected, Operator, Point, variant


@dataclass(frozen=True)
class Inputs:
    seq_lens: Tensor  # [B] int32; 0 = padding request


@dataclass(frozen=True)
class Outputs:
    tile_scheduler_metadata: Tensor  # [num_sms, 8] int32
    num_splits: Tensor  # [max_num_seqs + 1] int32


def make_inputs(point: Point, seed: int) -> Inputs:
    return Inputs(make_batch(point, seed).seq_lens)


def make_outputs(point: Point) -> Outputs:
    return Outputs(
        tile_scheduler_metadata=torch.empty(point.num_sms, 8, dtype=torch.int32),
        num_splits=torch.empty(point.max_num_seqs + 1, dtype=torch.int32),
    )


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    return scheduled(point, x.seq_lens)


def bytes_moved(point: Point, x: Inputs) -> int:
    """Lengths once, the fields of P rows, B + 1 split counts."""
    return 4 * (2 * point.batch_size + 1 + point.num_sm_parts * (7 if point.layout == "new" else 5))


# --- PyTorch-op variants ----------------------------------------------------------------------------------------------


@variant("mla_tile_schedule", waives=("no_sync", "graph_safe", "no_alloc"))
def host_loop(point, x, out):
    """Lengths to the CPU, the greedy loop in Python, two fresh tensors, two copies into the persistent buffers."""
    persistent = tile_views(point, out)

    def launch():
        rows, counts = greedy_schedule(x.seq_lens.tolist(), point.num_sm_parts, point.overhead, point.layout == "new")
        persistent["tile_scheduler_metadata"].copy_(torch.tensor(rows, dtype=torch.int32))
        persistent["num_splits"].copy_(torch.tensor(counts, dtype=torch.int32))

    return launch


# There is no compiled_chain: the rounds follow from P, so torch.compile makes a graph for every power of two of P and
# every layout, six seconds each on two cores; and searchsorted, gather, scatter and cumsum, which are most of the
# chain, do not fuse.
@variant("mla_tile_schedule", waives="no_alloc")
def fresh_copy(point, x, out):
    """Computed on the device into fresh tensors, then two copies, as vLLM does since #35175; operators instead of
    its kernel.
    """
    return copied(tile_views(point, out), fresh_tiles(point, x.seq_lens))


# --- historic defects -------------------------------------------------------------------------------------------------


@variant(
    "mla_tile_schedule",
    defect="fresh tensors are handed to a captured graph (vLLM #32810, mended in #35175)",
    waives="no_alloc",
)
def fresh_tensors(point, x, out):
    return fresh_tiles(point, x.seq_lens)


def _derived_parts_only(point: Point) -> str | None:
    return None if point.num_sm_parts == max(unbounded_parts(point), 1) else "P is given here, not derived"


@variant(
    "mla_tile_schedule",
    defect="P = num_sms // CTAs without a lower bound: no part, nothing scheduled (FP8 extension)",
    skip=_derived_parts_only,
    waives="no_alloc",
)
def parts_without_lower_bound(point, x, out):
    """On a GPU the payload divides by zero unnoticed, the loop over no part ends at once and leaves num_splits[0]."""
    if unbounded_parts(point):
        return fresh_copy(point, x, out)

    def launch():
        out.num_splits[0] = 0

    return launch


def _new_layout(point: Point) -> str | None:
    return "the old layout counts a zero length as no block" if point.layout == "old" else None


@variant(
    "mla_tile_schedule",
    defect="a zero length counts as no block: the last block of a padding request is -1 (vLLM #33664, #35969)",
    skip=_new_layout,
    waives="no_alloc",
)
def zero_length_without_block(point, x, out):
    return copied(tile_views(point, out), fresh_tiles(point, x.seq_lens, shortest=0))


@variant(
    "mla_tile_schedule",
    defect="rows of parts without work are left as they were (vLLM's FlashMLA #3, #7)",
    waives="no_alloc",
)
def idle_parts_unwritten(point, x, out):
    """Their begin must be B, or a part runs what an earlier step left there."""
    persistent, compute = tile_views(point, out), fresh_tiles(point, x.seq_lens)
    held = persistent["tile_scheduler_metadata"]

    def working_parts():
        fresh = compute()
        rows = fresh["tile_scheduler_metadata"]
        return fresh | {"tile_scheduler_metadata": torch.where(rows[:, :1] < point.batch_size, rows, held)}

    return copied(persistent, working_parts)


def _one_part_new_layout(point: Point) -> str | None:
    return None if point.num_sm_parts == 1 and point.layout == "new" else "one part and the new layout only"


@variant(
    "mla_tile_schedule",
    defect="the only row of the batch-invariant path has the old field order (suspected in vLLM)",
    skip=_one_part_new_layout,
    waives="no_alloc",
)
def old_field_order(point, x, out):
    return copied(tile_views(point, out), fresh_tiles(point, x.seq_lens, new=False))


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
    ),
    make_inputs=make_inputs,
    make_outputs=make_outputs,
    views=tile_views,
    reference=reference,
    bytes_moved=bytes_moved,
    baseline="fresh_copy",
    hard_points=HARD_POINTS,
    sequences=SEQUENCES,
    rules=(*axes.DECODE_STEP_RULES, *RULES),
    redundant=axes.same_batch_elsewhere,
)
