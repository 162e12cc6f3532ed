"""decode_flatten: give every speculative token a row of its own, for a paged-MQA-logits kernel that knows only next_n = 1.

For flat token t < A = query_start_loc[B], with b the request that owns it (query_start_loc[b] <= t < query_start_loc[b+1])
and j = t - query_start_loc[b]:

    lens[t]           = max(seq_lens[b] - decode_len[b] + j + 1, 0)
    block_table[t, c] = source[b, c]      for the columns a consumer reads, c < ceil(lens[t] / block_size)
    decode_lens[t]    = 1

Token padding, A <= t < T: lens 0, decode_lens 1, block_table[t, 0] = NULL; the rest of the row is never read.
Slack, T <= t < capacity: lens 0, because a graph captured at a larger T may be replayed after a smaller step; every
other buffer keeps what it held.

Built once per decode step and indexer metadata group (vLLM's DeepSeek-V3.2 indexer; DeepGEMM's paged MQA logits read it).
DeepGEMM reads ceil(lens[t] / block_size) table entries of a row, so copying the used blocks alone is enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from baselines import _axes as axes
from baselines._axes import cdiv
from baselines._batches import NULL_BLOCK_ID, make_batch, make_block_table, max_tokens
from baselines._decode_flatten_points import HARD_POINTS, SEQUENCES
from harness.contract import COMPILER, HOST, Expected, Operator, Point, Rule, variant

#: Table rows past the last token that stay allocated, so that a write past T is seen.
SPARE_ROWS = 8


@dataclass(frozen=True)
class Inputs:
    seq_lens: Tensor  # [B] int32, this step's tokens included; 0 = padding request
    query_start_loc: Tensor  # [B + 1] int32, non-decreasing; authoritative
    block_table: Tensor  # [B, table_columns] int32, stride(0) >= table_columns
    query_start_loc_cpu: Tensor = field(metadata=HOST)  # [B + 1] int32; may be optimistic (host_lens = stale)
    num_decode_tokens: int  # T, token padding included


@dataclass(frozen=True)
class Outputs:
    lens: Tensor  # [capacity] int32
    decode_lens: Tensor  # [capacity] int32
    block_table: Tensor  # [rows, ceil(max_model_len / block_size)] int32, rows >= T


def num_tokens(point: Point) -> int:
    """T: the tokens the host launches for."""
    return max_tokens(point) + point.token_padding


def make_inputs(point: Point, seed: int) -> Inputs:
    batch = make_batch(point, seed)
    return Inputs(
        seq_lens=batch.seq_lens,
        query_start_loc=batch.query_start_loc,
        block_table=make_block_table(point, batch.seq_lens, seed),
        query_start_loc_cpu=batch.host_query_start_loc,
        num_decode_tokens=num_tokens(point),
    )


def make_outputs(point: Point) -> Outputs:
    """Per-token buffers at engine capacity. The table is bounded by requests x next_n rows, as 8192 full rows would
    be 84 MB (and 537 MB at a 1M context) of memory that no step can use."""
    rows = max(point.batch_size * point.next_n, num_tokens(point)) + SPARE_ROWS
    columns = cdiv(point.max_model_len, point.block_size)
    return Outputs(
        lens=torch.empty(point.max_num_batched_tokens, dtype=torch.int32),
        decode_lens=torch.empty(point.max_num_batched_tokens, dtype=torch.int32),
        block_table=torch.empty(rows, columns, dtype=torch.int32),
    )


def views(point: Point, out: Outputs) -> Mapping[str, Tensor]:
    """What the indexer is handed: the first T rows of each buffer."""
    tokens = num_tokens(point)
    return {
        "lens": out.lens[:tokens],
        "decode_lens": out.decode_lens[:tokens],
        "block_table": out.block_table[:tokens],
    }


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    shape = make_outputs(point)
    tokens, capacity = x.num_decode_tokens, shape.lens.numel()
    start, seq_lens = x.query_start_loc.tolist(), x.seq_lens.tolist()
    lens = [0] * capacity
    table = torch.full(shape.block_table.shape, NULL_BLOCK_ID, dtype=torch.int32)
    unread = torch.ones(shape.block_table.shape, dtype=torch.bool)
    copied = min(x.block_table.shape[1], table.shape[1])
    for b in range(len(seq_lens)):
        for t in range(start[b], start[b + 1]):
            lens[t] = max(seq_lens[b] - (start[b + 1] - start[b]) + (t - start[b]) + 1, 0)
            table[t, :copied] = x.block_table[b, :copied]
            unread[t, : cdiv(lens[t], point.block_size)] = False
    unread[start[-1] : tokens, 0] = False
    unread[tokens:] = False
    return {
        "lens": Expected(torch.tensor(lens, dtype=torch.int32)),
        "decode_lens": Expected(torch.ones(capacity, dtype=torch.int32), untouched=torch.arange(capacity) >= tokens),
        "block_table": Expected(
            table, slack=unread, untouched=(torch.arange(len(table)) >= tokens)[:, None].expand(table.shape)
        ),
    }


def bytes_moved(point: Point, x: Inputs) -> int:
    """Inputs once (used blocks of each request), outputs once (used blocks of each token, all lengths, T ones)."""
    start, seq_lens = x.query_start_loc.tolist(), x.seq_lens.tolist()
    entries = len(start) + len(seq_lens)
    for b, seq_len in enumerate(seq_lens):
        decode_len = start[b + 1] - start[b]
        if decode_len:
            entries += cdiv(seq_len, point.block_size)
        for j in range(decode_len):
            entries += cdiv(max(seq_len - decode_len + j + 1, 0), point.block_size)
    entries += x.num_decode_tokens - start[-1]
    return 4 * (entries + point.max_num_batched_tokens + x.num_decode_tokens)


# --- PyTorch-op variants ----------------------------------------------------------------------------------------------


def _needs_exact_host_lens(point: Point) -> str | None:
    return "reads query lengths from the CPU copy, which is stale here" if point.host_lens == "stale" else None


def _arange(out: Outputs) -> Tensor:
    """0 .. capacity - 1: a lookup table must cover every token the buffers can hold (vLLM #39277)."""
    return torch.arange(out.lens.numel(), dtype=torch.int32, device=out.lens.device)


def _store(out: Outputs, lens: Tensor, rows: Tensor, actual: int, tokens: int) -> None:
    """What the chains do alike once lengths [A] and table rows [A, W] are built: copies, then the padding tokens."""
    columns = min(rows.shape[1], out.block_table.shape[1])
    out.lens[:actual].copy_(lens)
    out.lens[actual:].fill_(0)
    out.block_table[:actual, :columns].copy_(rows[:, :columns])
    if tokens > actual:
        out.block_table[actual:tokens, 0].fill_(NULL_BLOCK_ID)
    out.decode_lens[:tokens].fill_(1)


@variant("decode_flatten", skip=_needs_exact_host_lens, waives="no_alloc")
def op_chain(point, x, out):
    """The operator chain of vLLM 0.19: three repeat_interleave, arange arithmetic, full-width rows.

    Upstream clamped the *shared* block table in place; that one launch is left out here (see the defect
    chain_clamps_shared_table) and the lengths are clamped instead, which drafter dummy runs need.
    """
    decode_lens, arange = torch.empty_like(x.seq_lens), _arange(out)

    def launch():
        torch.diff(x.query_start_loc, out=decode_lens)
        decode_lens_cpu = torch.diff(x.query_start_loc_cpu)
        actual = int(decode_lens_cpu.sum()) if int(decode_lens_cpu.max()) > 0 else 0
        computed = x.seq_lens - decode_lens
        bases = torch.repeat_interleave(computed, decode_lens, output_size=actual)
        starts = torch.repeat_interleave(x.query_start_loc[:-1], decode_lens, output_size=actual)
        lens = (bases + (arange[:actual] - starts) + 1).clamp_(min=0)
        rows = torch.repeat_interleave(x.block_table, decode_lens, dim=0, output_size=actual)
        _store(out, lens, rows, actual, x.num_decode_tokens)

    return launch


def _merged(x: Inputs, out: Outputs, arange: Tensor, actual: int) -> None:
    """One fused offset per request, seq_lens - decode_lens - query_start_loc, so two repeats instead of three."""
    decode_lens = torch.diff(x.query_start_loc)
    offsets = x.seq_lens - decode_lens - x.query_start_loc[:-1]
    repeated = torch.repeat_interleave(offsets, decode_lens, output_size=actual)
    lens = (repeated + arange[:actual] + 1).clamp_(min=0)
    rows = torch.repeat_interleave(x.block_table, decode_lens, dim=0, output_size=actual)
    _store(out, lens, rows, actual, x.num_decode_tokens)


@variant("decode_flatten", skip=_needs_exact_host_lens, waives="no_alloc")
def merged_chain(point, x, out):
    """The ragged chain of vLLM 0.22: offsets merged before they are repeated, lengths clamped, full-width rows."""
    arange = _arange(out)

    def launch():
        _merged(x, out, arange, int(torch.diff(x.query_start_loc_cpu).sum()))

    return launch


@lru_cache(maxsize=1)
def _compiled_merged():
    """One compiled function per process, shared by all points, as an engine would hold it.

    Sizes 0 and 1 and equal widths are compiled apart, more often than Dynamo's default limit of 8 allows; past the
    limit it would run the plain operators unsaid, and those must not be timed under this name.
    """
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(_merged, dynamic=True)


@variant("decode_flatten", requires=COMPILER, skip=_needs_exact_host_lens, waives="no_alloc")
def compiled_chain(point, x, out):
    """torch.compile (Inductor, dynamic shapes) of the merged chain."""
    arange, compiled = _arange(out), _compiled_merged()

    def launch():
        compiled(x, out, arange, int(torch.diff(x.query_start_loc_cpu).sum()))

    return launch


# --- historic defects -------------------------------------------------------------------------------------------------


@variant(
    "decode_flatten", defect="the shared block table is clamped in place to hide -1 (vLLM 0.19)", skip=_needs_exact_host_lens,
    waives="no_alloc",
)  # fmt: skip
def chain_clamps_shared_table(point, x, out):
    chain = op_chain(point, x, out)

    def launch():
        x.block_table.clamp_(min=0)
        chain()

    return launch


operator = Operator(
    name="decode_flatten",
    summary="one row per speculative token: lengths, block table and decode lengths of B ragged requests spread over T tokens",
    axes=(
        *axes.DECODE_STEP,
        axes.TOKEN_PADDING,
        axes.HOST_LENS,
        axes.BLOCK_SIZE,
        axes.TABLE_COLUMNS,
        axes.TABLE_PADDING,
        axes.MAX_NUM_BATCHED_TOKENS,
    ),
    make_inputs=make_inputs,
    make_outputs=make_outputs,
    views=views,
    reference=reference,
    bytes_moved=bytes_moved,
    baseline="op_chain",
    hard_points=HARD_POINTS,
    sequences=SEQUENCES,
    rules=(
        *axes.DECODE_STEP_RULES,
        Rule(
            "the step's tokens (batch_size {batch_size} x max_decode_len {max_decode_len} + token_padding {token_padding}) "
            "must not exceed max_num_batched_tokens ({max_num_batched_tokens})",
            lambda p: num_tokens(p) <= p.max_num_batched_tokens,
        ),
    ),
    redundant=axes.same_batch_elsewhere,
)
