"""draft_inputs: inputs of the k forward passes of an MTP or EAGLE drafter.

The first pass runs over the target's tokens shifted by one, later ones over one token per request. Shapes are fixed:
rejected tokens stay in the batch as dead rows. For row b < B with q query tokens, kept = q - num_rejected[b], start =
query_start_loc[b], end = start + kept - 1, s = idx_mapping[b], M = max_model_len. ``out.``: an output that has the name
of an input.

    first   input_ids[start + j] = target_input_ids[start + j + 1]                         0 <= j < kept - 1
            input_ids[end] = last_sampled_tokens[s] where num_sampled[b] > 0, else next_prefill_tokens[s]
            positions[start + j] = target_positions[start + j]                             0 <= j < kept
            last_token_indices[b] = end          out.query_start_loc[b] = start
            out.seq_lens[b] = seq_lens[b]        out.current_draft_step = 0
            from row B on: last_token_indices = 0, out.seq_lens = 0, out.query_start_loc = number of tokens
    second  input_ids[b] = draft_tokens[b, 0]    sample_src_positions[b] = p + 2, with p = positions_before[b]
            positions[b] = min(p + 1, M - 1)     out.seq_lens[b] = min(seq_lens[b] - num_rejected[b] + 1, M)
            out.query_start_loc[i] = min(i, B) for i <= R; out.seq_lens = 0 from row B on
    later   out.draft_tokens[b, current_draft_step] = sampled[b], and unless current_draft_step = k - 1:
            input_ids[b] = sampled[b]            sample_src_positions[b] = sample_src_positions_before[b] + 1
            hidden_states[b] = hidden_states_before[b]
            positions[b] = min(positions_before[b] + 1, M - 1)
            out.seq_lens[b] = min(seq_lens_before[b] + 1, M)

Where positions do not advance (``advance: no``), positions and lengths get no + 1. current_draft_step is device data:
one graph serves all passes. Everything else keeps its contents. last_token_indices, out.seq_lens and
out.query_start_loc are written to their end, because captured graphs read all of them (vLLM #39773). Sampling keys
(sample_src_positions) advance even at the end of the model's range (vLLM #54282).

State is read from the inputs; an engine passes one array as both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.draft_inputs.cases import CONTENTS, EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.decode_batch import accepted_drafts, int32
from spec_decode_bench.baselines.workloads.written import Written, as_arrays
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I16, I32, I64, Tensors, field

DRAFT_PASS = Axis(
    "draft_pass", axes.choice("first", "second", "later"), "first", "which of the drafter's passes gets its inputs"
)
ADVANCE = Axis(
    "advance",
    axes.choice("yes", "no"),
    "yes",
    "whether positions advance from pass to pass",
    idle=lambda p: p.get("draft_pass") == "first",
)
HIDDEN_SIZE = Axis(
    "hidden_size",
    axes.whole(1),
    7168,
    "2-byte values of a hidden row, copied by later passes",
    idle=lambda p: p.draft_pass != "later",
)
AXES = slots.bounded(
    *slots.REAL_STEP,
    DRAFT_PASS,
    ADVANCE,
    axes.ACCEPTANCE,
    HIDDEN_SIZE,
    axes.MAX_NUM_BATCHED_TOKENS,
    axes.contents(CONTENTS),
)
RULES = (
    *slots.STEP_RULES,
    slots.TOKENS_FIT,
    Rule(
        "next_n ({next_n}) must be at least 3 for this draft_pass ({draft_pass}): fewer drafts have no such pass",
        lambda p: p.draft_pass == "first" or p.next_n >= 3,
    ),
)


def _first(point: Point) -> bool:
    return point.draft_pass == "first"


def _further(point: Point) -> bool:
    return not _first(point)


def _second(point: Point) -> bool:
    return point.draft_pass == "second"


def _later(point: Point) -> bool:
    return point.draft_pass == "later"


def _not_later(point: Point) -> bool:
    return not _later(point)


class Inputs(Tensors):
    query_start_loc: I32["max_num_seqs + 1"]  # of the target's step
    seq_lens: I32["batch_size"]  # rejected drafts included
    num_rejected: I32["batch_size"]
    current_draft_step: I64[1]  # 1 .. k - 1: the pass that has run
    target_input_ids: I32["max_num_batched_tokens"] = field(where=_first)
    target_positions: I64["max_num_batched_tokens"] = field(where=_first)
    idx_mapping: I64["batch_size"] = field(where=_first)
    num_sampled: I32["batch_size"] = field(where=_first)
    last_sampled_tokens: I64["max_num_seqs"] = field(where=_first)  # by slot
    next_prefill_tokens: I32["max_num_seqs"] = field(where=_first)  # by slot
    draft_tokens: I64["batch_size", "next_n - 1"] = field(where=_second)
    sampled: I64["batch_size"] = field(where=_later)  # the argmax of the pass that has run
    positions_before: I64["batch_size"] = field(where=_further)
    sample_src_positions_before: I64["batch_size"] = field(where=_later)
    seq_lens_before: I32["batch_size"] = field(where=_later)
    hidden_states_before: I16["batch_size", "hidden_size"] = field(where=_later)
    num_tokens: int = 0  # A, as the host counts them


class Outputs(Tensors):
    input_ids: I32["max_num_batched_tokens"]
    positions: I64["max_num_batched_tokens"]
    seq_lens: I32["max_num_seqs"]
    query_start_loc: I32["max_num_seqs + 1"] = field(where=_not_later)
    last_token_indices: I64["max_num_seqs"] = field(where=_first)
    current_draft_step: I64[1] = field(where=_first)
    sample_src_positions: I64["max_num_seqs"] = field(where=_further)
    draft_tokens: I64["max_num_seqs", "next_n - 1"] = field(where=_later)
    hidden_states: I16["max_num_seqs", "hidden_size"] = field(where=_later)


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    step, rng = slots.make_step(point, seed), np.random.default_rng([seed, 3])
    rows, k, tokens = point.batch_size, point.next_n - 1, slots.num_tokens(point)
    query = torch.diff(step.query_start_loc[: rows + 1]).numpy()
    accepted = accepted_drafts(rng, point.acceptance, rows, max(k, 1))
    chunk = np.arange(rows) >= rows - point.prefills
    ends = (step.seq_lens >= step.prompt_lens[step.idx_mapping]).numpy()
    sampled = np.where(chunk, ends, np.minimum(accepted, query - 1) + 1)
    rejected = np.where(chunk, 0, query - sampled)
    token = lambda *shape: slots.token_ids(rng, 129280, *shape)  # noqa: E731
    shared = {
        "query_start_loc": step.query_start_loc,
        "seq_lens": step.seq_lens,
        "num_rejected": int32(rejected),
        "current_draft_step": torch.from_numpy(rng.integers(1, max(k, 2), 1)),
        "num_tokens": tokens,
    }
    before = step.seq_lens.long() - int32(rejected) - 1
    if point.draft_pass == "first":
        return Inputs(
            **shared,
            target_input_ids=slots.by_token(point, token(tokens).int()),
            target_positions=slots.positions(point, step),
            idx_mapping=step.idx_mapping,
            num_sampled=int32(sampled),
            last_sampled_tokens=token(point.max_num_seqs),
            next_prefill_tokens=token(point.max_num_seqs).int(),
        )
    if point.draft_pass == "second":
        return Inputs(**shared, positions_before=before, draft_tokens=token(rows, k))
    done = int(shared["current_draft_step"])
    return Inputs(
        **shared,
        sampled=token(rows),
        positions_before=(before + done).clamp(max=point.max_model_len - 1),
        sample_src_positions_before=before + 1 + done,
        seq_lens_before=(before + 1 + done).clamp(max=point.max_model_len).int(),
        hidden_states_before=torch.from_numpy(rng.integers(-(2**15), 2**15, (rows, point.hidden_size), dtype=np.int16)),
    )


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    rows, capacity, most, k = len(x.seq_lens), point.max_num_seqs, point.max_model_len, point.next_n - 1
    x, written = as_arrays(x), Written(vars(Outputs.empty(point)))
    put = written.put
    advance, starts = int(point.advance == "yes"), x.query_start_loc.tolist()
    for b in range(rows):
        length, rejected = int(x.seq_lens[b]), int(x.num_rejected[b])
        if point.draft_pass == "first":
            start, s = starts[b], int(x.idx_mapping[b])
            tokens = starts[b + 1] - start - rejected
            for j in range(tokens - 1):
                put("input_ids", start + j, x.target_input_ids[start + j + 1])
            put(
                "input_ids",
                start + tokens - 1,
                x.last_sampled_tokens[s] if x.num_sampled[b] > 0 else x.next_prefill_tokens[s],
            )
            for j in range(tokens):
                put("positions", start + j, x.target_positions[start + j])
            put("last_token_indices", b, start + tokens - 1)
            put("seq_lens", b, length)
        elif point.draft_pass == "second":
            p = int(x.positions_before[b])
            put("input_ids", b, x.draft_tokens[b, 0])
            put("sample_src_positions", b, p + 2)
            put("positions", b, min(p + 1, most - 1) if advance else p)
            put("seq_lens", b, min(length - rejected + 1, most) if advance else length - rejected)
        else:
            put("draft_tokens", (b, int(x.current_draft_step[0])), x.sampled[b])
            if int(x.current_draft_step[0]) == k - 1:
                continue
            p, n = int(x.positions_before[b]), int(x.seq_lens_before[b])
            put("input_ids", b, x.sampled[b])
            put("sample_src_positions", b, int(x.sample_src_positions_before[b]) + 1)
            put("hidden_states", b, x.hidden_states_before[b])
            put("positions", b, min(p + 1, most - 1) if advance else p)
            put("seq_lens", b, min(n + 1, most) if advance else n)
    if point.draft_pass != "later":
        put("seq_lens", slice(rows, capacity), 0)
        for i in range(capacity + 1):
            put("query_start_loc", i, starts[min(i, rows)] if point.draft_pass == "first" else min(i, rows))
    if point.draft_pass == "first":
        put("last_token_indices", slice(rows, capacity), 0)
        put("current_draft_step", 0, 0)
    return written.expected()


def bytes_moved(point: Point, x: Inputs) -> int:
    """What a pass reads of its inputs, each element once, and what it writes."""
    rows, tail = len(x.seq_lens), point.max_num_seqs - len(x.seq_lens)
    if point.draft_pass == "first":
        kept = x.num_tokens - int(x.num_rejected.sum())
        per_row = (
            4 + 4 + 4 + 8 + 4 + 8 + 4 + 4 + 8
        )  # starts, lengths, rejected, idx_mapping, sampled, last token; three written
        return rows * per_row + kept * (4 + 8) * 2 - 4 * rows + tail * 16 + 16
    if point.draft_pass == "second":
        return rows * (8 + 8 + 4 + 4 + 4 + 8 + 8 + 4 + 4) + tail * 8 + 4
    last = int(x.current_draft_step) == point.next_n - 2
    return 8 + rows * (16 if last else 16 + 8 + 8 + 4 + 4 + 8 + 8 + 4 + 4 * point.hidden_size)


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point)


operator = Operator(
    name="draft_inputs",
    summary="inputs of a drafter's passes: tokens shifted by one, then one token per request and pass",
    axes=AXES,
    rules=RULES,
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
    redundant=slots.redundant,
)
