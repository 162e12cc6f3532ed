"""decode_flatten in CUDA C++: the launch. decode_flatten.cuh explains the kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from baselines.decode_flatten.operator import Inputs, Outputs, copied_columns
from harness.contract import GPU, Point, variant
from harness.cuda import launcher
from kernels.decode_flatten.triton import STRIP_SIZES, request_grid

SOURCE = Path(__file__).with_name("decode_flatten.cu")
#: As in the CUDA source.
THREADS = 256


def access_width(x: Inputs, out: Outputs) -> int:
    """int32 per access: 4 where both tables and the lengths allow 16-byte accesses everywhere, else 1."""
    source, table, lens = x.block_table, out.block_table, out.lens
    sizes = (copied_columns(x, out), lens.numel(), source.stride(0), table.stride(0))
    aligned = all(size % 4 == 0 for size in sizes) and all(t.data_ptr() % 16 == 0 for t in (source, table, lens))
    return 4 if aligned else 1


def _launcher(
    point: Point, x: Inputs, out: Outputs, kernel: str, lengths: torch.Tensor, *more: torch.Tensor
) -> Callable[[], None]:
    """more: what the kernel takes besides the lengths, boundaries and tables."""
    width = access_width(x, out)
    return launcher(
        SOURCE,
        f"{kernel}_vec{width}",
        request_grid(x, out, THREADS * width),
        THREADS,
        lengths,
        x.query_start_loc,
        x.block_table,
        out.lens,
        out.decode_lens,
        out.block_table,
        len(x.seq_lens),
        x.num_decode_tokens,
        out.lens.numel(),
        point.block_size,
        copied_columns(x, out),
        x.block_table.stride(0),
        out.block_table.stride(0),
        *more,
    )


@variant("decode_flatten", requires=GPU, sources=SOURCE, sizes=STRIP_SIZES)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch for every batch in CUDA C++; 16-byte copies where both tables and the lengths are aligned for them."""
    if out.indices is None:
        return _launcher(point, x, out, "flatten", x.seq_lens)
    return _launcher(point, x, out, "index", x.seq_lens, out.indices, out.request_lens)


def by_slot(point: Point, x: Inputs, out: Outputs, idx: torch.Tensor, num_computed: torch.Tensor) -> Callable[[], None]:
    """The same without x.seq_lens, from lengths before the step, [R] int32 by slot, and x.block_table, [R, W], by slot.
    idx: [B] int64, the slot of each request; -1 = none.
    """
    return _launcher(point, x, out, "slots", num_computed, idx)
