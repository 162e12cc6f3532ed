"""post_update in Triton: one launch for counts, slots and accepted counts. A row is a line of a tile, its tokens lanes.

Penalty counts need no atomics: the first occurrence of a token in its row stores the count of all of them.

post_update.cu has the versions with their times.
"""

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl

from baselines.post_update.operator import Inputs, Outputs
from baselines.workloads.integers import cdiv
from harness.contract import Point, variant
from harness.launch import fixed_launch

#: Entries of a tile: rows x tokens.
TILE = 32


@triton.jit
def counts_of(b, inside, idx, cu_num_logits, seq_lens, num_sampled, prompt_lens):
    """(slot, tokens sampled, tokens that count, drafts rejected) of rows; slot -1 outside."""
    s = tl.load(idx + b, mask=inside, other=-1)
    sampled = tl.load(num_sampled + b, mask=inside, other=0)
    prompt = tl.load(prompt_lens + s, mask=s >= 0, other=0)
    length = tl.load(seq_lens + b, mask=s >= 0, other=-1)
    logits = tl.load(cu_num_logits + b + 1, mask=inside, other=0) - tl.load(cu_num_logits + b, mask=inside, other=0)
    samples = length >= prompt
    return s, sampled, tl.where(samples, sampled, 0), tl.where(samples, logits - sampled, 0)


@triton.jit
def write_tokens(
    s,
    ns,
    total,
    token,
    row_tokens,
    all_ids,
    bins_before,
    bins,
    history_len,
    vocab_size,
    lanes,
    longest,
    BINS: tl.constexpr,
):
    """History and penalty counts of rows [rows, 1] with lanes [1, tokens] and their tokens [rows, tokens]; longest:
    tokens of the longest row.
    """
    new = lanes < ns
    tl.store(all_ids + s * history_len + total + lanes, token.to(tl.int32), mask=new)
    if BINS:
        occurs, first = tl.zeros_like(token), new
        for j in range(0, longest):
            other = tl.load(row_tokens + j, mask=j < ns, other=-2)
            occurs += tl.where(other == token, 1, 0)
            first = first & ((other != token) | (lanes <= j))
        place = s * vocab_size + token
        count = tl.load(bins_before + place, mask=first, other=0)
        tl.store(bins + place, count + occurs.to(tl.int32), mask=first)


@triton.jit
def update_rows(
    b,
    inside,
    idx,
    cu_num_logits,
    query_start_loc,
    seq_lens,
    sampled_before,
    tokens,
    computed_before,
    total_before,
    new_drafts,
    bins_before,
    prompt_lens,
    num_sampled,
    num_rejected,
    num_computed,
    total,
    last,
    draft,
    bins,
    all_ids,
    tokens_stride,
    k,
    history_len,
    vocab_size,
    LANES: tl.constexpr,
    BINS: tl.constexpr,
    DRAFTS: tl.constexpr,
):
    """Everything but the accepted count, max(ns, 1), which a caller may go on to change.

    Returns of each row slot, tokens produced, drafts rejected, tokens computed and its newest token.
    """
    s, sampled, ns, nr = counts_of(b, inside, idx, cu_num_logits, seq_lens, sampled_before, prompt_lens)
    live = s >= 0
    start = tl.load(query_start_loc + b, mask=inside, other=0)
    query = tl.load(query_start_loc + b + 1, mask=inside, other=0) - start
    computed = tl.load(computed_before + s, mask=live, other=0)
    old = tl.load(total_before + s, mask=live, other=0)
    lanes = tl.arange(0, LANES)[None, :]
    # Before it is known whether they count: one memory latency less.
    row_tokens = tokens + b[:, None].to(tl.int64) * tokens_stride
    token = tl.load(row_tokens + lanes, mask=lanes < sampled[:, None], other=-1)
    if DRAFTS:
        drafts = tl.load(new_drafts + b[:, None].to(tl.int64) * k + lanes, mask=inside[:, None] & (lanes < k), other=0)
    newest = tl.sum(tl.where(lanes == ns[:, None] - 1, token, 0), 1)
    tl.debug_barrier()  # one array may be input and output, and several threads may have loaded the same element
    tl.store(num_sampled + b, ns, mask=inside)
    tl.store(num_rejected + b, nr, mask=inside)
    tl.store(num_computed + s, computed + query - nr, mask=live)
    tl.store(total + s, old + ns, mask=live)
    tl.store(last + s, newest, mask=ns > 0)
    write_tokens(
        s[:, None],
        ns[:, None],
        old[:, None],
        token,
        row_tokens,
        all_ids,
        bins_before,
        bins,
        history_len,
        vocab_size,
        lanes,
        tl.max(ns, 0),
        BINS,
    )
    if DRAFTS:
        tl.store(draft + s[:, None] * k + lanes, drafts, mask=live[:, None] & (lanes < k))
    return s, ns, nr, computed + query - nr, newest


@triton.jit(do_not_specialize=["rows", "tokens_stride", "k", "history_len", "vocab_size"])
def _update(
    idx,
    cu_num_logits,
    query_start_loc,
    seq_lens,
    sampled_before,
    tokens,
    computed_before,
    total_before,
    new_drafts,
    bins_before,
    prompt_lens,
    num_sampled,
    num_rejected,
    num_computed,
    total,
    last,
    accepted,
    draft,
    bins,
    all_ids,
    rows,
    tokens_stride,
    k,
    history_len,
    vocab_size,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    BINS: tl.constexpr,
    DRAFTS: tl.constexpr,
):
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    s, ns, _, _, _ = update_rows(
        b,
        b < rows,
        idx,
        cu_num_logits,
        query_start_loc,
        seq_lens,
        sampled_before,
        tokens,
        computed_before,
        total_before,
        new_drafts,
        bins_before,
        prompt_lens,
        num_sampled,
        num_rejected,
        num_computed,
        total,
        last,
        draft,
        bins,
        all_ids,
        tokens_stride,
        k,
        history_len,
        vocab_size,
        LANES=LANES,
        BINS=BINS,
        DRAFTS=DRAFTS,
    )
    tl.store(accepted + s, tl.maximum(ns, 1), mask=s >= 0)


@variant("post_update")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch where the engine takes three."""
    count, lanes = len(x.idx), triton.next_power_of_2(point.next_n)
    rows = max(TILE // lanes, 1)
    grid, k = (cdiv(count, rows),), point.next_n - 1

    return fixed_launch(
        _update,
        grid,
        x.idx,
        x.cu_num_logits,
        x.query_start_loc,
        x.seq_lens,
        x.num_sampled,
        x.tokens,
        x.num_computed,
        x.total,
        x.new_drafts,
        x.bins,
        x.prompt_lens,
        out.num_sampled,
        out.num_rejected,
        out.num_computed,
        out.total,
        out.last,
        out.accepted,
        out.draft,
        out.bins,
        out.all_ids,
        count,
        x.tokens.stride(0),
        k,
        point.history_len,
        point.vocab_size,
        ROWS=rows,
        LANES=lanes,
        BINS=x.bins is not None,
        DRAFTS=x.new_drafts is not None,
        num_warps=1,
    )
