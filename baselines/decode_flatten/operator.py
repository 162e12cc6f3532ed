"""decode_flatten: one row per speculative token, for a paged-MQA-logits kernel that supports only next_n = 1.

vLLM's DeepSeek-V3.2 indexer (v1/attention/backends/mla/indexer.py) builds this once per decode step and metadata group,
for DeepGEMM's paged MQA logits.

Request b of the B requests of a step brings decode_len[b] = query_start_loc[b + 1] - query_start_loc[b] tokens. The
flat token t = query_start_loc[b] + j, its token j, gets

    lens[t]           = max(seq_lens[b] - decode_len[b] + j + 1, 0)
    block_table[t, c] = source[b, c]      for c < ceil(lens[t] / block_size), the columns that a consumer reads
    decode_lens[t]    = 1

With A = query_start_loc[B] real tokens, T launched tokens and buffers of ``capacity`` tokens there are two more ranges:

    A <= t < T           token padding: lens 0, decode_lens 1, block_table[t, 0] = NULL; no other column is read
    T <= t < capacity    lens 0, because a graph captured at a larger T may be replayed after a smaller step;
                         the other buffers keep their contents

A kernel that takes tokens of several requests (SM100, vLLM #56562) wants to know which belong together (``indices``):

    indices[t]        b for the tokens of request b; B + t - A for A <= t < T, because tokens of one id that lie side by
                      side are handled together
    request_lens[b]   seq_lens[b], at an address that a captured graph may keep

Under decode context parallelism (``cp_size`` > 1) lens[t] is what of that length lies on this rank (dcp_lengths), and
the table is that of the rank. A request's local length cannot be expanded instead: it does not grow with every token
(vLLM #46076). request_lens stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from spec_decode_bench.baselines.compute_slot_mappings.operator import (
    CONTEXT_PARALLEL,
    INTERLEAVE_FITS,
    has_all_tokens,
)
from spec_decode_bench.baselines.dcp_lengths.operator import held_of
from spec_decode_bench.baselines.decode_flatten.cases import CONTENTS, EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads.decode_batch import (
    NULL_BLOCK_ID,
    int32,
    make_batch,
    make_block_table,
    max_tokens,
)
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I32, Tensors, field

#: Table rows allocated past the last token, so that a write past T is detected.
SPARE_ROWS = 8
#: Axes of flattening beside those of a decode step.
FLATTENING = (
    axes.TOKEN_PADDING,
    axes.HOST_LENS,
    axes.BLOCK_SIZE,
    axes.TABLE_COLUMNS,
    axes.TABLE_PADDING,
    axes.MAX_NUM_BATCHED_TOKENS,
)
INDICES = Axis("indices", axes.choice("no", "yes"), "no", "whether the request of every token is written, too")


def with_indices(point: Point) -> bool:
    """Operators that are made of this one have no such axis."""
    return point.get("indices", "no") == "yes"


def num_tokens(point: Point) -> int:
    """T: the tokens that the host launches for, token padding included."""
    return max_tokens(point) + point.token_padding


def _table_rows(point: Point) -> int:
    return max(point.batch_size * point.next_n, num_tokens(point)) + SPARE_ROWS


def _table_width(point: Point) -> int:
    return cdiv(point.max_model_len, point.block_size)


class Inputs(Tensors):
    seq_lens: I32["batch_size"]  # this step's tokens included; 0 = padding request
    query_start_loc: I32["batch_size + 1"]  # non-decreasing; authoritative
    block_table: I32["batch_size", "table_columns"] = field(strided="table_columns + table_padding")
    query_start_loc_cpu: I32["batch_size + 1"] = field(host=True)  # L per real request where host_lens = stale
    num_decode_tokens: int  # T, token padding included


class Outputs(Tensors):
    """Lengths at engine capacity; table rows for batch_size * next_n tokens only.

    8192 full rows would take 84 MB (537 MB at a context of 1M tokens) that no step of this batch can use.
    """

    lens: I32["max_num_batched_tokens"] = field(read=num_tokens)
    decode_lens: I32["max_num_batched_tokens"] = field(read=num_tokens)
    block_table: I32[_table_rows, _table_width] = field(read=num_tokens, strided=True)
    indices: I32["max_num_batched_tokens"] = field(read=num_tokens, where=with_indices)
    request_lens: I32["max_num_batched_tokens"] = field(read="batch_size", where=with_indices)  # by request


def copied_columns(x: Inputs, out: Outputs) -> int:
    """Columns that the source and the expanded block table both have: a full row copy must not exceed them."""
    return min(x.block_table.shape[1], out.block_table.shape[1])


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    batch, held = make_batch(point, seed), held_of(point)
    return Inputs(
        seq_lens=batch.seq_lens,
        query_start_loc=batch.query_start_loc,
        block_table=make_block_table(point, int32([held(length) for length in batch.seq_lens.tolist()]), seed),
        query_start_loc_cpu=batch.host_query_start_loc,
        num_decode_tokens=num_tokens(point),
    )


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    """Request by request, token by token."""
    tokens, capacity = x.num_decode_tokens, point.max_num_batched_tokens
    start, seq_lens = x.query_start_loc.tolist(), x.seq_lens.tolist()
    lens, indices, held = [0] * capacity, [0] * capacity, held_of(point)
    table = torch.full((_table_rows(point), _table_width(point)), NULL_BLOCK_ID, dtype=torch.int32)
    not_read = torch.ones(table.shape, dtype=torch.bool)
    columns = min(x.block_table.shape[1], table.shape[1])
    # A row of an array costs a tenth of a row of a tensor.
    source, rows, unread = x.block_table.numpy()[:, :columns], table.numpy()[:, :columns], not_read.numpy()
    for b, seq_len in enumerate(seq_lens):
        decode_len = start[b + 1] - start[b]
        for j in range(decode_len):
            t = start[b] + j
            lens[t], indices[t] = held(max(seq_len - decode_len + j + 1, 0)), b
            rows[t] = source[b]
            unread[t, : cdiv(lens[t], point.block_size)] = False
    not_read[start[-1] : tokens, 0] = False
    past_tokens = torch.arange(len(table)) >= tokens
    not_read[past_tokens] = False
    behind = torch.arange(capacity) >= tokens
    expected = {
        "lens": Expected(torch.tensor(lens, dtype=torch.int32)),
        "decode_lens": Expected(torch.ones(capacity, dtype=torch.int32), untouched=behind),
        "block_table": Expected(table, may_keep=not_read, untouched=past_tokens[:, None].expand(table.shape)),
    }
    if with_indices(point):
        for t in range(start[-1], tokens):
            indices[t] = len(seq_lens) + t - start[-1]
        padded = torch.tensor(seq_lens + [0] * (capacity - len(seq_lens)), dtype=torch.int32)
        expected["indices"] = Expected(torch.tensor(indices, dtype=torch.int32), untouched=behind)
        expected["request_lens"] = Expected(padded, untouched=torch.arange(capacity) >= len(seq_lens))
    return expected


def bytes_moved(point: Point, x: Inputs) -> int:
    """Inputs once (used blocks of each request), outputs once (used blocks of each token, all lengths, T ones; with
    indices, T of them and a length per request).
    """
    start, seq_lens = x.query_start_loc.tolist(), x.seq_lens.tolist()
    entries, held = len(start) + len(seq_lens), held_of(point)
    for b, seq_len in enumerate(seq_lens):
        decode_len = start[b + 1] - start[b]
        if decode_len:
            entries += cdiv(held(seq_len), point.block_size)
        for j in range(decode_len):
            entries += cdiv(held(max(seq_len - decode_len + j + 1, 0)), point.block_size)
    entries += x.num_decode_tokens - start[-1]  # one NULL entry per padding token
    if with_indices(point):
        entries += x.num_decode_tokens + len(seq_lens)
    return 4 * (entries + point.max_num_batched_tokens + x.num_decode_tokens)


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point, rows=point.host_lens == "stale")


operator = Operator(
    name="decode_flatten",
    summary="one row per speculative token: lengths, block table and decode lengths of B ragged requests "
    "spread over T tokens",
    axes=(*axes.DECODE_STEP, *FLATTENING, INDICES, *CONTEXT_PARALLEL, axes.contents(CONTENTS)),
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
    rules=(
        *axes.DECODE_STEP_RULES,
        INTERLEAVE_FITS,
        Rule(
            "the step's tokens (batch_size {batch_size} x max_decode_len {max_decode_len} + token_padding "
            "{token_padding}) must not exceed max_num_batched_tokens ({max_num_batched_tokens})",
            lambda p: num_tokens(p) <= p.max_num_batched_tokens,
        ),
        Rule(
            "the lengths of batch_size ({batch_size}) requests must fit max_num_batched_tokens "
            "({max_num_batched_tokens})",
            lambda p: not with_indices(p) or p.batch_size <= p.max_num_batched_tokens,
        ),
    ),
    redundant=lambda p: has_all_tokens(p) or axes.same_batch_elsewhere(p),
)
