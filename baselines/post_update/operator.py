"""post_update: what a verified step leaves in the request slots, for the next step to start from.

For row b, s = idx_mapping[b], n = cu_num_logits[b + 1] - cu_num_logits[b],
q = query_start_loc[b + 1] - query_start_loc[b]:

    chunk:  seq_lens[b] < prompt_lens[s]         the prompt goes on, so what was sampled does not count
    ns = num_sampled[b], nr[b] = n - ns          tokens produced, drafts rejected; both 0 for a chunk

and for s >= 0 (a row of slot -1 is filtered: it leaves nothing behind, and nobody reads its ns and nr):

    num_computed_tokens[s] += q - nr
    total_len[s] += ns
    last_sampled_tokens[s] = sampled_tokens[b, ns - 1]          where ns > 0, else kept
    all_token_ids[s, total_len + i] = sampled_tokens[b, i]      i < ns, total_len before the step
    output_bin_counts[s, sampled_tokens[b, i]] += 1             i < ns, with penalties: a token that occurs twice
                                                                counts twice
    draft_tokens[s] = new_drafts[b]                             where drafts arrive with the tokens (pipeline
                                                                parallelism)
    num_accepted_tokens[s] = max(ns, 1)                         for recurrent layers

The last chunk of a prompt (seq_lens = prompt_lens) does sample. Tokens from ns on are junk. Other slots do not change.
State is read from the inputs and written to the outputs; an engine passes one array as both, because the slots of a
batch are distinct.

vLLM 0.33 has prompt_lens and all_token_ids in pinned host memory (``memory: uva``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.post_update.cases import CONTENTS, EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.decode_batch import accepted_drafts, int32
from spec_decode_bench.baselines.workloads.written import Written, as_arrays
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I32, I64, Tensors, field

#: int64 between two rows of the sampler's tokens that are no tokens.
ROW_PADDING = 3
#: Limit of the penalty counts, bytes.
MOST_BIN_BYTES = 1 << 30

PENALTIES = Axis("penalties", axes.choice("off", "on"), "off", "whether tokens are counted for penalties")
NEW_DRAFTS = Axis("new_drafts", axes.choice("no", "yes"), "no", "whether drafts arrive with the tokens")


VOCAB_SIZE = Axis(
    "vocab_size",
    axes.whole(1),
    32768,
    "token ids, and columns of the penalty counts",
    used={50257: "GPT-2", 129280: "DeepSeek-V3", 262144: "Gemma 3"},
)
HISTORY_LEN = Axis("history_len", axes.whole(1), 2048, "tokens of history that a slot holds")

AXES = slots.bounded(
    *slots.STEP, axes.ACCEPTANCE, PENALTIES, NEW_DRAFTS, VOCAB_SIZE, HISTORY_LEN, slots.MEMORY, axes.contents(CONTENTS)
)
RULES = (
    *slots.STEP_RULES,
    Rule(
        "history_len ({history_len}) must hold a step of next_n ({next_n}) tokens", lambda p: p.next_n <= p.history_len
    ),
    Rule(
        "the penalty counts of max_num_seqs ({max_num_seqs}) x vocab_size ({vocab_size}) must not exceed 1 GiB",
        lambda p: p.penalties == "off" or 4 * p.max_num_seqs * p.vocab_size <= MOST_BIN_BYTES,
    ),
)


def _has_drafts(point: Point) -> bool:
    return point.new_drafts == "yes" and point.next_n > 1


def with_penalties(point: Point) -> bool:
    return point.penalties == "on"


def tokens_stride(point: Point) -> int:
    return point.next_n + ROW_PADDING


class Inputs(Tensors):
    idx_mapping: I64["batch_size"]  # request slot; -1 = filtered
    cu_num_logits: I32["batch_size + 1"]  # starts of the rows' logits
    query_start_loc: I32["max_num_seqs + 1"]
    seq_lens: I32["batch_size"]  # after the step, rejected drafts included
    num_sampled: I32["batch_size"]  # tokens the sampler produced
    # packed left; junk from num_sampled on
    sampled_tokens: I64["batch_size", "next_n"] = field(strided=tokens_stride)
    num_computed_tokens: I32["max_num_seqs"]
    total_len: I32["max_num_seqs"]  # tokens of the history
    new_drafts: I64["batch_size", "next_n - 1"] = field(where=_has_drafts)
    output_bin_counts: I32["max_num_seqs", "vocab_size"] = field(where=with_penalties)
    prompt_lens_device: I32["max_num_seqs"] = field(where=slots.on_device)
    prompt_lens_host: I32["max_num_seqs"] = field(uva=True, where=slots.on_host)

    prompt_lens = slots.in_either_memory("prompt_lens")


class Outputs(Tensors):
    num_sampled: I32["max_num_seqs"] = field(read="batch_size")  # by row
    num_rejected: I32["max_num_seqs"] = field(read="batch_size")  # by row
    num_computed_tokens: I32["max_num_seqs"]  # by slot, as all that follow
    total_len: I32["max_num_seqs"]
    last_sampled_tokens: I64["max_num_seqs"]
    num_accepted_tokens: I32["max_num_seqs"]
    draft_tokens: I64["max_num_seqs", "next_n - 1"] = field(where=_has_drafts)
    output_bin_counts: I32["max_num_seqs", "vocab_size"] = field(where=with_penalties)
    all_token_ids_device: I32["max_num_seqs", "history_len"] = field(where=slots.on_device)
    all_token_ids_host: I32["max_num_seqs", "history_len"] = field(uva=True, where=slots.on_host)

    all_token_ids = slots.in_either_memory("all_token_ids")


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    step, rng = slots.make_step(point, seed), np.random.default_rng([seed, 2])
    rows, real, k = point.batch_size, slots.num_real(point), point.next_n - 1
    logits = torch.diff(step.query_start_loc[: rows + 1]).numpy().astype(np.int64)
    logits[real - point.prefills : real] = 1
    sampled = 1 + np.minimum(accepted_drafts(rng, point.acceptance, rows, k), np.maximum(logits - 1, 0))
    tokens = torch.full((rows, tokens_stride(point)), slots.UNUSED)[:, : point.next_n]
    drawn = slots.token_ids(rng, point.vocab_size, rows, point.next_n)
    tokens.copy_(torch.where(torch.arange(point.next_n) < torch.from_numpy(sampled)[:, None], drawn, slots.UNUSED))
    idx_mapping = step.idx_mapping[:real].numpy()
    history = (rng.random(real) * (point.history_len - sampled[:real] + 1)).astype(np.int64)
    bins = None
    if with_penalties(point):
        bins = torch.from_numpy(rng.integers(0, 9, (point.max_num_seqs, point.vocab_size), dtype=np.int32))
    return Inputs(
        idx_mapping=step.idx_mapping,
        cu_num_logits=int32(np.append(0, logits.cumsum())),
        query_start_loc=step.query_start_loc,
        seq_lens=step.seq_lens,
        num_sampled=int32(sampled),
        sampled_tokens=tokens,
        num_computed_tokens=step.num_computed_tokens,
        total_len=slots.by_slot(idx_mapping, history, point.max_num_seqs),
        new_drafts=slots.token_ids(rng, point.vocab_size, rows, k) if _has_drafts(point) else None,
        output_bin_counts=bins,
        **slots.placed(point, prompt_lens=step.prompt_lens),
    )


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    x, written = as_arrays(x), Written(vars(Outputs.empty(point)))
    put = written.put
    not_read = torch.zeros(point.max_num_seqs, dtype=torch.bool)
    history = "all_token_ids_device" if point.memory == "device" else "all_token_ids_host"

    for b, s in enumerate(x.idx_mapping.tolist()):
        ns = nr = 0
        if s < 0:
            not_read[b] = True
        elif x.seq_lens[b] >= x.prompt_lens[s]:
            ns = int(x.num_sampled[b])
            nr = int(x.cu_num_logits[b + 1] - x.cu_num_logits[b]) - ns
        put("num_sampled", b, ns)
        put("num_rejected", b, nr)
        if s < 0:
            continue
        total, tokens = int(x.total_len[s]), x.sampled_tokens[b].tolist()
        put(
            "num_computed_tokens",
            s,
            int(x.num_computed_tokens[s]) + int(x.query_start_loc[b + 1] - x.query_start_loc[b]) - nr,
        )
        put("total_len", s, total + ns)
        put("num_accepted_tokens", s, max(ns, 1))
        if ns > 0:
            put("last_sampled_tokens", s, tokens[ns - 1])
        for i in range(ns):
            put(history, (s, total + i), tokens[i])
            if x.output_bin_counts is not None:
                put(
                    "output_bin_counts",
                    (s, tokens[i]),
                    int(x.output_bin_counts[s, tokens[i]]) + tokens[:ns].count(tokens[i]),
                )
        if x.new_drafts is not None:
            put("draft_tokens", s, x.new_drafts[b])
    return written.expected(may_keep={"num_sampled": not_read, "num_rejected": not_read})


def bytes_moved(point: Point, x: Inputs) -> int:
    """Device memory: per row slot, boundaries, length, count and results; its tokens; per slot counts read and written;
    history, penalty counts and drafts as they occur.
    """
    rows, tokens = len(x.idx_mapping), 0
    for b, s in enumerate(x.idx_mapping.tolist()):
        if s >= 0 and x.seq_lens[b] >= x.prompt_lens[s]:
            tokens += int(x.num_sampled[b])
    on_device = point.memory == "device"
    live = int((x.idx_mapping >= 0).sum())
    per_row = rows * (8 + 4 * 5) + 8 + live * (4 * 2 + 4 * 3 + 8 + (4 if on_device else 0))
    per_token = 8 + (4 if on_device else 0) + (8 if x.output_bin_counts is not None else 0)
    return per_row + tokens * per_token + (16 * live * (point.next_n - 1) if x.new_drafts is not None else 0)


def redundant(point: Point) -> str | None:
    if point.new_drafts == "yes" and point.next_n == 1:
        return "there are no drafts"
    return slots.redundant(point)


def in_place(point: Point) -> Mapping[str, str]:
    """vLLM updates its counts where they are."""
    return {name: name for name in ("num_computed_tokens", "total_len", "output_bin_counts")}


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point)


operator = Operator(
    name="post_update",
    summary="sampled tokens -> counts, history, penalties and last tokens of the request slots",
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
