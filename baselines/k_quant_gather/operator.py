"""k_quant_gather: copies the quantised index keys of a prefill chunk from the paged cache into two dense workspaces.

Token t < cu_seq_lens[B] belongs to the request b with cu_seq_lens[b] <= t < cu_seq_lens[b + 1]. With its position
p = t - cu_seq_lens[b], block = block_table[b, p // block_size] and o = p % block_size:

    k[t]     = the head_dim fp8 values of token o of that block
    scale[t] = its head_dim / quant_block_size fp32 scales

A block of the cache (base = block id * block stride, in bytes) holds all its values first, then all its scales, both
token-major:

    value d of token o    base + o * head_dim + d
    scale h of token o    base + block_size * head_dim + 4 * (o * head_dim / quant_block_size + h)

So kv_cache[block, o, head_dim:] is NOT the scale of token o: the tensor's shape gives a block's size, not its layout.

The host sizes the chunk without asking the device: N = num_tokens assumes that every draft was accepted and is an upper
bound. Workspace rows from cu_seq_lens[B] to N are slack; no consumer reads them and they must keep their contents.

Runs once per indexer layer and prefill chunk (61 layers in DeepSeek-V3.2). A pure copy of bytes: nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from baselines.k_quant_gather.cases import HARD_POINTS, SEQUENCES
from baselines.workloads import prefill_chunks as chunk
from baselines.workloads.decode_batch import make_block_table
from baselines.workloads.integers import cdiv
from baselines.workloads.prefill_chunks import scale_bytes
from harness.contract import Expected, Operator, Point

#: Workspace rows past N, so that a write past N is detected.
SPARE_ROWS = 8


@dataclass(frozen=True)
class Inputs:
    kv_cache: Tensor  # [num_blocks, block_size, head_dim + scale bytes] uint8, stride(0) >= bytes of a block
    block_table: Tensor  # [B, table_columns] int32, stride(0) >= table_columns; unused columns hold no valid id
    cu_seq_lens: Tensor  # [B + 1] int32, starts at 0, non-decreasing, exact; equal neighbours = empty request
    seq_lens: Tensor  # [B] int32, the differences of cu_seq_lens, for kernels that add lengths up themselves
    num_tokens: int  # N >= cu_seq_lens[B]


@dataclass(frozen=True)
class Outputs:
    k: Tensor  # [N + SPARE_ROWS, head_dim] uint8, the bytes of fp8 values
    scale: Tensor  # [N + SPARE_ROWS, scale bytes] uint8, the bytes of fp32 scales


def make_inputs(point: Point, seed: int) -> Inputs:
    seq_lens = chunk.make_seq_lens(point, seed)
    return Inputs(
        kv_cache=chunk.make_kv_cache(point, seed),
        block_table=make_block_table(point, seq_lens, seed),
        cu_seq_lens=torch.nn.functional.pad(seq_lens.cumsum(0, dtype=torch.int32), (1, 0)),
        seq_lens=seq_lens,
        num_tokens=point.chunk_tokens,
    )


def make_outputs(point: Point) -> Outputs:
    """Workspaces of one chunk. In an engine they are a prefix of 40 * max_model_len rows (865 MB)."""
    rows = point.chunk_tokens + SPARE_ROWS
    return Outputs(
        k=torch.empty(rows, point.head_dim, dtype=torch.uint8),
        scale=torch.empty(rows, scale_bytes(point), dtype=torch.uint8),
    )


def views(point: Point, out: Outputs) -> Mapping[str, Tensor]:
    return {"k": out.k[: point.chunk_tokens], "scale": out.scale[: point.chunk_tokens]}


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    out, size, width = make_outputs(point), point.block_size, scale_bytes(point)
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


operator = Operator(
    name="k_quant_gather",
    summary="values and scales of a prefill chunk's index keys, from the paged fp8 cache into contiguous workspaces",
    axes=chunk.AXES,
    make_inputs=make_inputs,
    make_outputs=make_outputs,
    views=views,
    reference=reference,
    bytes_moved=bytes_moved,
    baseline="op_chain",
    phase="prefill",
    hard_points=HARD_POINTS,
    sequences=SEQUENCES,
    rules=chunk.RULES,
    redundant=lambda p: "a batch of one request is uniform" if p.batch_size == 1 and p.seq_lens == "ragged" else None,
)
