"""k_quant_gather: copies the quantised index keys of a prefill chunk from the paged cache into two dense workspaces.

Token t < cu_seq_lens[B] belongs to the request b with cu_seq_lens[b] <= t < cu_seq_lens[b + 1]. With its position
p = t - cu_seq_lens[b], block = block_table[b, p // block_size] and o = p % block_size:

    k[t]     = the head_dim fp8 values of token o of that block
    scale[t] = its head_dim / quant_block_size fp32 scales

A block of the cache (base = block id * block stride, in bytes) holds all its values first, then all its scales, both
token-major:

    value d of token o    base + o * head_dim + d
    scale h of token o    base + block_size * head_dim + 4 * (o * head_dim / quant_block_size + h)

So kv_cache[block, o, head_dim:] is not the scale of token o: the tensor's shape gives a block's size, not its layout.

The host sizes the chunk by N = num_tokens, an upper bound that assumes that every draft was accepted. Workspace rows
from cu_seq_lens[B] to N are slack; no consumer reads them and they must keep their contents.

A pure copy of bytes: nothing is decoded. DeepSeek-V3.2 runs it in 61 layers per prefill chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.k_quant_gather.cases import EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads.decode_batch import make_block_table
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I32, U8, Tensors, field

#: Workspace rows past N, so that a write past N is detected.
SPARE_ROWS = 8
#: One fp32 scale.
SCALE_BYTES = 4
#: Index keys have 128 values. The limit keeps 64 tokens of values in the registers of one Triton program.
MOST_HEAD_DIM = 1024
#: Blocks of the cache that no request owns, besides block 0.
SPARE_BLOCKS = 2

AXES = (
    Axis(
        "batch_size",
        axes.whole(1),
        16,
        "requests of the prefill chunk (B), empty ones included",
        largest=axes.MOST_REQUESTS,
    ),
    Axis("chunk_tokens", axes.whole(1), 32768, "KV tokens of the chunk as the host counts them (N): an upper bound"),
    Axis("slack", axes.whole(0), 0, "upper limit of N minus the exact count, which is at least half as large"),
    Axis(
        "seq_lens",
        axes.choice("uniform", "ragged"),
        lambda p: "ragged" if p.batch_size > 1 else "uniform",
        "how the chunk is divided: uniform (equal shares) or ragged (cut at random places; requests may be empty)",
    ),
    Axis("head_dim", axes.whole(16), 128, "fp8 values per token"),
    Axis("quant_block_size", axes.whole(1), lambda p: p.head_dim, "values that share one fp32 scale"),
    axes.MAX_MODEL_LEN,
    axes.BLOCK_SIZE,
    axes.TABLE_COLUMNS,
    axes.TABLE_PADDING,
    Axis("page_padding", axes.whole(0), 0, "bytes between two blocks of the cache (stride - size)"),
)


def scale_bytes(point: Point) -> int:
    """Bytes of one token's scales."""
    return SCALE_BYTES * point.head_dim // point.quant_block_size


def longest_request(point: Point) -> int:
    """Tokens that one request may have: max_model_len, or what a row of the block table covers."""
    return min(point.max_model_len, point.table_columns * point.block_size)


RULES = (
    Rule(
        "head_dim ({head_dim}), quant_block_size ({quant_block_size}) and block_size ({block_size}) must be "
        "powers of two",
        lambda p: all(n & (n - 1) == 0 for n in (p.head_dim, p.quant_block_size, p.block_size)),
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


def _num_blocks(point: Point) -> int:
    """The most that N tokens of B requests can use, plus spares."""
    return 1 + point.chunk_tokens // point.block_size + point.batch_size + SPARE_BLOCKS


def _row_bytes(point: Point) -> int:
    return point.head_dim + scale_bytes(point)


def _block_stride(point: Point) -> int:
    return point.block_size * _row_bytes(point) + point.page_padding


def _workspace_rows(point: Point) -> int:
    return point.chunk_tokens + SPARE_ROWS


class Inputs(Tensors):
    # random bytes, also in blocks that no request owns
    kv_cache: U8[_num_blocks, "block_size", _row_bytes] = field(strided=_block_stride)
    # unused columns hold no valid id
    block_table: I32["batch_size", "table_columns"] = field(strided="table_columns + table_padding")
    cu_seq_lens: I32["batch_size + 1"]  # starts at 0, non-decreasing, exact; equal neighbours = empty request
    seq_lens: I32["batch_size"]  # the differences of cu_seq_lens, for kernels that add lengths up themselves
    num_tokens: int  # N >= cu_seq_lens[B]


class Outputs(Tensors):
    """Workspaces of one chunk. In an engine they are a prefix of 40 * max_model_len rows (865 MB)."""

    k: U8[_workspace_rows, "head_dim"] = field(read="chunk_tokens")  # the bytes of fp8 values
    scale: U8[_workspace_rows, scale_bytes] = field(read="chunk_tokens")  # the bytes of fp32 scales


def make_seq_lens(point: Point, seed: int) -> torch.Tensor:
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


def make_kv_cache(point: Point, seed: int) -> torch.Tensor:
    """uint8 [num_blocks, block_size, head_dim + scale bytes]; stride(0) includes page_padding.

    Every byte is random, also in blocks and
    rows that no request owns, so that a wrong row cannot equal the right one.
    """
    row, blocks, stride = _row_bytes(point), _num_blocks(point), _block_stride(point)
    storage = np.random.default_rng([seed, 2]).integers(0, 256, blocks * stride, dtype=np.uint8)
    return torch.from_numpy(storage).as_strided((blocks, point.block_size, row), (stride, row, 1))


def make_inputs(point: Point, seed: int) -> Inputs:
    """Shapes follow from the point alone; the seed moves contents: lengths, the exact token count, block ids, bytes."""
    seq_lens = make_seq_lens(point, seed)
    return Inputs(
        kv_cache=make_kv_cache(point, seed),
        block_table=make_block_table(point, seq_lens, seed),
        cu_seq_lens=torch.nn.functional.pad(seq_lens.cumsum(0, dtype=torch.int32), (1, 0)),
        seq_lens=seq_lens,
        num_tokens=point.chunk_tokens,
    )


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    out, size, width = Outputs.empty(point), point.block_size, scale_bytes(point)
    k, scale = torch.zeros_like(out.k), torch.zeros_like(out.scale)
    start = x.cu_seq_lens.tolist()
    for b in range(len(start) - 1):
        for t in range(start[b], start[b + 1], size):
            rows = min(size, start[b + 1] - t)
            block = x.kv_cache[int(x.block_table[b, (t - start[b]) // size])].flatten()
            values, scales = block[: size * point.head_dim], block[size * point.head_dim :]
            k[t : t + rows] = values.view(size, point.head_dim)[:rows]
            scale[t : t + rows] = scales.view(size, width)[:rows]
    slack = (torch.arange(len(k)) >= start[-1])[:, None]
    return {
        "k": Expected(k, untouched=slack.expand(k.shape)),
        "scale": Expected(scale, untouched=slack.expand(scale.shape)),
    }


def bytes_moved(point: Point, x: Inputs) -> int:
    """Values and scales of the real tokens read and written once; cu_seq_lens and used table entries read once."""
    lens = torch.diff(x.cu_seq_lens).tolist()
    entries = len(x.cu_seq_lens) + sum(cdiv(length, point.block_size) for length in lens)
    return 2 * sum(lens) * (point.head_dim + scale_bytes(point)) + 4 * entries


def varied(point: Point) -> Mapping[str, Any]:
    # Equal shares stay equal: the host knows the longest request of such a batch.
    return {"slack": point.chunk_tokens // 2}


operator = Operator(
    name="k_quant_gather",
    summary="values and scales of a prefill chunk's index keys, from the paged fp8 cache into contiguous workspaces",
    axes=AXES,
    rules=RULES,
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
    phase="prefill",
    redundant=lambda p: "a batch of one request is uniform" if p.batch_size == 1 and p.seq_lens == "ragged" else None,
)
