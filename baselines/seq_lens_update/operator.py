"""seq_lens_update: the accepted tokens of the previous step -> lengths and positions of the next, without a GPU wait.

Asynchronous scheduling prepares a step before the CPU knows how many drafts of the previous one were accepted. The CPU
counts all of them, and the device corrects that. For request b, which had row p = prev_pos[b] in the previous step (-1
= none), let b be corrected where p >= 0 and prev_drafts[p] > 0:

    num_computed_tokens[b] = prev_num_computed_tokens[p] + valid[p]     where corrected, else num_computed_tokens_cpu[b]
    num_accepted[b] = valid[p]                                                 where corrected, else unchanged
    seq_lens[b]     = num_computed_tokens[b] + num_scheduled[b]
    positions[t]    = num_computed_tokens[b] + t - query_start_loc[b]       for the tokens t of request b
    seq_lens_cpu_upper_bound[b] = num_computed_tokens_cpu[b] + num_scheduled[b]                on the host

Both lengths are 0 in rows from B on, because a graph captured at a larger batch reads them. Everything else
keeps its contents.

The host gets only the upper bound (vLLM #40654): 0 <= bound - seq_lens <= drafts of the previous step. It may size
buffers, bound loops and choose kernels; per-row work needs seq_lens.

Double buffering: requests change rows between steps, so counts written in place could overwrite a row that another
block has still to read (the defect permuted_in_place). prev_num_computed_tokens is the previous step's
num_computed_tokens and read-only; the two buffers swap every step. seq_lens keeps its address.

That is vLLM's runner V1. Runner V2 keeps counts by request slot (``state: slots``): s = idx_mapping[b] is the slot of
request b; prev_num_computed_tokens, valid, num_computed_tokens and num_accepted are by slot, prev_drafts by row of this
step:

    num_computed_tokens[s] = prev_num_computed_tokens[s] + valid[s], or num_computed_tokens_cpu[b] without drafts before
    num_accepted[s] = valid[s]                                 where prev_drafts[b] > 0, else unchanged

No row moves, so an engine may pass one array as old and new counts. A new request has no drafts; its slot may hold what
an earlier one left there. Other slots keep their contents.

Host arrays are in pinned memory where there is a GPU. The three that the device needs are slices of one allocation, so
they can be sent by three copies or by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.seq_lens_update.cases import EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads.context_lengths import draw_lengths, plain
from spec_decode_bench.baselines.workloads.decode_batch import accepted_drafts, int32, num_query_tokens, query_lens
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I32, I64, Tensors, field

#: Contents of buffer rows that no request had. A sum with it is recognisable, and never a legal length.
UNUSED = 0x7FFFFF00

BATCH_SIZE = Axis(
    "batch_size",
    axes.whole(0),
    32,
    "requests of the step (B), without padding; 0 is an idle data-parallel rank",
    largest=axes.MOST_REQUESTS,
)
NUM_PREV_REQS = Axis(
    "num_prev_reqs",
    axes.whole(0),
    lambda p: p.batch_size,
    "requests of the previous step (P)",
    largest=4097,
    used=axes.BATCH_SIZE.used,
)
CHURN = Axis(
    "churn",
    axes.probability,
    0.0,
    "share of the batch that is new or resumed (rounded); more where P is too small",
    plain,
)
ROW_ORDER = Axis(
    "row_order",
    axes.choice("kept", "permuted"),
    "kept",
    "order of the surviving requests against the previous step's rows",
)
SCHEDULING = Axis(
    "scheduling",
    axes.choice("async", "sync"),
    "async",
    "whether the CPU counts the previous step's drafts as accepted (async) or knows which were (sync)",
)
PREFILLS = Axis(
    "prefills", axes.whole(0), 0, "requests of the batch, the last ones, that run a prefill chunk instead of a decode"
)
PREFILL_LEN = Axis("prefill_len", axes.whole(1), 512, "tokens of each prefill chunk")
MAX_NUM_SEQS = Axis("max_num_seqs", axes.whole(1), 1024, "capacity of the per-request buffers")
STATE = Axis(
    "state",
    axes.choice("rows", "slots"),
    "rows",
    "what counts are kept by: rows of the previous step, which are permuted, or request slots",
)

AXES = (
    BATCH_SIZE,
    axes.NEXT_N,
    axes.MAX_DECODE_LEN,
    replace(axes.DECODE_LEN, idle=Axis.idle),  # of the previous step, too
    axes.CONTEXT_LEN,
    axes.MAX_MODEL_LEN,
    NUM_PREV_REQS,
    CHURN,
    ROW_ORDER,
    SCHEDULING,
    replace(axes.ACCEPTANCE, idle=Axis.idle),
    PREFILLS,
    PREFILL_LEN,
    MAX_NUM_SEQS,
    axes.MAX_NUM_BATCHED_TOKENS,
    STATE,
)

RULES = (
    *axes.DECODE_STEP_RULES,
    Rule("prefills ({prefills}) must not exceed batch_size ({batch_size})", lambda p: p.prefills <= p.batch_size),
    Rule(
        "batch_size ({batch_size}) and num_prev_reqs ({num_prev_reqs}) must not exceed max_num_seqs ({max_num_seqs})",
        lambda p: max(p.batch_size, p.num_prev_reqs) <= p.max_num_seqs,
    ),
    Rule(
        "max_model_len ({max_model_len}) must hold two steps: max_decode_len ({max_decode_len}) + next_n ({next_n}), "
        "or a chunk of prefill_len ({prefill_len})",
        lambda p: p.max_model_len >= max(p.max_decode_len + p.next_n, p.prefill_len if p.prefills else 0),
    ),
    Rule(
        "the step's tokens (batch_size {batch_size}, max_decode_len {max_decode_len}, "
        "prefills {prefills} x {prefill_len}) must not exceed max_num_batched_tokens ({max_num_batched_tokens})",
        lambda p: num_tokens(p) <= p.max_num_batched_tokens,
    ),
)


def redundant(point: Point) -> str | None:
    """Why another point of a full grid has the same step; None where none has."""
    if point.decode_len != "uniform" and max(point.batch_size, point.num_prev_reqs) <= 1:
        return f"a {point.decode_len} step of one request is uniform"
    if point.row_order == "permuted" and by_slot(point):
        return "slots are in no order"
    if point.row_order == "permuted" and max(point.batch_size, point.num_prev_reqs) <= 1:
        return "one request has only one order"
    if point.churn and round(point.churn * point.batch_size) == 0:
        return f"churn {point.churn:g} replaces none of {point.batch_size} request(s)"
    if point.prefill_len != PREFILL_LEN.default and not point.prefills:
        return "no request runs a prefill chunk"
    return None


def by_slot(point: Point) -> bool:
    return point.state == "slots"


def num_tokens(point: Point) -> int:
    """A: query tokens of the step."""
    decodes = num_query_tokens(point.decode_len, point.batch_size - point.prefills, point.max_decode_len)
    return decodes + point.prefills * point.prefill_len


def _num_to_device(point: Point) -> int:
    """2 B + P; 3 B by slot."""
    return 2 * point.batch_size + (point.batch_size if by_slot(point) else point.num_prev_reqs)


def _num_counted(point: Point) -> int:
    """Entries of the counts, by row or by slot."""
    return point.max_num_seqs if by_slot(point) else point.batch_size


class Inputs(Tensors):
    prev_num_computed_tokens: I32["max_num_seqs"]  # by rows of the previous step, or by slot
    valid: I32["max_num_seqs"]  # accepted drafts + 1, likewise; >= 1 if there were drafts
    query_start_loc: I32["batch_size + 1"]  # exclusive prefix sum of num_scheduled
    to_device: I32[_num_to_device] = field(uva=True)  # prev_pos or idx_mapping, num_computed_tokens_cpu, prev_drafts
    num_scheduled: I32["batch_size"] = field(host=True)  # query tokens of this step
    num_tokens: int  # A, their sum

    @property
    def prev_pos(self) -> torch.Tensor:
        """[B] view: row in the previous step, -1 = none; or slot. No two requests share one."""
        return self.to_device[: len(self.num_scheduled)]

    @property
    def num_computed_tokens_cpu(self) -> torch.Tensor:
        """[B] view: computed tokens, all drafts of the previous step counted as accepted."""
        return self.to_device[len(self.num_scheduled) : 2 * len(self.num_scheduled)]

    @property
    def prev_drafts(self) -> torch.Tensor:
        """[P] view, by rows of the previous step; with slots [B], by rows of this one."""
        return self.to_device[2 * len(self.num_scheduled) :]


class Outputs(Tensors):
    num_computed_tokens: I32["max_num_seqs"] = field(read=_num_counted)
    num_accepted: I32["max_num_seqs"] = field(read=_num_counted)
    seq_lens: I32["max_num_seqs"] = field(read="batch_size")
    positions: I64["max_num_batched_tokens"] = field(read=num_tokens)
    seq_lens_cpu_upper_bound: I32["max_num_seqs"] = field(host=True, read="batch_size")


def make_inputs(point: Point, seed: int) -> Inputs:
    """Shapes and host integers follow from the point alone. The seed moves rows, accepted drafts and contexts."""
    rng = np.random.default_rng(seed)
    rows, prev_rows, decodes = point.batch_size, point.num_prev_reqs, point.batch_size - point.prefills
    scheduled = np.full(rows, point.prefill_len)
    scheduled[:decodes] = rng.permutation(query_lens(point.decode_len, decodes, point.max_decode_len))

    survivors = np.sort(rng.choice(rows, min(rows - round(point.churn * rows), prev_rows), replace=False))
    sources = rng.choice(prev_rows, len(survivors), replace=False)
    prev_pos = np.full(rows, -1)
    prev_pos[survivors] = np.sort(sources) if point.row_order == "kept" else sources

    # What the previous step did, by its rows. One without drafts produced one token, or none in the middle of a prompt.
    drafts = rng.permutation(query_lens(point.decode_len, prev_rows, point.next_n) - 1)
    drafts[prev_pos[decodes:][prev_pos[decodes:] >= 0]] = 0
    accepted = np.minimum(accepted_drafts(rng, point.acceptance, prev_rows, point.next_n - 1), drafts)
    valid = np.where(drafts > 0, accepted + 1, rng.integers(0, 2, prev_rows))

    # The same by rows of this step; the zero appended is for prev_pos = -1.
    drafts_of, valid_of = np.append(drafts, 0)[prev_pos], np.append(valid, 0)[prev_pos]
    gained = np.where(drafts_of > 0, valid_of, 0)
    rejected = np.where(drafts_of > 0, drafts_of + 1 - gained, 0)
    lens = np.clip(draw_lengths(point.context_len, rows, rng), scheduled + gained, point.max_model_len - rejected)
    computed = lens - scheduled

    before = np.full(point.max_num_seqs, UNUSED)
    before[:prev_rows] = rng.integers(1, point.max_model_len, prev_rows)  # finished requests keep these
    progress = np.where(drafts_of > 0, gained, np.where(valid_of > 0, 1, point.prefill_len))
    before[prev_pos[survivors]] = np.maximum(computed - progress, 0)[survivors]
    host_computed = computed + (rejected if point.scheduling == "async" else 0)
    valid = np.append(valid, np.full(point.max_num_seqs - prev_rows, UNUSED))
    if by_slot(point):
        slots = rng.permutation(point.max_num_seqs)  # the first ones of this step's requests
        for array in (before, valid):  # what a new request finds, -1, is of an earlier owner of its slot
            moved = array[prev_pos]
            array[:] = UNUSED
            array[slots[:rows]] = moved
        prev_pos, drafts = slots[:rows], drafts_of
    return Inputs(
        prev_num_computed_tokens=int32(before),
        valid=int32(valid),
        query_start_loc=int32(np.append(0, scheduled.cumsum())),
        to_device=int32(np.concatenate([prev_pos, host_computed, drafts])),
        num_scheduled=int32(scheduled),
        num_tokens=num_tokens(point),
    )


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    capacity, tokens, rows = point.max_num_seqs, point.max_num_batched_tokens, point.batch_size
    before, valid, drafts = x.prev_num_computed_tokens.tolist(), x.valid.tolist(), x.prev_drafts.tolist()
    prev_pos, host_computed, scheduled = (
        x.prev_pos.tolist(),
        x.num_computed_tokens_cpu.tolist(),
        x.num_scheduled.tolist(),
    )
    computed, accepted, lens, bound = ([0] * capacity for _ in range(4))
    positions, kept, other, t = [0] * tokens, [True] * capacity, [True] * capacity, 0
    for b in range(rows):
        p, count = prev_pos[b], host_computed[b]
        place, had_drafts = (p, drafts[b] > 0) if by_slot(point) else (b, p >= 0 and drafts[p] > 0)
        if had_drafts:
            count, accepted[place], kept[place] = before[p] + valid[p], valid[p], False
        computed[place], other[place] = count, False
        lens[b], bound[b] = count + scheduled[b], host_computed[b] + scheduled[b]
        for j in range(scheduled[b]):
            positions[t] = count + j
            t += 1
    return {
        "num_computed_tokens": Expected(int32(computed), untouched=torch.tensor(other)),
        "num_accepted": Expected(int32(accepted), untouched=torch.tensor(kept)),
        "seq_lens": Expected(int32(lens)),
        "positions": Expected(torch.tensor(positions), untouched=torch.arange(tokens) >= t),
        "seq_lens_cpu_upper_bound": Expected(int32(bound)),
    }


def bytes_moved(point: Point, x: Inputs) -> int:
    """Device memory only: the host's arrays written and read, query_start_loc, two old counts per corrected request and
    all outputs but the bound.
    """
    drafts = x.prev_drafts if by_slot(point) else x.prev_drafts[x.prev_pos[x.prev_pos >= 0]]
    corrected = int((drafts > 0).sum())
    rows = len(x.prev_pos)
    entries = 2 * len(x.to_device) + (rows + 1) + 2 * corrected + rows + corrected + point.max_num_seqs
    return 4 * entries + 8 * x.num_tokens


def in_place(point: Point) -> Mapping[str, str]:
    """By slot a count is updated where it is; by row it moves."""
    return {"num_computed_tokens": "prev_num_computed_tokens"} if by_slot(point) else {}


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point, rows=False)


operator = Operator(
    name="seq_lens_update",
    summary="accepted tokens of the previous step -> computed counts, lengths and positions on the device, "
    "a bound on the host",
    axes=AXES,
    rules=RULES,
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    in_place=in_place,
    redundant=redundant,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
)
