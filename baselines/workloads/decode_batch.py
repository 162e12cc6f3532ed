"""Decode batches: lengths, query boundaries and block tables of one step.

Shapes and host integers depend on the point alone. The seed decides contents: which request has which decode length,
its context length, its block ids. A graph captured on one seed can therefore be replayed on another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.workloads.axes import num_padding_requests
from spec_decode_bench.baselines.workloads.context_lengths import draw_lengths
from spec_decode_bench.harness.contract import Point

NULL_BLOCK_ID = 0
#: Content of the unused columns of a block table. A plausible id would hide a read past the used blocks.
UNUSED_BLOCK_ID = 0x7FFFFF00


@dataclass(frozen=True)
class Batch:
    """CPU tensors of B requests. Padding requests come last, with decode length 0 and sequence length 0."""

    seq_lens: torch.Tensor  # [B] int32, KV tokens including this step's
    decode_lens: torch.Tensor  # [B] int32, query rows
    query_start_loc: torch.Tensor  # [B + 1] int32, exclusive prefix sum of decode_lens
    host_query_start_loc: torch.Tensor  # [B + 1] int32, the CPU's copy; outdated where host_lens = stale


def max_tokens(point: Point) -> int:
    """Tokens of the step as the host counts them, without token padding: the sum of the decode lengths, or
    max_decode_len per real request where host_lens = stale.
    """
    if point.get("host_lens", "exact") == "stale":
        return (point.batch_size - num_padding_requests(point)) * point.max_decode_len
    return num_query_tokens(*_pattern(point))


def make_batch(point: Point, seed: int) -> Batch:
    """The batch of a point. A real request has decode_len <= seq_len <= min(max_model_len, tokens of a table row);
    drawn lengths are clipped to that.
    """
    rng = np.random.default_rng(seed)
    real = point.batch_size - num_padding_requests(point)
    decode_lens = np.zeros(point.batch_size, dtype=np.int64)
    decode_lens[:real] = rng.permutation(query_lens(*_pattern(point)))
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


def make_block_table(point: Point, seq_lens: torch.Tensor, seed: int) -> torch.Tensor:
    """The block table of sequence lengths [B]: int32 [B, table_columns], row stride table_columns + table_padding.

    A request of n tokens uses ceil(n / block_size) columns. Ids are 1 .. (used blocks of the batch) in random order,
    each once. Unused columns and the padding between rows hold UNUSED_BLOCK_ID, rows of padding requests NULL_BLOCK_ID.
    """
    rng = np.random.default_rng([seed, 1])
    stride = point.table_columns + point.table_padding
    storage = np.full((point.batch_size, stride), UNUSED_BLOCK_ID, dtype=np.int32)
    used = -(-seq_lens.numpy().astype(np.int64) // point.block_size)
    ids = rng.permutation(np.arange(1, int(used.sum()) + 1, dtype=np.int32))
    storage[:, : point.table_columns][np.arange(point.table_columns) < used[:, None]] = ids
    storage[seq_lens.numpy() == 0, : point.table_columns] = NULL_BLOCK_ID
    return torch.from_numpy(storage)[:, : point.table_columns]


def _owned(table: torch.Tensor) -> torch.Tensor:
    return (table != UNUSED_BLOCK_ID) & (table > NULL_BLOCK_ID)


def share_blocks(x: Any) -> None:
    """Every second request has the blocks of the one before it in the columns that both own, as prefix caching makes
    them. x: inputs with a block table.
    """
    before, behind = x.block_table[:-1:2], x.block_table[1::2]
    behind.copy_(torch.where(_owned(before) & _owned(behind), before, behind))


def large_ids(x: Any) -> None:
    """Block ids past 2^24, which fp32 does not hold. x: inputs with a block table."""
    x.block_table[_owned(x.block_table)] += 2**24


def _pattern(point: Point) -> tuple[str, int, int]:
    """Arguments of query_lens."""
    real = point.batch_size - num_padding_requests(point)
    return point.get("decode_len", "uniform"), real, point.max_decode_len


def query_lens(pattern: str, count: int, top: int) -> np.ndarray:
    """int64 [count] query tokens of requests in no particular order; ``top`` occurs where there is a request.

    pattern: a value of axes.DECODE_LEN.
    """
    if pattern == "ragged":
        return top - np.arange(count) % top
    lengths = np.full(count, top)
    if ones := _single_tokens(pattern, count):
        lengths[-ones:] = 1
    return lengths


def num_query_tokens(pattern: str, count: int, top: int) -> int:
    """The sum of query_lens, without making them."""
    if pattern == "ragged":
        cycles, rest = divmod(count, top)
        return cycles * top * (top + 1) // 2 + rest * top - rest * (rest - 1) // 2
    ones = _single_tokens(pattern, count)
    return (count - ones) * top + ones


def _single_tokens(pattern: str, count: int) -> int:
    """Requests of one token among longer ones."""
    return max(count // 10, 1) if pattern == "mixed" and count > 1 else 0


def accepted_drafts(rng: np.random.Generator, acceptance: float, count: int, drafts: int) -> np.ndarray:
    """int64 [count]: leading drafts accepted, of ``drafts`` that each pass with ``acceptance``."""
    return (rng.random((count, drafts)) < acceptance).cumprod(axis=1).sum(axis=1)


def _prefix(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)])


def int32(values: Sequence[int] | np.ndarray) -> torch.Tensor:
    """An int32 CPU tensor of the same shape. Values beyond 32 bits wrap."""
    return torch.from_numpy(np.asarray(values).astype(np.int32))
