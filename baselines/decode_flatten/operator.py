"""decode_flatten: give every speculative token a row of its own, for a paged-MQA-logits kernel that knows only next_n = 1.

For flat token t < A = query_start_loc[B], with b the request that owns it (query_start_loc[b] <= t <
query_start_loc[b+1]) and j = t - query_start_loc[b]:

    lens[t]           = max(seq_lens[b] - decode_len[b] + j + 1, 0)
    block_table[t, c] = source[b, c]      for the columns a consumer reads, c < ceil(lens[t] / block_size)
    decode_lens[t]    = 1

Token padding, A <= t < T: lens 0, decode_lens 1, block_table[t, 0] = NULL; the rest of the row is never read.
Slack, T <= t < capacity: lens 0, because a graph captured at a larger T may be replayed after a smaller step; every
other buffer keeps what it held.

Built once per decode step and indexer metadata group (vLLM's DeepSeek-V3.2 indexer; DeepGEMM's paged MQA logits read
it). DeepGEMM reads ceil(lens[t] / block_size) table entries of a row, so copying the used blocks alone is enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from baselines.decode_flatten._batches import bytes_flattened, flattened, make_inputs, make_token_buffers, num_tokens
from baselines.decode_flatten._chains import arange_of, flatten_chain, merged, needs_exact_host_lens
from baselines.decode_flatten._points import HARD_POINTS, SEQUENCES
from baselines.workloads import axes
from baselines.workloads.decode_batch import NULL_BLOCK_ID
from baselines.workloads.torch_compile import compiled
from harness.contract import COMPILER, Operator, Point, Rule, variant


@dataclass(frozen=True)
class Outputs:
    lens: Tensor  # [capacity] int32
    decode_lens: Tensor  # [capacity] int32
    block_table: Tensor  # [rows, ceil(max_model_len / block_size)] int32, rows >= T


def make_outputs(point: Point) -> Outputs:
    return Outputs(*make_token_buffers(point))


def views(point: Point, out: Outputs) -> Mapping[str, Tensor]:
    """What the indexer is handed: the first T rows of each buffer."""
    tokens = num_tokens(point)
    return {
        "lens": out.lens[:tokens],
        "decode_lens": out.decode_lens[:tokens],
        "block_table": out.block_table[:tokens],
    }


# --- PyTorch-op variants ----------------------------------------------------------------------------------------------


@variant("decode_flatten", skip=needs_exact_host_lens, waives="no_alloc")
def op_chain(point, x, out):
    """The operator chain of vLLM 0.19: three repeat_interleave, arange arithmetic, full-width rows.

    Upstream clamped the *shared* block table in place; that one launch is left out here (see the defect
    chain_clamps_shared_table) and the lengths are clamped instead, which drafter dummy runs need.
    """
    return flatten_chain(x, out)


@variant("decode_flatten", skip=needs_exact_host_lens, waives="no_alloc")
def merged_chain(point, x, out):
    """The ragged chain of vLLM 0.22: offsets merged before they are repeated, lengths clamped, full-width rows."""
    return _merged(point, x, out, merged)


def _merged(point, x, out, chain):
    arange = arange_of(out)
    return lambda: chain(x, out, arange, int(torch.diff(x.query_start_loc_cpu).sum()))


_EXAMPLES = (
    {"batch_size": 24, "table_columns": 2600, "table_padding": 3},
    {"batch_size": 24, "table_columns": 2600, "table_padding": 3, "token_padding": 5},
    {"batch_size": 1},
    {"batch_size": 1, "next_n": 1},
)


@variant("decode_flatten", requires=COMPILER, skip=needs_exact_host_lens, waives="no_alloc")
def compiled_chain(point, x, out):
    """torch.compile (Inductor, dynamic shapes) of the merged chain."""
    return _merged(point, x, out, compiled(merged, _merged, operator, _EXAMPLES, x.seq_lens.device))


# --- historic defects -------------------------------------------------------------------------------------------------


@variant(
    "decode_flatten",
    defect="the shared block table is clamped in place to hide -1 (vLLM 0.19)",
    skip=needs_exact_host_lens,
    waives="no_alloc",
)
def chain_clamps_shared_table(point, x, out):
    chain = op_chain(point, x, out)

    def launch():
        x.block_table.clamp_(min=0)
        chain()

    return launch


@variant(
    "decode_flatten",
    defect="the CPU's query boundaries are taken for the device's (vLLM #52795, #56562)",
    waives=("no_alloc", "no_sync", "graph_safe"),
)
def host_boundaries_trusted(point, x, out):
    """Right where the host knows; after adaptive verification its boundaries are those of the drafts, not of what
    was kept.
    """
    arange = arange_of(out)
    columns = min(x.block_table.shape[1], out.block_table.shape[1])

    def launch():
        actual, start = int(x.query_start_loc_cpu[-1]), x.query_start_loc_cpu.to(out.lens.device)
        decode_lens = torch.diff(start)
        offsets = torch.repeat_interleave(x.seq_lens - decode_lens - start[:-1], decode_lens, output_size=actual)
        out.lens[:actual].copy_((offsets + arange[:actual] + 1).clamp_(min=0))
        out.lens[actual:].fill_(0)
        rows = torch.repeat_interleave(x.block_table[:, :columns], decode_lens, dim=0, output_size=actual)
        out.block_table[:actual, :columns].copy_(rows)
        out.block_table[actual : x.num_decode_tokens, 0].fill_(NULL_BLOCK_ID)
        out.decode_lens[: x.num_decode_tokens].fill_(1)

    return launch


@variant(
    "decode_flatten",
    defect="lengths past T keep those of a larger step, which a graph captured at it reads (xllm #1939)",
    skip=needs_exact_host_lens,
    waives="no_alloc",
)
def tail_not_cleared(point, x, out):
    tokens = x.num_decode_tokens
    return flatten_chain(x, Outputs(out.lens[:tokens], out.decode_lens[:tokens], out.block_table))


@variant(
    "decode_flatten",
    defect="the arange has max_num_seqs x next_n entries, a padded step has more tokens (vLLM #39277, #40983)",
    skip=needs_exact_host_lens,
    waives="no_alloc",
)
def arange_of_requests(point, x, out):
    """max_num_seqs is B here. Upstream raised; clamped to the table's end, the tokens behind it are written by
    nobody.
    """
    covered = arange_of(out)[: point.batch_size * point.next_n][: x.num_decode_tokens]
    return flatten_chain(replace(x, num_decode_tokens=len(covered)), out)


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
    reference=flattened,
    bytes_moved=bytes_flattened,
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
