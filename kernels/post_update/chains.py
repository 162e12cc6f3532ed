"""post_update as an engine launches it: counts, slot state, accepted counts."""

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl

from baselines.post_update.operator import Inputs, Outputs
from baselines.workloads.integers import cdiv
from harness.contract import Point, variant
from kernels.post_update.triton import counts_of, write_tokens

ROWS = 256


@triton.jit(do_not_specialize=["rows"])
def _count(
    idx, cu_num_logits, seq_lens, sampled_before, prompt_lens, num_sampled, num_rejected, rows, ROWS: tl.constexpr
):
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = b < rows
    _, _, ns, nr = counts_of(b, inside, idx, cu_num_logits, seq_lens, sampled_before, prompt_lens)
    tl.store(num_sampled + b, ns, mask=inside)
    tl.store(num_rejected + b, nr, mask=inside)


@triton.jit(do_not_specialize=["tokens_stride", "k", "history_len", "vocab_size"])
def _update_slot(
    idx,
    query_start_loc,
    tokens,
    computed_before,
    total_before,
    new_drafts,
    bins_before,
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
    b = tl.program_id(0)
    s = tl.load(idx + b)
    if s >= 0:
        ns, nr = tl.load(num_sampled + b), tl.load(num_rejected + b)
        old, row_tokens = tl.load(total_before + s), tokens + b.to(tl.int64) * tokens_stride
        lanes = tl.arange(0, LANES)
        if ns > 0:
            tl.store(last + s, tl.load(row_tokens + ns - 1))
        token = tl.load(row_tokens + lanes, mask=lanes < ns, other=-1)
        write_tokens(
            s, ns, old, token, row_tokens, all_ids, bins_before, bins, history_len, vocab_size, lanes, ns, BINS
        )
        tl.store(total + s, old + ns)
        query = tl.load(query_start_loc + b + 1) - tl.load(query_start_loc + b)
        tl.store(num_computed + s, tl.load(computed_before + s) + query - nr)
        if DRAFTS:
            drafts = tl.load(new_drafts + b.to(tl.int64) * k + lanes, mask=lanes < k, other=0)
            tl.store(draft + s * k + lanes, drafts, mask=lanes < k)


@triton.jit(do_not_specialize=["rows"])
def _scatter_accepted(idx, num_sampled, accepted, rows, ROWS: tl.constexpr):
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    s = tl.load(idx + b, mask=b < rows, other=-1)
    ns = tl.load(num_sampled + b, mask=b < rows, other=0)
    tl.store(accepted + s, tl.maximum(ns, 1), mask=s >= 0)


@variant("post_update")
def engine(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The engine's way: three launches, the second with a program of one warp per row."""
    count, grid = len(x.idx), (cdiv(len(x.idx), ROWS),)
    lanes, k = triton.next_power_of_2(point.next_n), point.next_n - 1

    def launch() -> None:
        _count[grid](
            x.idx,
            x.cu_num_logits,
            x.seq_lens,
            x.num_sampled,
            x.prompt_lens,
            out.num_sampled,
            out.num_rejected,
            count,
            ROWS=ROWS,
        )
        _update_slot[(count,)](
            x.idx,
            x.query_start_loc,
            x.tokens,
            x.num_computed,
            x.total,
            x.new_drafts,
            x.bins,
            out.num_sampled,
            out.num_rejected,
            out.num_computed,
            out.total,
            out.last,
            out.draft,
            out.bins,
            out.all_ids,
            x.tokens.stride(0),
            k,
            point.history_len,
            point.vocab_size,
            LANES=lanes,
            BINS=x.bins is not None,
            DRAFTS=x.new_drafts is not None,
            num_warps=1,
        )
        _scatter_accepted[grid](x.idx, out.num_sampled, out.accepted, count, ROWS=ROWS)

    return launch
