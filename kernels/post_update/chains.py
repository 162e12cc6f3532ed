"""post_update as an engine launches it: counts, slot state, accepted counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.post_update.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.kernels.post_update.triton import counts_of, write_tokens

ROWS = 256


class Rows(NamedTuple):
    """Of Inputs, what counts_of reads."""

    idx_mapping: Any
    cu_num_logits: Any
    seq_lens: Any
    num_sampled: Any
    prompt_lens: Any


class Tokens(NamedTuple):
    """Of Inputs and Outputs, what write_tokens reads and writes; all_token_ids and output_bin_counts."""

    all_token_ids: Any
    output_bin_counts: Any


class TokenSizes(NamedTuple):
    history_len: Any
    vocab_size: Any


@triton.jit(do_not_specialize=["num_reqs_padded"])
def count_kernel(
    idx_mapping,
    cu_num_logits,
    seq_lens,
    sampled,
    prompt_lens,
    num_sampled,
    num_rejected,
    num_reqs_padded,
    ROWS: tl.constexpr,
):
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = b < num_reqs_padded
    _, _, ns, nr = counts_of(b, inside, Rows(idx_mapping, cu_num_logits, seq_lens, sampled, prompt_lens))
    tl.store(num_sampled + b, ns, mask=inside)
    tl.store(num_rejected + b, nr, mask=inside)


@triton.jit(do_not_specialize=["tokens_stride", "k", "history_len", "vocab_size"])
def update_slot_kernel(
    idx_mapping,
    query_start_loc,
    sampled_tokens,
    num_computed_tokens_before,
    total_len_before,
    new_drafts,
    output_bin_counts_before,
    num_sampled,
    num_rejected,
    num_computed_tokens,
    total_len,
    last_sampled_tokens,
    draft_tokens,
    output_bin_counts,
    all_token_ids,
    tokens_stride,
    k,
    history_len,
    vocab_size,
    LANES: tl.constexpr,
):
    b = tl.program_id(0)
    s = tl.load(idx_mapping + b)
    if s >= 0:
        ns, nr = tl.load(num_sampled + b), tl.load(num_rejected + b)
        old, row_tokens = tl.load(total_len_before + s), sampled_tokens + b.to(tl.int64) * tokens_stride
        lanes = tl.arange(0, LANES)
        if ns > 0:
            tl.store(last_sampled_tokens + s, tl.load(row_tokens + ns - 1))
        token = tl.load(row_tokens + lanes, mask=lanes < ns, other=-1)
        before, after, n = (
            Tokens(None, output_bin_counts_before),
            Tokens(all_token_ids, output_bin_counts),
            TokenSizes(history_len, vocab_size),
        )
        write_tokens(s, ns, old, token, row_tokens, before, after, n, lanes, ns)
        tl.store(total_len + s, old + ns)
        query = tl.load(query_start_loc + b + 1) - tl.load(query_start_loc + b)
        tl.store(num_computed_tokens + s, tl.load(num_computed_tokens_before + s) + query - nr)
        if new_drafts is not None:
            drafts = tl.load(new_drafts + b.to(tl.int64) * k + lanes, mask=lanes < k, other=0)
            tl.store(draft_tokens + s * k + lanes, drafts, mask=lanes < k)


@triton.jit(do_not_specialize=["num_reqs_padded"])
def scatter_accepted_kernel(idx_mapping, num_sampled, num_accepted_tokens, num_reqs_padded, ROWS: tl.constexpr):
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    s = tl.load(idx_mapping + b, mask=b < num_reqs_padded, other=-1)
    ns = tl.load(num_sampled + b, mask=b < num_reqs_padded, other=0)
    tl.store(num_accepted_tokens + s, tl.maximum(ns, 1), mask=s >= 0)


@variant("post_update")
def unfused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The engine's way: three launches, the second with a program of one warp per row."""
    count, grid = len(x.idx_mapping), (cdiv(len(x.idx_mapping), ROWS),)
    lanes, k = triton.next_power_of_2(point.next_n), point.next_n - 1

    def launch() -> None:
        count_kernel[grid](
            x.idx_mapping,
            x.cu_num_logits,
            x.seq_lens,
            x.num_sampled,
            x.prompt_lens,
            out.num_sampled,
            out.num_rejected,
            count,
            ROWS=ROWS,
        )
        update_slot_kernel[(count,)](
            x.idx_mapping,
            x.query_start_loc,
            x.sampled_tokens,
            x.num_computed_tokens,
            x.total_len,
            x.new_drafts,
            x.output_bin_counts,
            out.num_sampled,
            out.num_rejected,
            out.num_computed_tokens,
            out.total_len,
            out.last_sampled_tokens,
            out.draft_tokens,
            out.output_bin_counts,
            out.all_token_ids,
            x.sampled_tokens.stride(0),
            k,
            point.history_len,
            point.vocab_size,
            LANES=lanes,
            num_warps=1,
        )
        scatter_accepted_kernel[grid](x.idx_mapping, out.num_sampled, out.num_accepted_tokens, count, ROWS=ROWS)

    return launch
