"""Prefill chunks over a quantised index-K cache: axes, rules, request lengths, cache contents.

Shapes and host integers follow from the point alone; the seed moves contents: lengths, the exact token count, block
ids, bytes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from baselines.workloads import axes
from harness.contract import Axis, Point, Rule

#: One fp32 scale.
SCALE_BYTES = 4
#: Index keys have 128 values. The limit keeps 64 tokens of values in the registers of one Triton program.
MOST_HEAD_DIM = 1024
#: Blocks of the cache that no request owns, besides block 0.
SPARE_BLOCKS = 2

BATCH_SIZE = Axis(
    "batch_size",
    axes.whole(1),
    16,
    "requests of the prefill chunk (B), empty ones included",
    largest=axes.MOST_REQUESTS,
)
CHUNK_TOKENS = Axis(
    "chunk_tokens", axes.whole(1), 32768, "KV tokens of the chunk as the host counts them (N): an upper bound"
)
SLACK = Axis("slack", axes.whole(0), 0, "upper limit of N minus the exact count, which is at least half as large")
SEQ_LENS = Axis(
    "seq_lens",
    axes.choice("uniform", "ragged"),
    lambda p: "ragged" if p.batch_size > 1 else "uniform",
    "how the chunk is divided: uniform (equal shares) or ragged (cut at random places; requests may be empty)",
)
HEAD_DIM = Axis("head_dim", axes.whole(16), 128, "fp8 values per token")
QUANT_BLOCK_SIZE = Axis("quant_block_size", axes.whole(1), lambda p: p.head_dim, "values that share one fp32 scale")
PAGE_PADDING = Axis("page_padding", axes.whole(0), 0, "bytes between two blocks of the cache (stride - size)")
AXES = (
    BATCH_SIZE,
    CHUNK_TOKENS,
    SLACK,
    SEQ_LENS,
    HEAD_DIM,
    QUANT_BLOCK_SIZE,
    axes.MAX_MODEL_LEN,
    axes.BLOCK_SIZE,
    axes.TABLE_COLUMNS,
    axes.TABLE_PADDING,
    PAGE_PADDING,
)


def scale_bytes(point: Point) -> int:
    """Bytes of one token's scales."""
    return SCALE_BYTES * point.head_dim // point.quant_block_size


def longest_request(point: Point) -> int:
    """Tokens that one request may have: max_model_len, or what a row of the block table covers."""
    return min(point.max_model_len, point.table_columns * point.block_size)


def _powers_of_two(*numbers: int) -> bool:
    return all(number & (number - 1) == 0 for number in numbers)


RULES = (
    Rule(
        "head_dim ({head_dim}), quant_block_size ({quant_block_size}) and block_size ({block_size}) must be "
        "powers of two",
        lambda p: _powers_of_two(p.head_dim, p.quant_block_size, p.block_size),
    ),
    Rule(
        "quant_block_size ({quant_block_size}) must not exceed head_dim ({head_dim})",
        lambda p: p.quant_block_size <= p.head_dim,
    ),
    Rule(f"head_dim ({{head_dim}}) must not exceed {MOST_HEAD_DIM}", lambda p: p.head_dim <= MOST_HEAD_DIM),
    Rule(
        "a block of block_size ({block_size}) tokens and page_padding ({page_padding}) must take less than 2^31 bytes",
        lambda p: p.block_size * (p.head_dim + scale_bytes(p)) + p.page_padding < 2**31,
    ),
    Rule("slack ({slack}) must not exceed chunk_tokens ({chunk_tokens})", lambda p: p.slack <= p.chunk_tokens),
    Rule(
        "chunk_tokens ({chunk_tokens}) must fit batch_size ({batch_size}) requests of max_model_len ({max_model_len}) "
        "tokens in table_columns ({table_columns}) blocks each",
        lambda p: p.chunk_tokens <= p.batch_size * longest_request(p),
    ),
)


def make_seq_lens(point: Point, seed: int) -> Tensor:
    """int32 [B] tokens per request, each at most longest_request. They add up to N - slack plus at most slack / 2."""
    rng, size, longest = np.random.default_rng(seed), point.batch_size, longest_request(point)
    total = point.chunk_tokens - point.slack + int(rng.integers(0, point.slack // 2, endpoint=True))
    if point.seq_lens == "uniform":
        lens = rng.permutation(total // size + (np.arange(size) < total % size))
    else:
        cuts = np.sort(rng.integers(0, total, size - 1, endpoint=True))
        drawn = np.diff(cuts, prepend=0, append=total)
        lens = np.minimum(drawn, longest)
        room = longest - lens
        # Tokens cut off from requests that were too long go to the first requests with room for them.
        lens += np.clip((drawn - lens).sum() - (np.cumsum(room) - room), 0, room)
    return torch.from_numpy(lens.astype(np.int32))


def make_kv_cache(point: Point, seed: int) -> Tensor:
    """uint8 [num_blocks, block_size, head_dim + scale bytes]; stride(0) includes page_padding.

    num_blocks is the most that N tokens of B requests can use, plus spares. Every byte is random, also in blocks and
    rows that no request owns, so that a wrong row cannot equal the right one.
    """
    row = point.head_dim + scale_bytes(point)
    stride = point.block_size * row + point.page_padding
    blocks = 1 + point.chunk_tokens // point.block_size + point.batch_size + SPARE_BLOCKS
    storage = np.random.default_rng([seed, 2]).integers(0, 256, blocks * stride, dtype=np.uint8)
    return torch.from_numpy(storage).as_strided((blocks, point.block_size, row), (stride, row, 1))
