"""A decode step as flattening meets it: its inputs, the buffers of its tokens, the scalar loops and the traffic of
both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from baselines.workloads.decode_batch import NULL_BLOCK_ID, make_batch, make_block_table, max_tokens
from baselines.workloads.integers import cdiv
from harness.contract import HOST, Expected, Point

#: Table rows past the last token that stay allocated, so that a write past T is seen.
SPARE_ROWS = 8


@dataclass(frozen=True)
class Inputs:
    seq_lens: Tensor  # [B] int32, this step's tokens included; 0 = padding request
    query_start_loc: Tensor  # [B + 1] int32, non-decreasing; authoritative
    block_table: Tensor  # [B, table_columns] int32, stride(0) >= table_columns
    query_start_loc_cpu: Tensor = field(metadata=HOST)  # [B + 1] int32; may be optimistic (host_lens = stale)
    num_decode_tokens: int  # T, token padding included


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


def make_token_buffers(point: Point) -> tuple[Tensor, Tensor, Tensor]:
    """Lengths and decode lengths at engine capacity, and the block table. The table is bounded by requests x next_n
    rows, as 8192 full rows would be 84 MB (and 537 MB at a 1M context) of memory that no step can use.
    """
    rows = max(point.batch_size * point.next_n, num_tokens(point)) + SPARE_ROWS
    columns = cdiv(point.max_model_len, point.block_size)
    lens, decode_lens = (torch.empty(point.max_num_batched_tokens, dtype=torch.int32) for _ in range(2))
    return lens, decode_lens, torch.empty(rows, columns, dtype=torch.int32)


def flattened(point: Point, x: Inputs) -> Mapping[str, Expected]:
    """The buffers of make_token_buffers, request by request and token by token."""
    shape = make_token_buffers(point)[2].shape
    tokens, capacity = x.num_decode_tokens, point.max_num_batched_tokens
    start, seq_lens = x.query_start_loc.tolist(), x.seq_lens.tolist()
    lens = [0] * capacity
    table = torch.full(shape, NULL_BLOCK_ID, dtype=torch.int32)
    unread = torch.ones(shape, dtype=torch.bool)
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


def bytes_flattened(point: Point, x: Inputs) -> int:
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
