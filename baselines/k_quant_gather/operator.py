"""k_quant_gather: quantised index-K rows of a prefill chunk, from the paged cache into two contiguous workspaces.

For token t < cu_seq_lens[B], with b the request that owns it (cu_seq_lens[b] <= t < cu_seq_lens[b+1]), position
p = t - cu_seq_lens[b], block = block_table[b, p // block_size] and o = p % block_size:

    k[t]     = the head_dim fp8 values of token o of that block
    scale[t] = its head_dim / quant_block_size fp32 scales

Inside a block (block stride x block id = base) all values stand first, then all scales, both token-major:

    value d of token o    base + o * head_dim + d
    scale h of token o    base + block_size * head_dim + 4 * (o * head_dim / quant_block_size + h)

so kv_cache[block, o, head_dim:] is NOT the scale of token o: the tensor's shape is a budget of bytes, no layout.

The workspaces have room for N = num_tokens rows, which the host counts without asking the device: it assumes that every
draft was accepted. Rows from cu_seq_lens[B] to N are slack: no consumer reads them and they keep what they held.
Runs once per indexer layer and prefill chunk (61 layers in DeepSeek-V3.2), so it is copied as bytes, never decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from baselines.k_quant_gather._points import HARD_POINTS, SEQUENCES
from baselines.workloads import prefill_chunks as chunk
from baselines.workloads.decode_batch import NULL_BLOCK_ID, make_block_table
from baselines.workloads.integers import cdiv
from baselines.workloads.prefill_chunks import SCALE_BYTES, scale_bytes
from baselines.workloads.torch_compile import compiled
from harness.contract import COMPILER, Expected, Operator, Point, variant

#: Workspace rows past N that stay allocated, so that a write past N is seen.
SPARE_ROWS = 8


@dataclass(frozen=True)
class Inputs:
    kv_cache: Tensor  # [num_blocks, block_size, head_dim + scale bytes] uint8, stride(0) >= bytes of a block
    block_table: Tensor  # [B, table_columns] int32, stride(0) >= table_columns; unused columns hold no valid id
    cu_seq_lens: Tensor  # [B + 1] int32, starts at 0, non-decreasing, exact; equal neighbours = empty request
    num_tokens: int  # N >= cu_seq_lens[B]


@dataclass(frozen=True)
class Outputs:
    k: Tensor  # [rows, head_dim] uint8 (fp8 bytes), rows > N
    scale: Tensor  # [rows, scale bytes] uint8 (fp32 bytes)


def make_inputs(point: Point, seed: int) -> Inputs:
    seq_lens = chunk.make_seq_lens(point, seed)
    return Inputs(
        kv_cache=chunk.make_kv_cache(point, seed),
        block_table=make_block_table(point, seq_lens, seed),
        cu_seq_lens=torch.nn.functional.pad(seq_lens.cumsum(0, dtype=torch.int32), (1, 0)),
        num_tokens=point.chunk_tokens,
    )


def make_outputs(point: Point) -> Outputs:
    """Workspaces of this chunk. The engine's have 40 x max_model_len rows (865 MB), of which a chunk gets a prefix."""
    rows = point.chunk_tokens + SPARE_ROWS
    return Outputs(
        k=torch.empty(rows, point.head_dim, dtype=torch.uint8),
        scale=torch.empty(rows, scale_bytes(point), dtype=torch.uint8),
    )


def views(point: Point, out: Outputs) -> Mapping[str, Tensor]:
    return {"k": out.k[: point.chunk_tokens], "scale": out.scale[: point.chunk_tokens]}


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    shape, size, width = make_outputs(point), point.block_size, scale_bytes(point)
    k, scale = torch.zeros_like(shape.k), torch.zeros_like(shape.scale)
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
    """Values and scales of the real tokens once in and once out, used table entries and cu_seq_lens once in."""
    lens = torch.diff(x.cu_seq_lens).tolist()
    entries = len(lens) + 1 + sum(cdiv(length, point.block_size) for length in lens)
    return 2 * sum(lens) * (point.head_dim + scale_bytes(point)) + 4 * entries


# --- PyTorch-op variants ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pages:
    """What the chains prepare once: both parts of every block as views of the cache, where each request's tokens end,
    token numbers, a null id. ``ends`` is no slice made in the chain: Inductor of torch 2.11 searches that from its
    storage's start.
    """

    values: Tensor  # [num_blocks, block_size, head_dim] uint8
    scales: Tensor  # [num_blocks, block_size, scale bytes] uint8
    ends: Tensor  # [B] int32, a view of cu_seq_lens
    tokens: Tensor  # [N] int32
    tokens_64: Tensor  # [N] int64
    null: Tensor  # [1] int64


def _pages(point: Point, x: Inputs) -> _Pages:
    cache, device = x.kv_cache, x.kv_cache.device
    parts, begin = [], cache.storage_offset()
    for width in (point.head_dim, scale_bytes(point)):
        parts.append(cache.as_strided((len(cache), point.block_size, width), (cache.stride(0), width, 1), begin))
        begin += point.block_size * width
    return _Pages(
        *parts,
        ends=x.cu_seq_lens[1:],
        tokens=torch.arange(x.num_tokens, dtype=torch.int32, device=device),
        tokens_64=torch.arange(x.num_tokens, device=device),
        null=torch.full((1,), NULL_BLOCK_ID, device=device),
    )


def _rows_by_mask(x: Inputs, pages: _Pages, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """(block ids [N] int64, offsets in them [N] int64, real [N] bool); slack rows have the null block and offset 0."""
    requests = len(pages.ends)
    b = torch.searchsorted(pages.ends, pages.tokens, right=True)
    real = b < requests
    b.clamp_(max=requests - 1)
    p = (pages.tokens_64 - x.cu_seq_lens[b]).mul_(real)
    return torch.where(real, x.block_table[b, p // block_size], pages.null), p % block_size, real


def _masked(x: Inputs, out: Outputs, pages: _Pages, block_size: int) -> None:
    block, offset, real = _rows_by_mask(x, pages, block_size)
    for part, workspace in ((pages.values, out.k), (pages.scales, out.scale)):
        rows = workspace[: x.num_tokens]
        torch.where(real[:, None], part[block, offset], rows, out=rows)


@variant("k_quant_gather", waives="no_alloc")
def op_chain(point, x, out):
    """N rows by the host's upper bound; slack rows are masked: gathered from the null block and written back as they
    were.
    """
    return _chain(point, x, out, _masked)


def _chain(point: Point, x: Inputs, out: Outputs, masked: Callable) -> Callable[[], None]:
    pages = _pages(point, x)
    return lambda: masked(x, out, pages, point.block_size)


@variant("k_quant_gather", waives=("no_alloc", "no_sync", "graph_safe"))
def exact_length(point, x, out):
    """Asks the device for the exact number of tokens and gathers these alone, without a mask: one synchronisation a
    layer.
    """
    pages = _pages(point, x)

    def launch():
        exact = int(x.cu_seq_lens[-1].item())
        b = torch.searchsorted(pages.ends, pages.tokens[:exact], right=True)
        p = pages.tokens_64[:exact] - x.cu_seq_lens[b]
        block, offset = x.block_table[b, p // point.block_size].long(), p % point.block_size
        out.k[:exact] = pages.values[block, offset]
        out.scale[:exact] = pages.scales[block, offset]

    return launch


_EXAMPLES = (
    {"batch_size": 12, "chunk_tokens": 9000, "table_padding": 3},
    {"batch_size": 1, "chunk_tokens": 9000},
)


@variant("k_quant_gather", requires=COMPILER, waives="no_alloc")
def compiled_chain(point, x, out):
    """torch.compile (Inductor, dynamic shapes) of the masked chain."""
    return _chain(point, x, out, compiled(_masked, _chain, operator, _EXAMPLES, x.kv_cache.device))


# --- historic defects -------------------------------------------------------------------------------------------------


@variant(
    "k_quant_gather",
    defect="the upper bound is the work size: slack rows follow a stale request index (vLLM #40772)",
    waives="no_alloc",
)
def unguarded_upper_bound(point, x, out):
    """Upstream indexed with uninitialised shared memory, so it faulted or copied a wrong row into slack. Here the stale
    index is that of the last real token: legal, and so memory-safe, but still a row that slack must not get."""
    pages = _pages(point, x)

    def launch():
        block, offset, _ = _rows_by_mask(x, pages, point.block_size)
        row = pages.tokens_64.minimum(x.cu_seq_lens[-1] - 1).clamp_(min=0)
        out.k[: x.num_tokens] = pages.values[block[row], offset[row]]
        out.scale[: x.num_tokens] = pages.scales[block[row], offset[row]]

    return launch


@variant(
    "k_quant_gather", defect="a token's first scale alone is copied, whatever quant_block_size is", waives="no_alloc"
)
def dropped_scales(point, x, out):
    pages, first = _pages(point, x), Outputs(out.k, out.scale[:, :SCALE_BYTES])
    pages = _Pages(**vars(pages) | {"scales": pages.scales[..., :SCALE_BYTES]})
    return lambda: _masked(x, first, pages, point.block_size)


@variant("k_quant_gather", defect="the table's row stride is ignored: row b is read at b * columns", waives="no_alloc")
def ignored_row_stride(point, x, out):
    """Ids that are none are folded into the cache, where upstream would read out of bounds: memory-safe, still
    wrong.
    """
    pages, table = _pages(point, x), x.block_table
    packed = torch.as_strided(table, table.shape, (table.shape[1], 1))

    def launch():
        folded = packed.remainder(len(x.kv_cache))
        _masked(Inputs(x.kv_cache, folded, x.cu_seq_lens, x.num_tokens), out, pages, point.block_size)

    return launch


@variant("k_quant_gather", defect="the page count is taken for the token count (SGLang #31218)", waives="no_alloc")
def pages_for_tokens(point, x, out):
    """Right where a page holds one token. Elsewhere most rows keep what an earlier chunk left in them."""
    pages = _pages(point, x)

    def counted_in_pages(x, out, pages, block_size):
        count = (torch.diff(x.cu_seq_lens) + block_size - 1).div(block_size, rounding_mode="floor").sum()
        block, offset, real = _rows_by_mask(x, pages, block_size)
        for part, workspace in ((pages.values, out.k), (pages.scales, out.scale)):
            rows = workspace[: x.num_tokens]
            torch.where((real & (pages.tokens < count))[:, None], part[block, offset], rows, out=rows)

    return lambda: counted_in_pages(x, out, pages, point.block_size)


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
