"""decode_flatten in CUDA C++: the launch. decode_flatten.cuh explains the kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from spec_decode_bench.baselines.dcp_lengths.operator import ranks_of
from spec_decode_bench.baselines.decode_flatten.operator import Inputs, Outputs, copied_columns
from spec_decode_bench.harness.bundle import bundle, bundle_type
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.dcp_lengths.cuda import local
from spec_decode_bench.kernels.decode_flatten.triton import INPUTS, OUTPUTS, STRIP_SIZES, request_grid, sizes

THREADS = 256


def access_width(x: Inputs, out: Outputs) -> int:
    """int32 per access: 4 where both tables and the lengths allow 16-byte accesses everywhere, else 1."""
    source, table, lens = x.block_table, out.block_table, out.lens
    sizes = (copied_columns(x, out), lens.numel(), source.stride(0), table.stride(0))
    aligned = all(size % 4 == 0 for size in sizes) and all(t.data_ptr() % 16 == 0 for t in (source, table, lens))
    return 4 if aligned else 1


class CudaSizes(NamedTuple):
    """decode_flatten::Sizes: those of Triton, and what it takes apart."""

    num_reqs: int
    num_tokens: int
    max_num_batched_tokens: int
    columns: int
    block_size: int
    source_stride: int
    table_stride: int


SOURCE = cuda_source(
    Path(__file__).with_name("decode_flatten.cu"),
    CudaSizes,
    bundle_type(Inputs, *INPUTS),
    bundle_type(Outputs, *OUTPUTS),
    constants={"THREADS": THREADS},
)


def cuda_sizes(point: Point, x: Inputs, out: Outputs) -> CudaSizes:
    n, strides = sizes(x, out), (x.block_table.stride(0), out.block_table.stride(0))
    return CudaSizes(n.num_reqs, n.num_tokens, n.max_num_batched_tokens, n.columns, point.block_size, *strides)


@variant("decode_flatten", requires=GPU, sources=SOURCE, sizes=STRIP_SIZES)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch for every batch in CUDA C++; 16-byte copies where both tables and the lengths are aligned for them."""
    width = access_width(x, out)
    ranks = (local(point),) if ranks_of(point)[0] > 1 else ()
    kernel = f"decode_flatten_{'' if out.indices is None else 'index_'}{'ranks_' if ranks else ''}kernel_vec{width}"
    arguments = cuda_sizes(point, x, out), bundle(x, *INPUTS), bundle(out, *OUTPUTS), *ranks
    return launcher(SOURCE, kernel, request_grid(x, out, THREADS * width), THREADS, *arguments)


def by_slot(
    point: Point, x: Inputs, out: Outputs, idx_mapping: torch.Tensor, num_computed_tokens: torch.Tensor
) -> Callable[[], None]:
    """The same without x.seq_lens, from lengths before the step, [R] int32 by slot, and x.block_table, [R, W], by slot.
    idx_mapping: [B] int64, the slot of each request; -1 = none.
    """
    width = access_width(x, out)
    by_slot = bundle(replace(x, seq_lens=num_computed_tokens), *INPUTS)
    arguments = cuda_sizes(point, x, out), by_slot, bundle(out, *OUTPUTS), idx_mapping
    grid = request_grid(x, out, THREADS * width)
    return launcher(SOURCE, f"decode_flatten_slots_kernel_vec{width}", grid, THREADS, *arguments)
