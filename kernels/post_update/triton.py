"""post_update in Triton: one launch for counts, slots and accepted counts. A row is a line of a tile, its tokens lanes.

Penalty counts need no atomics: the first occurrence of a token in its row stores the count of all of them.

post_update.cu has the versions that were tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.post_update.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

#: Entries of a tile: rows x tokens.
TILE = 32


class Sizes(NamedTuple):
    """tokens_stride: elements between two rows of the sampled tokens. k: drafts per request."""

    num_reqs_padded: int
    tokens_stride: int
    k: int
    history_len: int
    vocab_size: int


def sizes(point: Point, x: Inputs) -> Sizes:
    return Sizes(len(x.idx_mapping), x.sampled_tokens.stride(0), point.next_n - 1, point.history_len, point.vocab_size)


@triton.jit
def counts_of(b, inside, x):
    """(slot, tokens sampled, tokens that count, drafts rejected) of rows; slot -1 outside."""
    s = tl.load(x.idx_mapping + b, mask=inside, other=-1)
    sampled = tl.load(x.num_sampled + b, mask=inside, other=0)
    prompt = tl.load(x.prompt_lens + s, mask=s >= 0, other=0)
    length = tl.load(x.seq_lens + b, mask=s >= 0, other=-1)
    last_logit = tl.load(x.cu_num_logits + b + 1, mask=inside, other=0)
    logits = last_logit - tl.load(x.cu_num_logits + b, mask=inside, other=0)
    samples = length >= prompt
    return s, sampled, tl.where(samples, sampled, 0), tl.where(samples, logits - sampled, 0)


@triton.jit
def write_tokens(s, ns, total, token, row_tokens, x, out, n, lanes, longest):
    """History and penalty counts of rows [rows, 1] with lanes [1, tokens] and their tokens [rows, tokens]; longest:
    tokens of the longest row.
    """
    new = lanes < ns
    tl.store(out.all_token_ids + s * n.history_len + total + lanes, token.to(tl.int32), mask=new)
    if x.output_bin_counts is not None:
        occurs, first = tl.zeros_like(token), new
        for j in range(0, longest):
            other = tl.load(row_tokens + j, mask=j < ns, other=-2)
            occurs += tl.where(other == token, 1, 0)
            first = first & ((other != token) | (lanes <= j))
        place = s * n.vocab_size + token
        count = tl.load(x.output_bin_counts + place, mask=first, other=0)
        tl.store(out.output_bin_counts + place, count + occurs.to(tl.int32), mask=first)


@triton.jit
def update_rows(b, inside, x, out, n, DRAFTS: tl.constexpr, LANES: tl.constexpr):
    """Everything but the accepted count, max(ns, 1), which a caller may go on to change.

    Returns of each row slot, tokens produced, drafts rejected, tokens computed and its newest token.
    DRAFTS: whether x, out and n have drafts.
    """
    s, sampled, ns, nr = counts_of(b, inside, x)
    live = s >= 0
    start = tl.load(x.query_start_loc + b, mask=inside, other=0)
    query = tl.load(x.query_start_loc + b + 1, mask=inside, other=0) - start
    computed = tl.load(x.num_computed_tokens + s, mask=live, other=0)
    total = tl.load(x.total_len + s, mask=live, other=0)
    lanes = tl.arange(0, LANES)[None, :]
    # Before it is known whether they count: one memory latency less.
    row_tokens = x.sampled_tokens + b[:, None].to(tl.int64) * n.tokens_stride
    token = tl.load(row_tokens + lanes, mask=lanes < sampled[:, None], other=-1)
    if DRAFTS:
        row_drafts = x.new_drafts + b[:, None].to(tl.int64) * n.k
        drafts = tl.load(row_drafts + lanes, mask=inside[:, None] & (lanes < n.k), other=0)
    newest = tl.sum(tl.where(lanes == ns[:, None] - 1, token, 0), 1)
    tl.debug_barrier()  # one array may be input and output, and several threads may have loaded the same element
    tl.store(out.num_sampled + b, ns, mask=inside)
    tl.store(out.num_rejected + b, nr, mask=inside)
    tl.store(out.num_computed_tokens + s, computed + query - nr, mask=live)
    tl.store(out.total_len + s, total + ns, mask=live)
    tl.store(out.last_sampled_tokens + s, newest, mask=ns > 0)
    write_tokens(s[:, None], ns[:, None], total[:, None], token, row_tokens, x, out, n, lanes, tl.max(ns, 0))
    if DRAFTS:
        tl.store(out.draft_tokens + s[:, None] * n.k + lanes, drafts, mask=live[:, None] & (lanes < n.k))
    return s, ns, nr, computed + query - nr, newest


@triton.jit
def post_update_kernel(n, x, out, ROWS: tl.constexpr, LANES: tl.constexpr):
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    s, ns, _, _, _ = update_rows(b, b < n.num_reqs_padded, x, out, n, x.new_drafts is not None, LANES)
    tl.store(out.num_accepted_tokens + s, tl.maximum(ns, 1), mask=s >= 0)


@variant("post_update")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch where the engine takes three."""
    lanes = triton.next_power_of_2(point.next_n)
    rows = max(TILE // lanes, 1)
    grid = (cdiv(len(x.idx_mapping), rows),)
    arguments = sizes(point, x), bundle(x), bundle(out)
    return fixed_launch(post_update_kernel, grid, *arguments, ROWS=rows, LANES=lanes, num_warps=1)
