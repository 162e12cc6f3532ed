"""draft_budget: adaptive verification's choice of the drafts that a step verifies, and the boundaries that follow.

The host sets a budget for the step; the device gives it to the drafts that are most likely to survive. Row b < B' has d
drafts, and draft i survives with p = c[0] * ... * c[i], in fp32 (c: the drafter's confidences, in [0, 1]). Of all
drafts of the batch those with the highest p are admitted, draft_budget of them or as many as there are. a[b] of them
are in row b, its first ones, as p never rises along a row.

``rule: vllm``, for s = idx_mapping[b] and all B rows (B' = B):

    c = confidence[s], d = num_drafts[b]            equal p: the earlier row first, in it the earlier draft
    num_drafts[b] = a[b]
    cu_num_logits[0] = 0,   cu_num_logits[b + 1] = cu_num_logits[b] + 1 + a[b]
    query_start_loc[0] = 0, query_start_loc[b + 1] = query_start_loc[b] + non_draft_tokens[b] + a[b], num_tokens behind

``rule: sglang``, rows from B' on are padding up to the number of rows of a captured graph, which has num_tokens tokens:

    c = confidence[b], d = k; no draft with p < 1e-6       equal p: the earlier draft first, of these the earlier row
    verify_lens[b] = 1 + a[b]                              b < B'
    the rest, num_tokens - sum(1 + a[b]), is shared by the padding rows, of which the first ones have one token more;
    without any, the last row has it. capped: no row has more than k + 1 tokens, and some of the rest is in no row
    query_start_loc[0] = 0, query_start_loc[b + 1] = query_start_loc[b] + verify_lens[b]

The order of equal p matters: a new request has confidence 1 in all its drafts (vLLM), and tensor-parallel ranks that
chose other drafts would not run the same batch. Everything else keeps its contents. The confidences here have so few
bits that their products are exact in any order.

vLLM 0.33 (v1/worker/gpu/spec_decode/adaptive_verification.py: reallocate_drafts, _assign_draft_token_budget) uploads
num_drafts and non_draft_tokens (``memory: uva`` reads them over the bus), and takes a compiled gather, product, top-k
and sum, two prefix sums and fills. torch.topk breaks ties by index on a GPU. SGLang 0.5.23 takes three kernels
(kernels/ops/speculative/dspark/dspark_schedule.py), and three more for boundaries and padding
(ragged_verify_kernels.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.draft_budget.cases import CONTENTS, EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.context_lengths import plain
from spec_decode_bench.baselines.workloads.decode_batch import int32, num_query_tokens, query_lens
from spec_decode_bench.baselines.workloads.written import Written, as_arrays
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import F32, I32, I64, Tensors, field

#: SGLang's survival_eps: drafts that survive more seldom are never verified.
LEAST_SURVIVAL = 1e-6
#: Confidences of the first draft are multiples of 2^-FIRST_BITS; 24 bits are left for the others.
FIRST_BITS, MANTISSA_BITS = 12, 24
#: Drafts whose confidence is not 1, at most: products stay normal numbers.
MOST_UNCERTAIN = 64
#: Confidence in a slot that the batch does not use: it would be the first to be admitted.
UNUSED_CONFIDENCE = 2.0


def _share(value: Any) -> float:
    """Parser of numbers in [0, 2]. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 2:
        raise ValueError("must be a number in [0, 2]")
    return float(value)


_share.examples = (0.0, 0.1, 0.5, 0.9, 1.0, 1.5)

RULE = Axis(
    "rule",
    axes.choice("vllm", "sglang"),
    "vllm",
    "whose: scheduled drafts, ties by row (vllm), or all drafts, ties by draft, padded to a captured size (sglang)",
)
BUDGET = Axis(
    "budget", _share, 0.5, "drafts that the step verifies, as a share of the batch's, rounded down; 1 admits all", plain
)
CAPPED = Axis("capped", axes.choice("no", "yes"), "no", "whether padding makes no row longer than next_n tokens")
AXES = slots.bounded(
    RULE,
    axes.BATCH_SIZE,
    replace(axes.NEXT_N, default=8, used={2: "one draft", 6: "DSpark with five drafts", 8: "DSpark with seven drafts"}),
    BUDGET,
    axes.MAX_DECODE_LEN,
    axes.DECODE_LEN,
    slots.PREFILLS,
    slots.PREFILL_LEN,
    slots.MAX_NUM_SEQS,
    slots.MEMORY,
    axes.PADDING,
    axes.TOKEN_PADDING,
    CAPPED,
    axes.contents(CONTENTS),
    largest=dict.fromkeys(("batch_size", "max_num_seqs", "token_padding", "prefill_len"), 4097)
    | {"next_n": 65, "max_decode_len": 65, "prefills": 129},
)
RULES = (
    axes.DECODE_LEN_FITS,
    slots.SEQS_FIT,
    Rule("prefills ({prefills}) must not exceed batch_size ({batch_size})", lambda p: p.prefills <= p.batch_size),
    Rule(
        "the tokens of batch_size ({batch_size}), next_n ({next_n}), token_padding ({token_padding}) and prefills "
        "({prefills} x {prefill_len}) must be less than 2^31",
        lambda p: p.batch_size * p.next_n + p.token_padding + p.prefills * p.prefill_len < 2**31,
    ),
)


def by_vllm(point: Point) -> bool:
    return point.rule == "vllm"


def by_sglang(point: Point) -> bool:
    return not by_vllm(point)


def uploaded(point: Point) -> bool:
    """Whether vLLM's counts of the host are on the device already."""
    return by_vllm(point) and slots.on_device(point)


def on_bus(point: Point) -> bool:
    """Whether they are read over the bus."""
    return by_vllm(point) and slots.on_host(point)


def num_rows(point: Point) -> int:
    """B': rows that have drafts to choose from."""
    return point.batch_size if by_vllm(point) else slots.num_real(point)


def num_drafts(point: Point) -> int:
    """Drafts of the batch."""
    if by_sglang(point):
        return num_rows(point) * (point.next_n - 1)
    decodes = point.batch_size - point.prefills
    return num_query_tokens(point.decode_len, decodes, point.max_decode_len) - decodes


def draft_budget(point: Point) -> int:
    """vLLM never admits more drafts than the batch has."""
    share = math.floor(round(point.budget * num_drafts(point), 6))
    return min(share, num_drafts(point)) if by_vllm(point) else share


def num_tokens(point: Point) -> int:
    """Of the step (vllm), or of the captured graph (sglang), which holds what may be admitted."""
    if by_vllm(point):
        return point.batch_size + point.prefills * (point.prefill_len - 1) + draft_budget(point)
    return num_rows(point) + min(draft_budget(point), num_drafts(point)) + point.token_padding


def longest_padding(point: Point) -> int:
    """Most tokens of a row."""
    return point.next_n if point.capped == "yes" else 2**31 - 1


def _confidence_rows(point: Point) -> int:
    return point.max_num_seqs if by_vllm(point) else num_rows(point)


def _starts_read(point: Point) -> int:
    return point.max_num_seqs + 1 if by_vllm(point) else point.batch_size + 1


class Inputs(Tensors):
    confidence: F32[_confidence_rows, "next_n - 1"]  # by slot (vllm) or row (sglang), in [0, 1]
    draft_budget: int
    num_tokens: int  # of the step (vllm) or the captured graph (sglang)
    idx_mapping: I64["batch_size"] = field(where=by_vllm)  # request slot
    num_drafts_device: I32["batch_size"] = field(where=uploaded)  # scheduled
    non_draft_tokens_device: I32["batch_size"] = field(where=uploaded)  # 1, or those of a prefill chunk
    num_drafts_host: I32["batch_size"] = field(uva=True, where=on_bus)
    non_draft_tokens_host: I32["batch_size"] = field(uva=True, where=on_bus)

    num_drafts = slots.in_either_memory("num_drafts")
    non_draft_tokens = slots.in_either_memory("non_draft_tokens")


class Outputs(Tensors):
    query_start_loc: I32["max_num_seqs + 1"] = field(read=_starts_read)
    num_drafts: I32["max_num_seqs"] = field(read="batch_size", where=by_vllm)  # admitted
    cu_num_logits: I32["max_num_seqs + 1"] = field(read="batch_size + 1", where=by_vllm)
    verify_lens: I32["max_num_seqs"] = field(read="batch_size", where=by_sglang)


def confidences(rng: np.random.Generator, rows: int, drafts: int) -> np.ndarray:
    """float32 [rows, drafts] in (0, 1], whose products along a row are exact in fp32, in any order."""
    drawn = np.ones((rows, drafts))
    if drafts:
        bits = max((MANTISSA_BITS - FIRST_BITS) // max(drafts - 1, 1), 1)
        varied = drawn[:, :MOST_UNCERTAIN]
        varied[:, 1:] = rng.integers(1 << bits - 1, (1 << bits) + 1, varied[:, 1:].shape) / (1 << bits)
        varied[:, 0] = rng.integers(1 << FIRST_BITS - 2, (1 << FIRST_BITS) + 1, rows) / (1 << FIRST_BITS)
    return drawn.astype(np.float32)


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    rng, rows = np.random.default_rng(seed), num_rows(point)
    drawn = torch.from_numpy(confidences(rng, rows, point.next_n - 1))
    if by_sglang(point):
        return Inputs(drawn, draft_budget(point), num_tokens(point))
    idx_mapping = torch.from_numpy(rng.permutation(point.max_num_seqs)[:rows])
    confidence = torch.full((point.max_num_seqs, point.next_n - 1), UNUSED_CONFIDENCE)
    confidence[idx_mapping] = drawn
    drafts, others = np.zeros(rows, dtype=np.int64), np.ones(rows, dtype=np.int64)
    decodes = rows - point.prefills
    drafts[:decodes] = rng.permutation(query_lens(point.decode_len, decodes, point.max_decode_len)) - 1
    others[decodes:] = point.prefill_len
    return Inputs(
        confidence,
        draft_budget(point),
        num_tokens(point),
        idx_mapping=idx_mapping,
        **slots.placed(point, num_drafts=int32(drafts), non_draft_tokens=int32(others)),
    )


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    x, written, drafts = as_arrays(x), Written(vars(Outputs.empty(point))), []
    put, rows = written.put, num_rows(point)
    for b in range(rows):
        survival, row = 1.0, x.confidence[x.idx_mapping[b] if by_vllm(point) else b].tolist()
        for i in range(x.num_drafts[b] if by_vllm(point) else len(row)):
            survival *= row[i]
            if by_vllm(point):
                drafts.append((-survival, b, i))
            elif survival >= LEAST_SURVIVAL:
                drafts.append((-survival, i, b))
    admitted = [0] * rows
    for _, first, second in sorted(drafts)[: x.draft_budget]:
        admitted[first if by_vllm(point) else second] += 1

    put("query_start_loc", 0, 0)
    start = 0
    if by_vllm(point):
        put("cu_num_logits", 0, 0)
        logits = 0
        for b in range(rows):
            logits += 1 + admitted[b]
            start += int(x.non_draft_tokens[b]) + admitted[b]
            put("num_drafts", b, admitted[b])
            put("cu_num_logits", b + 1, logits)
            put("query_start_loc", b + 1, start)
        put("query_start_loc", slice(rows + 1, None), x.num_tokens)
        return written.expected()
    lens, padding = [1 + count for count in admitted], point.batch_size - rows
    rest = x.num_tokens - sum(lens)
    if padding:
        lens += [rest // padding + (1 if j < rest % padding else 0) for j in range(padding)]
    else:
        lens[-1] += rest
    for b, length in enumerate(lens):
        length = min(length, longest_padding(point))
        start += length
        put("verify_lens", b, length)
        put("query_start_loc", b + 1, start)
    return written.expected()


def bytes_moved(point: Point, x: Inputs) -> int:
    """Per row its counts and results; the confidences of its drafts, where some of them are admitted; boundaries."""
    rows, chooses = point.batch_size, x.draft_budget > 0
    if by_sglang(point):
        return (4 * x.confidence.numel() if chooses else 0) + 4 * (2 * rows + 1)
    chooses = chooses and x.draft_budget < num_drafts(point)
    read = rows * (8 if chooses else 0) + (4 * num_drafts(point) if chooses else 0)
    read += 8 * rows if uploaded(point) else 0
    return read + 4 * (2 * rows + 1) + 4 * (point.max_num_seqs + 1)


def redundant(point: Point) -> str | None:
    if by_sglang(point):
        if point.max_decode_len != point.next_n or point.decode_len != "uniform" or point.prefills:
            return "SGLang's rows all have k drafts"
        if point.memory == "uva":
            return "SGLang reads no counts of the host"
        return slots.redundant(point)
    if point.padding or point.token_padding or point.capped == "yes":
        return "vLLM's rows are not padded"
    if point.budget > 1:
        return "vLLM never admits more drafts than the batch has"
    return slots.redundant(point)


operator = Operator(
    name="draft_budget",
    summary="confidences and a budget -> drafts that each request verifies, boundaries of tokens and logits",
    axes=AXES,
    rules=RULES,
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    baseline="op_chain",
    redundant=redundant,
)
