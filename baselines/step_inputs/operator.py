"""step_inputs: what the target's forward pass reads, from the state that requests keep in their slots.

For row b < B, s = idx_mapping[b], q query tokens from query_start_loc[b] on, L = num_computed_tokens[s] + q, n logit
rows from cu_num_logits[b] on (n <= q), d = n - new_tokens of them for drafts, P = prompt_lens[s]:

    seq_lens[b] = L, 0 from row B on
    positions[query_start_loc[b] + j] = num_computed_tokens[s] + j
    input_ids of the row, in this order, later ones over earlier ones:
        num_computed_tokens[s] < P              all tokens: all_token_ids[s, num_computed_tokens[s] + j]
        L > P, L - n >= P and new_tokens = 1    the first of the last n: last_sampled_tokens[s]
        L > P                                   the last d: draft_tokens[s, 0 .. d - 1]
    next_prefill_tokens[l, s] = all_token_ids[s, L + l] where L + l < P, else 0; rows with L - q < P, l < look_ahead
    logit row r = cu_num_logits[b] + i, of token t = query_start_loc[b + 1] - n + i:
        logits_indices[r] = t                   logit_positions[r] = positions[t]
        expanded_idx_mapping[r] = s             expanded_local_pos[r] = i
        draft_sampled[r] = -1 where i > 0 and positions[t] - i < P, else input_ids[t]

A draft row whose anchor still belongs to the prompt must not be accepted; position decides that, not the placeholder -1
in ``draft_tokens`` (vLLM #54137). Everything else keeps its contents. Counts of the host decide the shape of an output,
never its contents, so boundaries may be built on the device (vLLM #52795).

vLLM 0.33 takes no launch for prompt tokens where the host knows of no row in its prompt (``prompt_rows: none``), and
makes draft_sampled and logit_positions after the forward pass. It has prompt_lens and all_token_ids in pinned host
memory (``memory: uva``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.step_inputs.cases import CONTENTS, EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.decode_batch import int32
from spec_decode_bench.baselines.workloads.written import Written, as_arrays
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I32, I64, Tensors, field

#: Token ids are below.
VOCAB_SIZE = 129280

NEW_TOKENS = Axis("new_tokens", axes.one_of(1, 0), 1, "tokens sampled per step beside the drafts (0: diffusion)")
LOOK_AHEAD = Axis("look_ahead", axes.whole(1), 1, "next tokens of a prompt that are handed to the drafter", largest=65)
PROMPT_ROWS = Axis(
    "prompt_rows",
    axes.choice("none", "some"),
    lambda p: "some" if p.prefills else "none",
    "whether the host knows of requests that are still in their prompt",
)
HISTORY_LEN = Axis("history_len", axes.whole(1), 2048, "tokens of prompt and output that a slot holds")
AXES = slots.bounded(
    *slots.REAL_STEP,
    NEW_TOKENS,
    LOOK_AHEAD,
    PROMPT_ROWS,
    HISTORY_LEN,
    slots.MEMORY,
    axes.MAX_NUM_BATCHED_TOKENS,
    axes.contents(CONTENTS),
)
RULES = (
    *slots.STEP_RULES,
    slots.TOKENS_FIT,
    Rule(
        "prompt_rows ({prompt_rows}) must be some where there are prefills ({prefills})",
        lambda p: p.prompt_rows == "some" or not p.prefills,
    ),
    Rule(
        "history_len ({history_len}) must hold a chunk of prefill_len ({prefill_len}) and look_ahead ({look_ahead})",
        lambda p: p.history_len >= max(p.prefill_len if p.prefills else 0, p.next_n) + p.look_ahead,
    ),
    Rule(
        "prompt_rows ({prompt_rows}) must be some for these contents ({contents})",
        lambda p: p.prompt_rows == "some" or p.contents != "prompts_end_anywhere",
    ),
)


def _logit_counts(point: Point, query: np.ndarray) -> np.ndarray:
    """Logit rows of each row of the batch: all its tokens, or the last one of a chunk."""
    counts = np.minimum(query, point.new_tokens + point.next_n - 1)
    counts[len(query) - point.prefills :] = point.new_tokens
    return counts


def num_logits(point: Point) -> int:
    """N: logit rows of the step."""
    query = np.append(slots.decode_lens(point), np.full(point.prefills, point.prefill_len))
    return int(_logit_counts(point, query).sum())


class Inputs(Tensors):
    idx_mapping: I64["batch_size"]  # request slot
    query_start_loc: I32["max_num_seqs + 1"]
    cu_num_logits: I32["batch_size + 1"]
    num_computed_tokens: I32["max_num_seqs"]
    last_sampled_tokens: I64["max_num_seqs"]
    draft_tokens: I64["max_num_seqs", "next_n - 1"]
    prompt_lens_device: I32["max_num_seqs"] = field(where=slots.on_device)
    all_token_ids_device: I32["max_num_seqs", "history_len"] = field(where=slots.on_device)
    num_tokens: int  # A
    num_logits: int  # N
    prompt_lens_host: I32["max_num_seqs"] = field(uva=True, where=slots.on_host)
    all_token_ids_host: I32["max_num_seqs", "history_len"] = field(uva=True, where=slots.on_host)

    prompt_lens = slots.in_either_memory("prompt_lens")
    all_token_ids = slots.in_either_memory("all_token_ids")


class Outputs(Tensors):
    seq_lens: I32["max_num_seqs"]
    positions: I64["max_num_batched_tokens"] = field(read=slots.num_tokens)
    input_ids: I32["max_num_batched_tokens"] = field(read=slots.num_tokens)
    next_prefill_tokens: I32["look_ahead", "max_num_seqs"]  # by slot
    logits_indices: I64["max_num_seqs * next_n"] = field(read=num_logits)  # as all that follow: by logit row
    expanded_idx_mapping: I64["max_num_seqs * next_n"] = field(read=num_logits)
    expanded_local_pos: I32["max_num_seqs * next_n"] = field(read=num_logits)
    draft_sampled: I32["max_num_seqs * next_n"] = field(read=num_logits)
    logit_positions: I64["max_num_seqs * next_n"] = field(read=num_logits)


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    step, rng = slots.make_step(point, seed), np.random.default_rng([seed, 4])
    rows, capacity = point.batch_size, point.max_num_seqs
    query = torch.diff(step.query_start_loc[: rows + 1]).numpy().astype(np.int64)
    idx_mapping = step.idx_mapping.numpy()
    computed = step.num_computed_tokens.numpy().astype(np.int64)[idx_mapping]
    prompts = step.prompt_lens.numpy().astype(np.int64)[idx_mapping]
    # Chunks lie within the history; the other rows have left their prompt.
    chunk = np.arange(rows) >= rows - point.prefills
    most = point.history_len - point.look_ahead - query
    rest = prompts - computed
    computed = np.where(chunk, np.minimum(computed, most), computed)
    prompts = np.where(chunk, np.minimum(computed + rest, point.history_len), np.minimum(prompts, computed))
    token = lambda *shape: slots.token_ids(rng, VOCAB_SIZE, *shape)  # noqa: E731
    lens, history = slots.by_slot(idx_mapping, prompts, capacity), token(capacity, point.history_len).int()
    counts = _logit_counts(point, query)
    return Inputs(
        idx_mapping=step.idx_mapping,
        query_start_loc=step.query_start_loc,
        cu_num_logits=int32(np.append(0, counts.cumsum())),
        num_computed_tokens=slots.by_slot(idx_mapping, computed, capacity),
        last_sampled_tokens=token(capacity),
        draft_tokens=token(capacity, point.next_n - 1),
        num_tokens=slots.num_tokens(point),
        num_logits=num_logits(point),
        **slots.placed(point, prompt_lens=lens, all_token_ids=history),
    )


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    x, written = as_arrays(x), Written(vars(Outputs.empty(point)))
    put, value = written.put, written.value
    new, starts, cu = point.new_tokens, x.query_start_loc.tolist(), x.cu_num_logits.tolist()
    put("seq_lens", slice(len(x.idx_mapping), None), 0)
    for b, s in enumerate(x.idx_mapping.tolist()):
        start, end, n = starts[b], starts[b + 1], cu[b + 1] - cu[b]
        computed, prompt = int(x.num_computed_tokens[s]), int(x.prompt_lens[s])
        length = computed + end - start
        put("seq_lens", b, length)
        for j in range(end - start):
            put("positions", start + j, computed + j)
            if computed < prompt:
                put("input_ids", start + j, x.all_token_ids[s, computed + j])
        if length > prompt:
            if new == 1 and length - n >= prompt:
                put("input_ids", end - n, x.last_sampled_tokens[s])
            for i in range(n - new):
                put("input_ids", end - (n - new) + i, x.draft_tokens[s, i])
        if computed < prompt:
            for ahead in range(point.look_ahead):
                follows = length + ahead < prompt
                put("next_prefill_tokens", (ahead, s), x.all_token_ids[s, length + ahead] if follows else 0)
        for i in range(n):
            t = end - n + i
            put("logits_indices", cu[b] + i, t)
            put("expanded_idx_mapping", cu[b] + i, s)
            put("expanded_local_pos", cu[b] + i, i)
            put("logit_positions", cu[b] + i, value["positions"][t])
            in_prompt = i > 0 and value["positions"][t] - i < prompt
            put("draft_sampled", cu[b] + i, -1 if in_prompt else value["input_ids"][t])
    return written.expected()


def bytes_moved(point: Point, x: Inputs) -> int:
    """Per row slot, boundaries, count, prompt length, last token and drafts; per token position and id, and its prompt
    token; per logit row five outputs; the lengths of all rows.
    """
    rows, on_device = len(x.idx_mapping), point.memory == "device"
    tokens, logits = int(x.query_start_loc[rows]), int(x.cu_num_logits[rows])
    prompt_tokens = 0
    for b, s in enumerate(x.idx_mapping.tolist()):
        if x.num_computed_tokens[s] < x.prompt_lens[s]:
            prompt_tokens += int(x.query_start_loc[b + 1] - x.query_start_loc[b])
    per_row = 8 + 4 + 4 + 4 + 8 + (4 if on_device else 0)
    read = rows * per_row + 8 + 8 * max(logits - rows, 0) + (4 * prompt_tokens if on_device else 0)
    return read + 12 * tokens + 32 * logits + 4 * point.max_num_seqs


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point, rows=False)


operator = Operator(
    name="step_inputs",
    summary="positions, lengths, input tokens and logit rows of a step, from the request slots",
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
