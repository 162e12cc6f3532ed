"""step_inputs in Triton: one launch before the forward pass, also for what the engine gathers after it.

Inputs of ``drafted`` are known before the forward pass, and the token and position that it reads are in registers.

step_inputs.cu has the versions with their times.
"""

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl

from baselines.step_inputs.operator import Inputs, Outputs
from baselines.workloads.integers import cdiv
from baselines.workloads.request_slots import row_tiling
from harness.contract import Point, variant
from harness.launch import fixed_launch

#: Rows of a program, and entries of the tail that it clears.
ROWS, TAIL = 4, 256


@triton.jit
def prepare_rows(
    program,
    strip,
    strips,
    idx,
    query_start_loc,
    cu_num_logits,
    num_computed,
    last,
    draft,
    prompt_lens,
    all_ids,
    seq_lens,
    positions,
    input_ids,
    next_prefill,
    logits_indices,
    expanded_idx,
    expanded_pos,
    drafted,
    logit_positions,
    rows,
    capacity,
    k,
    history_len,
    look_ahead,
    NEW: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    TAIL: tl.constexpr,
):
    """ROWS rows of the batch, and TAIL entries behind the last one.

    Long rows are shared by ``strips`` programs, LANES tokens in turn; the first strip writes what a row has once.
    """
    past = rows + program * TAIL + tl.arange(0, TAIL)
    tl.store(seq_lens + past, tl.zeros((TAIL,), tl.int32), mask=past < tl.where(strip == 0, capacity, 0))

    b = program * ROWS + tl.arange(0, ROWS)
    inside = b < rows
    s = tl.load(idx + b, mask=inside, other=0)
    start = tl.load(query_start_loc + b, mask=inside, other=0)
    query = tl.load(query_start_loc + b + 1, mask=inside, other=0) - start
    first_logit = tl.load(cu_num_logits + b, mask=inside, other=0)
    n = tl.load(cu_num_logits + b + 1, mask=inside, other=0) - first_logit
    # Later strips skip shorter rows: prompt_lens may be read over the bus.
    here = inside & (query > tl.where(strip == 0, -1, strip * LANES))
    computed = tl.load(num_computed + s, mask=here, other=0)
    prompt = tl.load(prompt_lens + s, mask=here, other=0)
    newest = tl.load(last + s, mask=inside, other=0).to(tl.int32)
    length = computed + query
    in_prompt = inside & (computed < prompt)
    drafts_from = tl.where(length > prompt, NEW, n)  # logit rows from here on hold drafts
    anchored = (length > prompt) & (length - n >= prompt) & (n >= 1)
    history = all_ids + s * history_len
    lanes = tl.arange(0, LANES)
    for first in range(strip * LANES, tl.max(query, 0), strips * LANES):
        j = first + lanes[None, :]
        real = j < query[:, None]
        i = j - (query - n)[:, None]
        t = start[:, None] + j
        position = computed[:, None] + j
        # Before it is known whether it counts: one memory latency less.
        proposed = tl.load(draft + s[:, None] * k + i - NEW, mask=real & (i >= NEW), other=0).to(tl.int32)
        prompt_token = real & in_prompt[:, None]
        token = tl.load(history[:, None] + position, mask=prompt_token, other=0)
        wrote = prompt_token
        if NEW == 1:
            is_last = real & anchored[:, None] & (i == 0)
            token = tl.where(is_last, newest[:, None], token)
            wrote = wrote | is_last
        is_draft = real & (i >= drafts_from[:, None]) & (i >= NEW)
        token = tl.where(is_draft, proposed, token)
        tl.store(positions + t, position.to(tl.int64), mask=real)
        tl.store(input_ids + t, token, mask=wrote | is_draft)
        has_logit = real & (i >= 0)
        r = first_logit[:, None] + i
        tl.store(logits_indices + r, t.to(tl.int64), mask=has_logit)
        tl.store(expanded_idx + r, s[:, None] + tl.zeros_like(t), mask=has_logit)
        tl.store(expanded_pos + r, i, mask=has_logit)
        tl.store(logit_positions + r, position.to(tl.int64), mask=has_logit)
        rejected = (i > 0) & (position - i < prompt[:, None])
        tl.store(drafted + r, tl.where(rejected, -1, token), mask=has_logit)
    # After the tokens, whose chain of loads is longer.
    tl.store(seq_lens + b, length, mask=b < tl.where(strip == 0, rows, 0))
    for ahead in range(0, tl.where(strip == 0, look_ahead, 0)):
        follows = in_prompt & (length + ahead < prompt)
        token = tl.load(history + length + ahead, mask=follows, other=0)
        tl.store(next_prefill + ahead * capacity + s, token, mask=in_prompt)


@triton.jit(do_not_specialize=["rows", "capacity", "k", "history_len", "look_ahead"])
def _prepare(
    idx,
    query_start_loc,
    cu_num_logits,
    num_computed,
    last,
    draft,
    prompt_lens,
    all_ids,
    seq_lens,
    positions,
    input_ids,
    next_prefill,
    logits_indices,
    expanded_idx,
    expanded_pos,
    drafted,
    logit_positions,
    rows,
    capacity,
    k,
    history_len,
    look_ahead,
    NEW: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    TAIL: tl.constexpr,
):
    prepare_rows(
        tl.program_id(0),
        tl.program_id(1),
        tl.num_programs(1),
        idx,
        query_start_loc,
        cu_num_logits,
        num_computed,
        last,
        draft,
        prompt_lens,
        all_ids,
        seq_lens,
        positions,
        input_ids,
        next_prefill,
        logits_indices,
        expanded_idx,
        expanded_pos,
        drafted,
        logit_positions,
        rows,
        capacity,
        k,
        history_len,
        look_ahead,
        NEW=NEW,
        ROWS=ROWS,
        LANES=LANES,
        TAIL=TAIL,
    )


@variant("step_inputs")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch where the engine takes four or five."""
    rows, capacity = len(x.idx), point.max_num_seqs
    lanes, strips = row_tiling(point)
    grid = (max(cdiv(rows, ROWS), cdiv(capacity - rows, TAIL)), strips)

    return fixed_launch(
        _prepare,
        grid,
        x.idx,
        x.query_start_loc,
        x.cu_num_logits,
        x.num_computed,
        x.last,
        x.draft,
        x.prompt_lens,
        x.all_ids,
        out.seq_lens,
        out.positions,
        out.input_ids,
        out.next_prefill,
        out.logits_indices,
        out.expanded_idx,
        out.expanded_pos,
        out.drafted,
        out.logit_positions,
        rows,
        capacity,
        point.next_n - 1,
        point.history_len,
        point.look_ahead,
        NEW=point.new_tokens,
        ROWS=ROWS,
        LANES=lanes,
        TAIL=TAIL,
    )
