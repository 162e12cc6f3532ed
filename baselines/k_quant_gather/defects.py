"""Historic bugs of k_quant_gather, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from spec_decode_bench.baselines.k_quant_gather.chains import copy_where, locate_tokens, make_pages, masked_gather
from spec_decode_bench.baselines.k_quant_gather.operator import SCALE_BYTES, Inputs, Outputs
from spec_decode_bench.harness.contract import Point, variant


@variant(
    "k_quant_gather",
    defect="the upper bound is used as the work size: slack rows get a stale request index (vLLM #40772)",
)
def unguarded_upper_bound(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Upstream indexed with uninitialised shared memory, so it faulted or copied a wrong row into slack. Here the stale
    index is that of the last real token: legal, and so memory-safe, but still a row that slack must not get."""
    pages = make_pages(point, x)

    def launch() -> None:
        block, offset, _ = locate_tokens(x, pages, point.block_size)
        row = pages.tokens_64.minimum(x.cu_seq_lens[-1] - 1).clamp_(min=0)
        out.k[: x.num_tokens] = pages.values[block[row], offset[row]]
        out.scale[: x.num_tokens] = pages.scales[block[row], offset[row]]

    return launch


@variant("k_quant_gather", defect="only a token's first scale is copied, for any quant_block_size")
def dropped_scales(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    pages = make_pages(point, x)
    first_scales = replace(pages, scales=pages.scales[..., :SCALE_BYTES])
    first_out = Outputs(out.k, out.scale[:, :SCALE_BYTES])
    return lambda: masked_gather(x, first_out, first_scales, point.block_size)


@variant("k_quant_gather", defect="the table's row stride is ignored: row b is read at b * columns")
def ignored_row_stride(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Invalid ids are wrapped into the cache, where upstream would read out of bounds: memory-safe, but still
    wrong.
    """
    pages, table = make_pages(point, x), x.block_table
    packed = torch.as_strided(table, table.shape, (table.shape[1], 1))

    def launch() -> None:
        folded = replace(x, block_table=packed.remainder(len(x.kv_cache)))
        masked_gather(folded, out, pages, point.block_size)

    return launch


@variant("k_quant_gather", defect="the page count is used as the token count (SGLang #31218)")
def pages_for_tokens(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Right for pages of one token. Otherwise most rows keep the contents of an earlier chunk."""
    pages, size = make_pages(point, x), point.block_size

    def launch() -> None:
        block, offset, real = locate_tokens(x, pages, size)
        count = (torch.diff(x.cu_seq_lens) + size - 1).div(size, rounding_mode="floor").sum()
        copy_where(real & (pages.tokens < count), block, offset, x, out, pages)

    return launch
