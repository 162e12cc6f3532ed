"""mamba_align_step: columns, state slots and moves of recurrent states kept by request slot (cache mode align).

Each request has one running state, in the block that holds its last scheduled token, and k scratch slots behind it. For
row b, s = idx_mapping[b] (-1 = padding), BS the Mamba block size, q the row's query tokens:

    before_forward   old = state_columns_before[s];  new = ceil((num_computed_tokens[s] + q) / BS) - 1
        source_columns[s] = old;  source_offsets[s] = max(num_accepted_tokens_before[s] - 1, 0);  state_columns[s] = new
        num_accepted_tokens[s] = 1 where old >= 0 and old != new, else num_accepted_tokens_before[s]
        moves[b] = (old, new, source_offsets[s]) where old >= 0 and old != new, else (-1, -1, 0)
        batch_accepted[b] = num_accepted_tokens[s] after that, 1 for padding
        state_slots[g, b, j] = table of group g, row of b: column max((seq_lens[b] - 1) // BS, 0) + j      0 <= j <= k
        mask[b] = s >= 0;  starts[b] = query_start_loc[b] up to and including the last row's end
    after_sampling   a = num_accepted_tokens_before[s], of this step;  running = num_computed_tokens[s] - a + 1
        aligned = num_computed_tokens[s] // BS * BS;  to = aligned / BS - 1;  from = state_columns_before[s]
        frozen where aligned >= running: a block's end was reached, and the state of just that many tokens is kept
        num_accepted_tokens[s] = 1 where frozen and to = from, else a
        moves[b] = (from, to, aligned - running) where frozen, but (-1, -1, 0) where that is a copy onto itself

Padding rows have slot 0 in state_slots (their row of the batch-ordered table is cleared) and no move. Other slots and
rows from the batch on keep their contents. num_computed_tokens is before the step in the first phase and after it in
the second.

Counts and columns are read from one array and written to another: all copies of a request read them while one block
resets them (vLLM #50432). The copies themselves are mamba_state_copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.mamba_align_step.cases import CONTENTS, EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.context_lengths import ends_blocks, plain
from spec_decode_bench.baselines.workloads.decode_batch import accepted_drafts
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.mamba_steps import MAMBA_BLOCK_SIZE
from spec_decode_bench.baselines.workloads.written import Written, as_arrays
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point
from spec_decode_bench.harness.tensors import I32, I64, Bool, Tensors, field

PHASE = Axis("phase", axes.choice("before_forward", "after_sampling"), "before_forward", "which end of a step this is")
FRESH = Axis(
    "fresh",
    axes.probability,
    0.0,
    "share of the requests without a running state yet",
    plain,
    idle=lambda p: axes.has_no_request(p) or p.get("phase") == "after_sampling",
)


def _ends_no_block(point: Point) -> bool:
    """Whether no step of a request is likely to end a block; after sampling nothing else depends on its size."""
    lies_in_one = axes.lies_in_one("mamba_block_size")(point)
    if point.phase == "before_forward" or axes.has_no_request(point):
        return lies_in_one
    accepted = point.acceptance > 0.5 or point.max_decode_len == 1 or point.decode_len != "uniform"
    few = axes.num_decodes(point) + point.prefills < point.mamba_block_size
    return not (ends_blocks(point) and accepted) and (few or lies_in_one)


AXES = slots.bounded(
    *slots.STEP,
    replace(MAMBA_BLOCK_SIZE, idle=_ends_no_block),
    replace(slots.NUM_GROUPS, idle=lambda p: p.phase == "after_sampling"),
    PHASE,
    axes.ACCEPTANCE,
    FRESH,
    axes.contents(CONTENTS),
)
RULES = slots.STEP_RULES


def _before_forward(point: Point) -> bool:
    return point.phase == "before_forward"


def table_columns(point: Point) -> int:
    """W: blocks of the longest request and k scratch columns."""
    return cdiv(point.max_model_len, point.mamba_block_size) + point.next_n - 1


class Inputs(Tensors):
    """Tables are given twice, as in an engine: by slot and, gathered, by row."""

    idx_mapping: I64["batch_size"]  # request slot; -1 = padding
    num_computed_tokens: I32["max_num_seqs"]
    state_columns_before: I32["max_num_seqs"]  # column of the running state; -1 = none
    num_accepted_tokens_before: I32["max_num_seqs"]  # accepted drafts + 1; 0 where none is known
    query_start_loc: I32["max_num_seqs + 1"] = field(where=_before_forward)
    seq_lens: I32["batch_size"] = field(where=_before_forward)  # 0 in padding rows
    slot_tables: I32["num_groups", "max_num_seqs", table_columns] = field(where=_before_forward)  # by slot
    # by row; padding rows 0
    batch_tables: I32["num_groups", "batch_size", table_columns] = field(where=_before_forward)


class Outputs(Tensors):
    num_accepted_tokens: I32["max_num_seqs"]  # by slot
    moves: I32["max_num_seqs", 3] = field(read="batch_size")  # by row: column from, column to, shift
    state_columns: I32["max_num_seqs"] = field(where=_before_forward)  # by slot
    source_columns: I32["max_num_seqs"] = field(where=_before_forward)  # by slot
    source_offsets: I32["max_num_seqs"] = field(where=_before_forward)  # by slot
    batch_accepted: I32["max_num_seqs"] = field(read="batch_size", where=_before_forward)  # by row
    # by row
    state_slots: I32["num_groups", "max_num_seqs", "next_n"] = field(
        read=("num_groups", "batch_size"), where=_before_forward
    )
    mask: Bool["max_num_seqs"] = field(read="batch_size", where=_before_forward)  # by row
    starts: I32["max_num_seqs + 1"] = field(read="batch_size + 1", where=_before_forward)  # by row


#: Outputs before the forward pass only.
BEFORE_FORWARD = (
    "state_columns",
    "source_columns",
    "source_offsets",
    "batch_accepted",
    "state_slots",
    "mask",
    "starts",
)


def running_states(
    point: Point, rng: np.random.Generator, computed: np.ndarray, accepted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(accepted counts, columns) that a step before this one may have left; accepted: as drawn, at most 1 + k."""
    accepted = np.minimum(accepted, np.maximum(computed, 1))
    scheduled = np.minimum(rng.integers(accepted, point.next_n + 1), point.max_model_len - computed + accepted)
    columns = np.where(computed > 0, (computed - accepted + np.maximum(scheduled, 1) - 1) // point.mamba_block_size, -1)
    fresh = (rng.random(len(computed)) < point.fresh) | (computed == 0)
    return np.where(fresh, 1, accepted), np.where(fresh, -1, columns)


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    step, rng = slots.make_step(point, seed), np.random.default_rng([seed, 5])
    real, capacity, k, size = slots.num_real(point), point.max_num_seqs, point.next_n - 1, point.mamba_block_size
    idx_mapping, lens = step.idx_mapping.numpy()[:real], step.seq_lens.numpy()[:real].astype(np.int64)
    query = torch.diff(step.query_start_loc[: real + 1]).numpy().astype(np.int64)
    computed = lens - query
    accepted = 1 + accepted_drafts(rng, point.acceptance, real, k)
    if point.phase == "after_sampling":
        accepted = np.minimum(accepted, query)
        accepted[real - point.prefills : real] = 1
        after = computed + accepted
        after[real - point.prefills : real] = lens[real - point.prefills : real]
        return Inputs(
            idx_mapping=step.idx_mapping,
            num_computed_tokens=slots.by_slot(idx_mapping, after, capacity),
            state_columns_before=slots.by_slot(idx_mapping, (lens - 1) // size, capacity),
            num_accepted_tokens_before=slots.by_slot(idx_mapping, accepted, capacity),
        )
    accepted, columns = running_states(point, rng, computed, accepted)

    width = table_columns(point)
    by_slot = torch.full((point.num_groups, capacity, width), slots.UNUSED, dtype=torch.int32)
    by_row = torch.zeros(point.num_groups, point.batch_size, width, dtype=torch.int32)
    ids = torch.from_numpy(rng.permutation(point.num_groups * real * (1 + k)).reshape(point.num_groups, real, 1 + k))
    for b, s in enumerate(idx_mapping.tolist()):
        first = (int(lens[b]) - 1) // size
        by_slot[:, s, first : first + 1 + k] = 1 + ids[:, b].int()
        by_row[:, b] = by_slot[:, s]
    return Inputs(
        idx_mapping=step.idx_mapping,
        num_computed_tokens=slots.by_slot(idx_mapping, computed, capacity),
        state_columns_before=slots.by_slot(idx_mapping, columns, capacity),
        num_accepted_tokens_before=slots.by_slot(idx_mapping, accepted, capacity),
        query_start_loc=step.query_start_loc,
        seq_lens=step.seq_lens,
        slot_tables=by_slot,
        batch_tables=by_row,
    )


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    x, written = as_arrays(x), Written(vars(Outputs.empty(point)))
    put = written.put

    def move(b: int, *columns: int) -> None:
        put("moves", b, columns)

    size, before = point.mamba_block_size, point.phase == "before_forward"
    for b, s in enumerate(x.idx_mapping.tolist()):
        move(b, -1, -1, 0)
        if before:
            query = int(x.query_start_loc[b + 1] - x.query_start_loc[b])
            put("starts", b, x.query_start_loc[b])
            put("starts", b + 1, x.query_start_loc[b + 1])
            put("mask", b, s >= 0)
            put("batch_accepted", b, 1)
            first = max((int(x.seq_lens[b]) - 1) // size, 0)
            for g in range(point.num_groups):
                for j in range(point.next_n):
                    put("state_slots", (g, b, j), x.batch_tables[g, b, first + j])
        if s < 0:
            continue
        computed, old, count = (
            int(x.num_computed_tokens[s]),
            int(x.state_columns_before[s]),
            int(x.num_accepted_tokens_before[s]),
        )
        if before:
            new = cdiv(computed + query, size) - 1
            crosses = old >= 0 and old != new
            if crosses:
                move(b, old, new, max(count - 1, 0))
            put("source_columns", s, old)
            put("source_offsets", s, max(count - 1, 0))
            put("state_columns", s, new)
            put("num_accepted_tokens", s, 1 if crosses else count)
            put("batch_accepted", b, 1 if crosses else count)
        else:
            running, aligned = computed - count + 1, computed // size * size
            to, frozen = aligned // size - 1, aligned >= running
            if frozen and (to != old or aligned > running):
                move(b, old, to, aligned - running)
            put("num_accepted_tokens", s, 1 if frozen and to == old else count)
    return written.expected()


def bytes_moved(point: Point, x: Inputs) -> int:
    """Per row slot, count, column and progress, and what is written of them; before the forward pass lengths,
    boundaries, mask and, in each group, 1 + k table entries read and written.
    """
    rows = len(x.idx_mapping)
    if point.phase == "after_sampling":
        return rows * (8 + 3 * 4 + 4 + 12)
    return rows * (8 + 5 * 4 + 5 * 4 + 12 + 1 + 4 + 8 * point.num_groups * point.next_n) + 8


def in_place(point: Point) -> Mapping[str, str]:
    return {"num_accepted_tokens": "num_accepted_tokens_before", "state_columns": "state_columns_before"}


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point)


operator = Operator(
    name="mamba_align_step",
    summary="columns, state slots of all groups and moves of recurrent states, by request slot",
    axes=AXES,
    rules=RULES,
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    in_place=in_place,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
    redundant=slots.redundant,
)
