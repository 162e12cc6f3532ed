"""step_inputs as an engine launches it: expansion, prompt tokens if there are any, positions, sampled and draft tokens
before the forward pass, and a gather after it.
"""

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl

from spec_decode_bench.baselines.step_inputs.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Point, variant

CHUNK = 1024


@triton.jit
def expand_kernel(idx_mapping, cu_num_logits, expanded_idx_mapping, expanded_local_pos, LANES: tl.constexpr):
    b, i = tl.program_id(0), tl.arange(0, LANES)
    start = tl.load(cu_num_logits + b)
    inside = i < tl.load(cu_num_logits + b + 1) - start
    tl.store(expanded_idx_mapping + start + i, tl.zeros((LANES,), tl.int64) + tl.load(idx_mapping + b), mask=inside)
    tl.store(expanded_local_pos + start + i, i, mask=inside)


@triton.jit(do_not_specialize=["capacity", "history_len", "look_ahead"])
def prompt_tokens_kernel(
    idx_mapping,
    query_start_loc,
    num_computed_tokens,
    prompt_lens,
    all_token_ids,
    input_ids,
    next_prefill_tokens,
    capacity,
    history_len,
    look_ahead,
    CHUNK: tl.constexpr,
):
    b = tl.program_id(0)
    s = tl.load(idx_mapping + b)
    computed, prompt = tl.load(num_computed_tokens + s), tl.load(prompt_lens + s)
    if computed < prompt:
        start = tl.load(query_start_loc + b)
        query = tl.load(query_start_loc + b + 1) - start
        history = all_token_ids + s * history_len + computed
        for first in range(0, query, CHUNK):
            j = first + tl.arange(0, CHUNK)
            tl.store(input_ids + start + j, tl.load(history + j, mask=j < query, other=0), mask=j < query)
        for ahead in range(0, look_ahead):
            follows = computed + query + ahead < prompt
            tl.store(
                next_prefill_tokens + ahead * capacity + s, tl.load(history + query + ahead, mask=follows, other=0)
            )


@triton.jit(do_not_specialize=["rows", "capacity"])
def positions_kernel(
    idx_mapping, query_start_loc, num_computed_tokens, seq_lens, positions, rows, capacity, CHUNK: tl.constexpr
):
    b, lanes = tl.program_id(0), tl.arange(0, CHUNK)
    if b == rows:
        for past in range(rows, capacity, CHUNK):
            tl.store(seq_lens + past + lanes, tl.zeros((CHUNK,), tl.int32), mask=past + lanes < capacity)
    else:
        computed, start = tl.load(num_computed_tokens + tl.load(idx_mapping + b)), tl.load(query_start_loc + b)
        query = tl.load(query_start_loc + b + 1) - start
        tl.store(seq_lens + b, computed + query)
        for first in range(0, query, CHUNK):
            j = first + lanes
            tl.store(positions + start + j, (computed + j).to(tl.int64), mask=j < query)


@triton.jit(do_not_specialize=["k"])
def combine_kernel(
    idx_mapping,
    query_start_loc,
    cu_num_logits,
    seq_lens,
    last_sampled_tokens,
    draft_tokens,
    prompt_lens,
    input_ids,
    logits_indices,
    k,
    NEW: tl.constexpr,
    LANES: tl.constexpr,
):
    b, i = tl.program_id(0), tl.arange(0, LANES)
    s, end, first_logit = tl.load(idx_mapping + b), tl.load(query_start_loc + b + 1), tl.load(cu_num_logits + b)
    n = tl.load(cu_num_logits + b + 1) - first_logit
    t = end - n + i
    tl.store(logits_indices + first_logit + i, t.to(tl.int64), mask=i < n)
    length, prompt = tl.load(seq_lens + b), tl.load(prompt_lens + s)
    if length > prompt:
        if (length - n >= prompt) & (NEW == 1):
            tl.store(input_ids + end - n, tl.load(last_sampled_tokens + s).to(tl.int32))
        drafts = (i >= NEW) & (i < n)
        proposed = tl.load(draft_tokens + s * k + i - NEW, mask=drafts, other=0)
        tl.store(input_ids + t, proposed.to(tl.int32), mask=drafts)


@triton.jit(do_not_specialize=["num_logits"])
def gather_drafted_kernel(
    input_ids,
    positions,
    logits_indices,
    expanded_idx_mapping,
    expanded_local_pos,
    prompt_lens,
    draft_sampled,
    logit_positions,
    num_logits,
    CHUNK: tl.constexpr,
):
    r = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    inside = r < num_logits
    t = tl.load(logits_indices + r, mask=inside, other=0)
    i = tl.load(expanded_local_pos + r, mask=inside, other=0)
    prompt = tl.load(prompt_lens + tl.load(expanded_idx_mapping + r, mask=inside, other=0), mask=inside, other=0)
    position = tl.load(positions + t, mask=inside, other=0)
    token = tl.load(input_ids + t, mask=inside, other=0)
    tl.store(logit_positions + r, position, mask=inside)
    tl.store(draft_sampled + r, tl.where((i > 0) & (position - i < prompt), -1, token), mask=inside)


@variant("step_inputs")
def unfused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The engine's way: five launches, four where the host knows of no row in its prompt."""
    rows, capacity, k = len(x.idx_mapping), point.max_num_seqs, point.next_n - 1
    lanes = triton.next_power_of_2(point.next_n)
    gather_grid, prompts = (max(cdiv(x.num_logits, CHUNK), 1),), point.prompt_rows == "some"

    def launch() -> None:
        expand_kernel[(rows,)](
            x.idx_mapping, x.cu_num_logits, out.expanded_idx_mapping, out.expanded_local_pos, LANES=lanes
        )
        if prompts:
            prompt_tokens_kernel[(rows,)](
                x.idx_mapping,
                x.query_start_loc,
                x.num_computed_tokens,
                x.prompt_lens,
                x.all_token_ids,
                out.input_ids,
                out.next_prefill_tokens,
                capacity,
                point.history_len,
                point.look_ahead,
                CHUNK=CHUNK,
            )
        positions_kernel[(rows + 1,)](
            x.idx_mapping,
            x.query_start_loc,
            x.num_computed_tokens,
            out.seq_lens,
            out.positions,
            rows,
            capacity,
            CHUNK=CHUNK,
        )
        combine_kernel[(rows,)](
            x.idx_mapping,
            x.query_start_loc,
            x.cu_num_logits,
            out.seq_lens,
            x.last_sampled_tokens,
            x.draft_tokens,
            x.prompt_lens,
            out.input_ids,
            out.logits_indices,
            k,
            NEW=point.new_tokens,
            LANES=lanes,
        )
        gather_drafted_kernel[gather_grid](
            out.input_ids,
            out.positions,
            out.logits_indices,
            out.expanded_idx_mapping,
            out.expanded_local_pos,
            x.prompt_lens,
            out.draft_sampled,
            out.logit_positions,
            x.num_logits,
            CHUNK=CHUNK,
        )

    return launch
