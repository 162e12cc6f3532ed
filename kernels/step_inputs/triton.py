"""step_inputs in Triton: one launch before the forward pass, also for what the engine gathers after it.

Inputs of ``draft_sampled`` are known before the forward pass, and the token and position that it reads are in
registers.

step_inputs.cu has the versions that were tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.step_inputs.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import row_tiling
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

#: Rows of a program, and entries of the tail that it clears.
ROWS, TAIL = 4, 256


class Sizes(NamedTuple):
    """k: drafts per request. look_ahead: prompt tokens behind those of the step. new_tokens: sampled tokens, 0 or 1."""

    num_reqs: int
    max_num_seqs: int
    k: int
    history_len: int
    look_ahead: int
    new_tokens: int


def sizes(point: Point, x: Inputs) -> Sizes:
    tokens = point.next_n - 1, point.history_len, point.look_ahead, point.new_tokens
    return Sizes(len(x.idx_mapping), point.max_num_seqs, *tokens)


@triton.jit
def prepare_rows(
    program,
    strip,
    strips,
    x,
    out,
    n,
    NEW: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    TAIL: tl.constexpr,
):
    """ROWS rows of the batch, and TAIL entries behind the last one. NEW: n.new_tokens.

    Long rows are shared by ``strips`` programs, LANES tokens in turn; the first strip writes what a row has once.
    """
    past = n.num_reqs + program * TAIL + tl.arange(0, TAIL)
    tl.store(out.seq_lens + past, tl.zeros((TAIL,), tl.int32), mask=past < tl.where(strip == 0, n.max_num_seqs, 0))

    b = program * ROWS + tl.arange(0, ROWS)
    inside = b < n.num_reqs
    s = tl.load(x.idx_mapping + b, mask=inside, other=0)
    start = tl.load(x.query_start_loc + b, mask=inside, other=0)
    query = tl.load(x.query_start_loc + b + 1, mask=inside, other=0) - start
    first_logit = tl.load(x.cu_num_logits + b, mask=inside, other=0)
    logits = tl.load(x.cu_num_logits + b + 1, mask=inside, other=0) - first_logit
    # Later strips skip shorter rows: prompt_lens may be read over the bus.
    here = inside & (query > tl.where(strip == 0, -1, strip * LANES))
    computed = tl.load(x.num_computed_tokens + s, mask=here, other=0)
    prompt = tl.load(x.prompt_lens + s, mask=here, other=0)
    newest = tl.load(x.last_sampled_tokens + s, mask=inside, other=0).to(tl.int32)
    length = computed + query
    in_prompt = inside & (computed < prompt)
    drafts_from = tl.where(length > prompt, NEW, logits)  # logit rows from here on hold drafts
    anchored = (length > prompt) & (length - logits >= prompt) & (logits >= 1)
    history = x.all_token_ids + s * n.history_len
    lanes = tl.arange(0, LANES)
    for first in range(strip * LANES, tl.max(query, 0), strips * LANES):
        j = first + lanes[None, :]
        real = j < query[:, None]
        i = j - (query - logits)[:, None]
        t = start[:, None] + j
        position = computed[:, None] + j
        # Before it is known whether it counts: one memory latency less.
        proposed = tl.load(x.draft_tokens + s[:, None] * n.k + i - NEW, mask=real & (i >= NEW), other=0).to(tl.int32)
        prompt_token = real & in_prompt[:, None]
        token = tl.load(history[:, None] + position, mask=prompt_token, other=0)
        wrote = prompt_token
        if NEW == 1:
            is_last = real & anchored[:, None] & (i == 0)
            token = tl.where(is_last, newest[:, None], token)
            wrote = wrote | is_last
        is_draft = real & (i >= drafts_from[:, None]) & (i >= NEW)
        token = tl.where(is_draft, proposed, token)
        tl.store(out.positions + t, position.to(tl.int64), mask=real)
        tl.store(out.input_ids + t, token, mask=wrote | is_draft)
        has_logit = real & (i >= 0)
        r = first_logit[:, None] + i
        tl.store(out.logits_indices + r, t.to(tl.int64), mask=has_logit)
        tl.store(out.expanded_idx_mapping + r, s[:, None] + tl.zeros_like(t), mask=has_logit)
        tl.store(out.expanded_local_pos + r, i, mask=has_logit)
        tl.store(out.logit_positions + r, position.to(tl.int64), mask=has_logit)
        rejected = (i > 0) & (position - i < prompt[:, None])
        tl.store(out.draft_sampled + r, tl.where(rejected, -1, token), mask=has_logit)
    # After the tokens, whose chain of loads is longer.
    tl.store(out.seq_lens + b, length, mask=b < tl.where(strip == 0, n.num_reqs, 0))
    for ahead in range(0, tl.where(strip == 0, n.look_ahead, 0)):
        follows = in_prompt & (length + ahead < prompt)
        token = tl.load(history + length + ahead, mask=follows, other=0)
        tl.store(out.next_prefill_tokens + ahead * n.max_num_seqs + s, token, mask=in_prompt)


@triton.jit
def step_inputs_kernel(n, x, out, NEW: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, TAIL: tl.constexpr):
    prepare_rows(tl.program_id(0), tl.program_id(1), tl.num_programs(1), x, out, n, NEW, ROWS, LANES, TAIL)


@variant("step_inputs")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch where the engine takes four or five."""
    rows, capacity = len(x.idx_mapping), point.max_num_seqs
    lanes, strips = row_tiling(point)
    grid = (max(cdiv(rows, ROWS), cdiv(capacity - rows, TAIL)), strips)
    tile = {"NEW": point.new_tokens, "ROWS": ROWS, "LANES": lanes, "TAIL": TAIL}
    return fixed_launch(step_inputs_kernel, grid, sizes(point, x), bundle(x), bundle(out), **tile)
