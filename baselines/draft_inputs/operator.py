"""draft_inputs: inputs of the k forward passes of an MTP or EAGLE drafter.

The first pass runs over the target's tokens shifted by one, the further ones over one token per request. Shapes are
fixed: rejected tokens stay in the batch as dead rows. For row b < B with q query tokens, kept = q - num_rejected[b],
end = query_start_loc[b] + kept - 1, M = max_model_len:

    first   ids[query_start_loc[b] + j] = target_ids[query_start_loc[b] + j + 1]      0 <= j < kept - 1
            ids[end] = last[idx_mapping[b]] where num_sampled[b] > 0, else next_prefill[idx_mapping[b]]
            pos[query_start_loc[b] + j] = target_pos[query_start_loc[b] + j]          0 <= j < kept
            last_index[b] = end;  starts[b] = query_start_loc[b];  lens[b] = seq_lens[b];  step = 0
            from row B on: last_index = 0, lens = 0, starts = number of tokens
    second  ids[b] = drafts[b, 0];  src[b] = p + 2, with p = pos_before[b]
            pos[b] = min(p + 1, M - 1);  lens[b] = min(seq_lens[b] - num_rejected[b] + 1, M)
            starts[i] = min(i, B) for i <= R;  lens = 0 from row B on
    later   drafts[b, step] = sampled[b], and unless step = k - 1:
            ids[b] = sampled[b];  src[b] = src_before[b] + 1;  hidden[b] = hidden_before[b]
            pos[b] = min(pos_before[b] + 1, M - 1);  lens[b] = min(lens_before[b] + 1, M)

Where positions do not advance (``advance: no``), pos and lens get no + 1. step is device data: one graph serves all
passes. Everything else keeps its contents; last_index, lens and starts are complete, because captured graphs read them
(a stale last_index is a read out of bounds, vLLM #39773). Sampling keys (src) advance even at the end of the model's
range, where positions stick (vLLM #54282).

later reads state from the inputs; an engine passes one array as both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from baselines.draft_inputs.cases import CONTENTS, EDGE_CASES, SEQUENCES
from baselines.workloads import axes
from baselines.workloads import request_slots as slots
from baselines.workloads.decode_batch import int32
from harness.contract import Axis, Expected, Operator, Point, Rule

DRAFT_PASS = Axis(
    "draft_pass", axes.choice("first", "second", "later"), "first", "which of the drafter's passes gets its inputs"
)
ADVANCE = Axis("advance", axes.choice("yes", "no"), "yes", "whether positions advance from pass to pass")
HIDDEN_SIZE = Axis("hidden_size", axes.whole(1), 7168, "2-byte values of a hidden row, copied by later passes")
AXES = slots.bounded(
    axes.BATCH_SIZE,
    axes.NEXT_N,
    axes.MAX_DECODE_LEN,
    axes.DECODE_LEN,
    axes.CONTEXT_LEN,
    axes.MAX_MODEL_LEN,
    slots.PREFILLS,
    slots.PREFILL_LEN,
    slots.MAX_NUM_SEQS,
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


@dataclass(frozen=True)
class Inputs:
    """Tensors that a pass does not read are None. sampled: the pass's argmax."""

    query_start_loc: torch.Tensor  # [R + 1] int32, of the target's step
    seq_lens: torch.Tensor  # [B] int32, rejected drafts included
    num_rejected: torch.Tensor  # [B] int32
    step: torch.Tensor  # [1] int64, 1 .. k - 1: the pass that has run
    target_ids: torch.Tensor | None = None  # [max_num_batched_tokens] int32
    target_pos: torch.Tensor | None = None  # [max_num_batched_tokens] int64
    idx_mapping: torch.Tensor | None = None  # [B] int64
    num_sampled: torch.Tensor | None = None  # [B] int32
    last: torch.Tensor | None = None  # [R] int64, by slot
    next_prefill: torch.Tensor | None = None  # [R] int32, by slot
    drafts: torch.Tensor | None = None  # [B, k] int64
    sampled: torch.Tensor | None = None  # [B] int64
    pos_before: torch.Tensor | None = None  # [B] int64
    src_before: torch.Tensor | None = None  # [B] int64
    lens_before: torch.Tensor | None = None  # [B] int32
    hidden_before: torch.Tensor | None = None  # [B, hidden_size] int16
    num_tokens: int = 0  # A, as the host counts them


@dataclass(frozen=True)
class Outputs:
    ids: torch.Tensor  # [max_num_batched_tokens] int32
    pos: torch.Tensor  # [max_num_batched_tokens] int64
    lens: torch.Tensor  # [R] int32
    starts: torch.Tensor | None = None  # [R + 1] int32; first and second
    last_index: torch.Tensor | None = None  # [R] int64; first
    step: torch.Tensor | None = None  # [1] int64; first
    src: torch.Tensor | None = None  # [R] int64; second and later
    drafts: torch.Tensor | None = None  # [R, k] int64; later
    hidden: torch.Tensor | None = None  # [R, hidden_size] int16; later


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    step, rng = slots.make_step(point, seed), np.random.default_rng([seed, 3])
    rows, k, tokens = point.batch_size, point.next_n - 1, slots.num_tokens(point)
    query = torch.diff(step.query_start_loc[: rows + 1]).numpy()
    accepted = (rng.random((rows, max(k, 1))) < point.acceptance).cumprod(axis=1).sum(axis=1)
    chunk = np.arange(rows) >= rows - point.prefills
    ends = (step.seq_lens >= step.prompt_lens[step.idx_mapping]).numpy()
    sampled = np.where(chunk, ends, np.minimum(accepted, query - 1) + 1)
    rejected = np.where(chunk, 0, query - sampled)
    token = lambda *shape: torch.from_numpy(rng.integers(0, 129280, shape))  # noqa: E731
    shared = {
        "query_start_loc": step.query_start_loc,
        "seq_lens": step.seq_lens,
        "num_rejected": int32(rejected),
        "step": torch.from_numpy(rng.integers(1, max(k, 2), 1)),
        "num_tokens": tokens,
    }
    before = step.seq_lens.long() - int32(rejected) - 1
    if point.draft_pass == "first":
        ids = torch.full((point.max_num_batched_tokens,), slots.UNUSED, dtype=torch.int32)
        pos = torch.full((point.max_num_batched_tokens,), slots.UNUSED)
        ids[:tokens] = token(tokens)
        pos[:tokens] = torch.cat(
            [torch.arange(n - q, n) for n, q in zip(step.seq_lens.tolist(), query.tolist(), strict=True)]
        )
        by_slot = {"last": token(point.max_num_seqs), "next_prefill": token(point.max_num_seqs).int()}
        rest = {"target_ids": ids, "target_pos": pos, "idx_mapping": step.idx_mapping, "num_sampled": int32(sampled)}
        return Inputs(**shared, **rest, **by_slot)
    if point.draft_pass == "second":
        return Inputs(**shared, pos_before=before, drafts=token(rows, k))
    done = int(shared["step"])
    return Inputs(
        **shared,
        sampled=token(rows),
        pos_before=(before + done).clamp(max=point.max_model_len - 1),
        src_before=before + 1 + done,
        lens_before=(before + 1 + done).clamp(max=point.max_model_len).int(),
        hidden_before=torch.from_numpy(rng.integers(-(2**15), 2**15, (rows, point.hidden_size), dtype=np.int16)),
    )


def make_outputs(point: Point) -> Outputs:
    slots_, tokens, which = point.max_num_seqs, point.max_num_batched_tokens, point.draft_pass
    empty = lambda dtype, *shape: torch.empty(*shape, dtype=dtype)  # noqa: E731
    return Outputs(
        ids=empty(torch.int32, tokens),
        pos=empty(torch.int64, tokens),
        lens=empty(torch.int32, slots_),
        starts=None if which == "later" else empty(torch.int32, slots_ + 1),
        last_index=empty(torch.int64, slots_) if which == "first" else None,
        step=empty(torch.int64, 1) if which == "first" else None,
        src=None if which == "first" else empty(torch.int64, slots_),
        drafts=empty(torch.int64, slots_, point.next_n - 1) if which == "later" else None,
        hidden=empty(torch.int16, slots_, point.hidden_size) if which == "later" else None,
    )


def views(point: Point, out: Outputs) -> dict[str, torch.Tensor]:
    return {name: buffer for name, buffer in vars(out).items() if buffer is not None}


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    rows, capacity, most, k = len(x.seq_lens), point.max_num_seqs, point.max_model_len, point.next_n - 1
    value = {name: torch.zeros_like(buffer) for name, buffer in views(point, make_outputs(point)).items()}
    kept = {name: torch.ones(buffer.shape, dtype=torch.bool) for name, buffer in value.items()}

    def put(name: str, place: object, content: object) -> None:
        value[name][place], kept[name][place] = content, False

    advance, starts = int(point.advance == "yes"), x.query_start_loc.tolist()
    for b in range(rows):
        length, rejected = int(x.seq_lens[b]), int(x.num_rejected[b])
        if point.draft_pass == "first":
            start, s = starts[b], int(x.idx_mapping[b])
            tokens = starts[b + 1] - start - rejected
            for j in range(tokens - 1):
                put("ids", start + j, x.target_ids[start + j + 1])
            put("ids", start + tokens - 1, x.last[s] if x.num_sampled[b] > 0 else x.next_prefill[s])
            for j in range(tokens):
                put("pos", start + j, x.target_pos[start + j])
            put("last_index", b, start + tokens - 1)
            put("lens", b, length)
        elif point.draft_pass == "second":
            p = int(x.pos_before[b])
            put("ids", b, x.drafts[b, 0])
            put("src", b, p + 2)
            put("pos", b, min(p + 1, most - 1) if advance else p)
            put("lens", b, min(length - rejected + 1, most) if advance else length - rejected)
        else:
            put("drafts", (b, int(x.step)), x.sampled[b])
            if int(x.step) == k - 1:
                continue
            p, n = int(x.pos_before[b]), int(x.lens_before[b])
            put("ids", b, x.sampled[b])
            put("src", b, int(x.src_before[b]) + 1)
            put("hidden", b, x.hidden_before[b])
            put("pos", b, min(p + 1, most - 1) if advance else p)
            put("lens", b, min(n + 1, most) if advance else n)
    if point.draft_pass != "later":
        put("lens", slice(rows, capacity), 0)
        for i in range(capacity + 1):
            put("starts", i, starts[min(i, rows)] if point.draft_pass == "first" else min(i, rows))
    if point.draft_pass == "first":
        put("last_index", slice(rows, capacity), 0)
        put("step", 0, 0)
    return {name: Expected(value[name], kept[name]) for name in value}


def bytes_moved(point: Point, x: Inputs) -> int:
    """What a pass reads of its inputs, each element once, and what it writes."""
    rows, tail = len(x.seq_lens), point.max_num_seqs - len(x.seq_lens)
    if point.draft_pass == "first":
        kept = x.num_tokens - int(x.num_rejected.sum())
        per_row = (
            4 + 4 + 4 + 8 + 4 + 8 + 4 + 4 + 8
        )  # starts, lengths, rejected, idx_mapping, sampled, last; three written
        return rows * per_row + kept * (4 + 8) * 2 - 4 * rows + tail * 16 + 16
    if point.draft_pass == "second":
        return rows * (8 + 8 + 4 + 4 + 4 + 8 + 8 + 4 + 4) + tail * 8 + 4
    last = int(x.step) == point.next_n - 2
    return 8 + rows * (16 if last else 16 + 8 + 8 + 4 + 4 + 8 + 8 + 4 + 4 * point.hidden_size)


def input_bytes(point: Point) -> int:
    of_pass = {
        "first": 12 * point.max_num_batched_tokens,
        "second": 8 * point.batch_size * point.next_n,
        "later": 2 * point.max_num_seqs * point.hidden_size,
    }
    return of_pass[point.draft_pass]


operator = Operator.of_module(
    __name__,
    summary="inputs of a drafter's passes: tokens shifted by one, then one token per request and pass",
    baseline="op_chain",
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    redundant=slots.redundant,
)
