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
State is read from the inputs and written to the outputs; an engine passes one array as both. That is legal because the
slots of a batch are distinct.

vLLM 0.33 takes three launches for it. prompt_lens and all_token_ids are in pinned host memory there (``memory: uva``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from spec_decode_bench.baselines.post_update.cases import CONTENTS
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.decode_batch import accepted_drafts, int32
from spec_decode_bench.baselines.workloads.written import Written, as_arrays
from spec_decode_bench.harness.contract import UVA, Axis, Expected, Operator, Point, Rule

#: int64 between two rows of the sampler's tokens that are no tokens.
ROW_PADDING = 3
#: Limit of the penalty counts, bytes.
MOST_BIN_BYTES = 1 << 30

PENALTIES = Axis("penalties", axes.choice("off", "on"), "off", "whether tokens are counted for penalties")
NEW_DRAFTS = Axis("new_drafts", axes.choice("no", "yes"), "no", "whether drafts arrive with the tokens")


_vocab_size = axes.whole(1)
#: The last is DeepSeek's, with ids of 17 bits, whose rows of counts leave no room for many requests.
_vocab_size.examples = (9, 1027, 129280)
VOCAB_SIZE = Axis("vocab_size", _vocab_size, 32768, "token ids, and columns of the penalty counts")
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


@dataclass(frozen=True)
class Inputs:
    idx_mapping: torch.Tensor  # [B] int64, request slot; -1 = filtered
    cu_num_logits: torch.Tensor  # [B + 1] int32, starts of the rows' logits
    query_start_loc: torch.Tensor  # [R + 1] int32
    seq_lens: torch.Tensor  # [B] int32, after the step, rejected drafts included
    num_sampled: torch.Tensor  # [B] int32, tokens the sampler produced
    sampled_tokens: torch.Tensor  # [B, next_n] int64, strided rows, packed left; junk from num_sampled on
    num_computed_tokens: torch.Tensor  # [R] int32
    total_len: torch.Tensor  # [R] int32, tokens of the history
    new_drafts: torch.Tensor | None  # [B, k] int64
    output_bin_counts: torch.Tensor | None  # [R, vocab_size] int32
    prompt_lens_device: torch.Tensor | None  # [R] int32
    prompt_lens_host: torch.Tensor | None = field(metadata=UVA)  # the same in pinned memory, where memory = uva

    prompt_lens = slots.in_either_memory("prompt_lens")


@dataclass(frozen=True)
class Outputs:
    num_sampled: torch.Tensor  # [R] int32, by row
    num_rejected: torch.Tensor  # [R] int32, by row
    num_computed_tokens: torch.Tensor  # [R] int32, by slot, as all that follow
    total_len: torch.Tensor  # [R] int32
    last_sampled_tokens: torch.Tensor  # [R] int64
    num_accepted_tokens: torch.Tensor  # [R] int32
    draft_tokens: torch.Tensor | None  # [R, k] int64
    output_bin_counts: torch.Tensor | None  # [R, vocab_size] int32
    all_token_ids_device: torch.Tensor | None  # [R, history_len] int32
    all_token_ids_host: torch.Tensor | None = field(metadata=UVA)

    all_token_ids = slots.in_either_memory("all_token_ids")


def _has_drafts(point: Point) -> bool:
    return point.new_drafts == "yes" and point.next_n > 1


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    step, rng = slots.make_step(point, seed), np.random.default_rng([seed, 2])
    rows, real, k = point.batch_size, slots.num_real(point), point.next_n - 1
    logits = torch.diff(step.query_start_loc[: rows + 1]).numpy().astype(np.int64)
    logits[real - point.prefills : real] = 1
    sampled = 1 + np.minimum(accepted_drafts(rng, point.acceptance, rows, k), np.maximum(logits - 1, 0))
    tokens = torch.full((rows, point.next_n + ROW_PADDING), slots.UNUSED)[:, : point.next_n]
    drawn = slots.token_ids(rng, point.vocab_size, rows, point.next_n)
    tokens.copy_(torch.where(torch.arange(point.next_n) < torch.from_numpy(sampled)[:, None], drawn, slots.UNUSED))
    idx_mapping = step.idx_mapping[:real].numpy()
    history = (rng.random(real) * (point.history_len - sampled[:real] + 1)).astype(np.int64)
    bins = None
    if point.penalties == "on":
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


def make_outputs(point: Point) -> Outputs:
    capacity, counts = point.max_num_seqs, [torch.empty(point.max_num_seqs, dtype=torch.int32) for _ in range(5)]
    history = torch.empty(capacity, point.history_len, dtype=torch.int32)
    return Outputs(
        num_sampled=counts[0],
        num_rejected=counts[1],
        num_computed_tokens=counts[2],
        total_len=counts[3],
        last_sampled_tokens=torch.empty(capacity, dtype=torch.int64),
        num_accepted_tokens=counts[4],
        draft_tokens=torch.empty(capacity, point.next_n - 1, dtype=torch.int64) if _has_drafts(point) else None,
        output_bin_counts=torch.empty(capacity, point.vocab_size, dtype=torch.int32)
        if point.penalties == "on"
        else None,
        **slots.placed(point, all_token_ids=history),
    )


def views(point: Point, out: Outputs) -> dict[str, torch.Tensor]:
    rows = {"num_sampled": out.num_sampled[: point.batch_size], "num_rejected": out.num_rejected[: point.batch_size]}
    by_slot = (
        "num_computed_tokens",
        "total_len",
        "last_sampled_tokens",
        "num_accepted_tokens",
        "draft_tokens",
        "output_bin_counts",
        "all_token_ids",
    )
    return rows | {name: view for name in by_slot if (view := getattr(out, name)) is not None}


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    x, written = as_arrays(x), Written(vars(make_outputs(point)))
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


def input_bytes(point: Point) -> int:
    bins = 4 * point.max_num_seqs * point.vocab_size if point.penalties == "on" else 0
    return bins + 16 * point.batch_size * point.next_n


def in_place(point: Point) -> Mapping[str, str]:
    """vLLM updates its counts where they are."""
    return {name: name for name in ("num_computed_tokens", "total_len", "output_bin_counts")}


operator = Operator.of_module(
    __name__,
    summary="sampled tokens -> counts, history, penalties and last tokens of the request slots",
    baseline="op_chain",
)
