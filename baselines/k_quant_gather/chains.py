"""k_quant_gather from PyTorch operators: masked to the host's upper bound, cut at the exact length, compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from spec_decode_bench.baselines.k_quant_gather.operator import Inputs, Outputs, operator, scale_bytes
from spec_decode_bench.baselines.workloads.decode_batch import NULL_BLOCK_ID
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled
from spec_decode_bench.harness.contract import COMPILER, Point, variant


@dataclass(frozen=True)
class Pages:
    """What a chain prepares once: the two parts of every cache block as views, and constants on the device."""

    values: torch.Tensor  # [num_blocks, block_size, head_dim] uint8
    scales: torch.Tensor  # [num_blocks, block_size, scale bytes] uint8
    # cu_seq_lens[1:], [B] int32. Sliced here and not in the chain: Inductor of torch 2.11 ignores the slice's offset
    # when it searches in it.
    ends: torch.Tensor
    tokens: torch.Tensor  # [N] int32, 0 .. N - 1
    tokens_64: torch.Tensor  # [N] int64, the same
    null: torch.Tensor  # [1] int64, NULL_BLOCK_ID


def make_pages(point: Point, x: Inputs) -> Pages:
    cache, device = x.kv_cache, x.kv_cache.device
    parts, begin = [], cache.storage_offset()
    for width in (point.head_dim, scale_bytes(point)):
        parts.append(cache.as_strided((len(cache), point.block_size, width), (cache.stride(0), width, 1), begin))
        begin += point.block_size * width
    return Pages(
        *parts,
        ends=x.cu_seq_lens[1:],
        tokens=torch.arange(x.num_tokens, dtype=torch.int32, device=device),
        tokens_64=torch.arange(x.num_tokens, device=device),
        null=torch.full((1,), NULL_BLOCK_ID, device=device),
    )


def locate_tokens(x: Inputs, pages: Pages, block_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Block id [N] int64, offset in the block [N] int64, real [N] bool. Slack gets the null block and offset 0."""
    requests = len(pages.ends)
    b = torch.searchsorted(pages.ends, pages.tokens, right=True)
    real = b < requests
    b.clamp_(max=requests - 1)
    p = (pages.tokens_64 - x.cu_seq_lens[b]).mul_(real)
    return torch.where(real, x.block_table[b, p // block_size], pages.null), p % block_size, real


def copy_where(
    mask: torch.Tensor, block: torch.Tensor, offset: torch.Tensor, x: Inputs, out: Outputs, pages: Pages
) -> None:
    """Workspace rows where ``mask`` [N] is set get their token; the others are written back unchanged."""
    for part, workspace in ((pages.values, out.k), (pages.scales, out.scale)):
        rows = workspace[: x.num_tokens]
        torch.where(mask[:, None], part[block, offset], rows, out=rows)


def masked_gather(x: Inputs, out: Outputs, pages: Pages, block_size: int) -> None:
    block, offset, real = locate_tokens(x, pages, block_size)
    copy_where(real, block, offset, x, out, pages)


def _set_up(point: Point, x: Inputs, out: Outputs, gather: Callable[..., None]) -> Callable[[], None]:
    pages = make_pages(point, x)
    return lambda: gather(x, out, pages, point.block_size)


@variant("k_quant_gather", waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Gathers as many rows as the host's upper bound. Slack rows are masked: they read the null block and are
    written back unchanged.
    """
    return _set_up(point, x, out, masked_gather)


@variant("k_quant_gather", waives=("no_alloc", "no_sync", "graph_safe"))
def exact_length(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Reads the exact number of tokens back from the device and gathers only these, without a mask: one
    synchronisation per layer.
    """
    pages = make_pages(point, x)

    def launch() -> None:
        exact = int(x.cu_seq_lens[-1].item())
        b = torch.searchsorted(pages.ends, pages.tokens[:exact], right=True)
        p = pages.tokens_64[:exact] - x.cu_seq_lens[b]
        block, offset = x.block_table[b, p // point.block_size].long(), p % point.block_size
        out.k[:exact] = pages.values[block, offset]
        out.scale[:exact] = pages.scales[block, offset]

    return launch


#: A general chunk first; then a table without space between its rows and one request, which are compiled separately.
_EXAMPLES = (
    {"batch_size": BUSY_BATCH, "chunk_tokens": 90_000, "table_padding": 3},
    {"batch_size": BUSY_BATCH, "chunk_tokens": 90_000},
    {"batch_size": 1, "chunk_tokens": 90_000},
)


@variant("k_quant_gather", requires=COMPILER, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the masked chain."""
    return _set_up(point, x, out, compiled(masked_gather, _set_up, operator, _EXAMPLES, x.kv_cache.device))
