"""Legal decode batches: ragged or uniform, padded, with contexts from numbers, distributions or traces.

Shapes and host integers follow from the point alone; the seed moves contents: which request has which decode length,
its context, its block ids. So a captured graph can be replayed on a batch of another seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from baselines.workloads.axes import num_padding_requests
from baselines.workloads.context_lengths import draw_lengths
from harness.contract import Point

NULL_BLOCK_ID = 0
#: Stands in the unused columns of a block table: a valid-looking id would hide a read past the used blocks.
UNUSED_BLOCK_ID = 0x7FFFFF00


@dataclass(frozen=True)
class Batch:
    """CPU tensors. Padding requests stand last: decode length 0, sequence length 0."""

    seq_lens: Tensor  # [B] int32
    decode_lens: Tensor  # [B] int32
    query_start_loc: Tensor  # [B + 1] int32, exclusive prefix of decode_lens
    host_query_start_loc: Tensor  # [B + 1] int32, what the CPU believes


def max_tokens(point: Point) -> int:
    """Tokens the host counts before token padding: sum of decode lengths, or L per real request where it is stale."""
    if point.get("host_lens", "exact") == "stale":
        return (point.batch_size - num_padding_requests(point)) * point.max_decode_len
    return int(_decode_len_multiset(point).sum())


def make_batch(point: Point, seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    real = point.batch_size - num_padding_requests(point)
    decode_lens = np.zeros(point.batch_size, dtype=np.int64)
    decode_lens[:real] = rng.permutation(_decode_len_multiset(point))
    longest_kv = point.max_model_len
    if "table_columns" in point:
        longest_kv = min(longest_kv, point.table_columns * point.block_size)
    seq_lens = np.zeros(point.batch_size, dtype=np.int64)
    drawn = draw_lengths(point.context_len, real, rng)
    seq_lens[:real] = np.clip(drawn, np.minimum(decode_lens[:real], longest_kv), longest_kv)
    start = _prefix(decode_lens)
    host_start = start
    if point.get("host_lens", "exact") == "stale":
        host_start = _prefix(np.where(decode_lens > 0, point.max_decode_len, 0))
    return Batch(int32(seq_lens), int32(decode_lens), int32(start), int32(host_start))


def make_block_table(point: Point, seq_lens: Tensor, seed: int) -> Tensor:
    """int32 [B, table_columns] with row stride table_columns + table_padding.

    Block ids of all requests are distinct and random in [1, num_blocks); columns past a request's used blocks hold
    UNUSED_BLOCK_ID, rows of padding requests NULL_BLOCK_ID. The padding between rows is filled like unused columns.
    """
    rng = np.random.default_rng([seed, 1])
    stride = point.table_columns + point.table_padding
    storage = np.full((point.batch_size, stride), UNUSED_BLOCK_ID, dtype=np.int32)
    used = -(-seq_lens.numpy().astype(np.int64) // point.block_size)
    ids = rng.permutation(np.arange(1, int(used.sum()) + 1, dtype=np.int32))
    storage[:, : point.table_columns][np.arange(point.table_columns) < used[:, None]] = ids
    storage[seq_lens.numpy() == 0, : point.table_columns] = NULL_BLOCK_ID
    return torch.from_numpy(storage)[:, : point.table_columns]


def _decode_len_multiset(point: Point) -> np.ndarray:
    """Decode lengths of the real requests in no particular order; L occurs at least once."""
    real, top = point.batch_size - num_padding_requests(point), point.max_decode_len
    pattern = point.get("decode_len", "uniform")
    if pattern == "ragged":
        return top - np.arange(real) % top
    lengths = np.full(real, top)
    if pattern == "mixed":
        lengths[real - max(real // 10, min(real - 1, 1)) :] = 1
    return lengths


def _prefix(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)])


def int32(values: Sequence[int] | np.ndarray) -> Tensor:
    """A CPU tensor of the same shape."""
    return torch.from_numpy(np.asarray(values).astype(np.int32))
