"""k_quant_gather in CUDA C++: one unit per warp. The idea is in triton.py, the kernel in k_quant_gather.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from spec_decode_bench.baselines.k_quant_gather.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle, bundle_type
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.k_quant_gather.triton import max_units

WARP = 32
#: Bytes of values that a warp has in flight: 32 threads, 8 loads of 16 bytes each.
WARP_BYTES = 4096
#: Starting thousands of small blocks is slow, so many units are put MOST_WARPS to a block. Few units are spread over at
#: least TARGET_BLOCKS blocks (two per SM of a large GPU), if there are that many.
MOST_WARPS, TARGET_BLOCKS = 4, 264


#: Fields of Inputs that the kernel takes.
INPUTS = ("kv_cache", "block_table", "cu_seq_lens")


class CudaSizes(NamedTuple):
    """k_quant_gather::Sizes. block_shift, unit_shift: logarithms of the tokens of a block and of a unit."""

    num_reqs: int
    num_tokens: int
    table_stride: int
    block_stride: int
    block_shift: int
    unit_shift: int
    head_dim: int
    scale_bytes: int


SOURCE = cuda_source(
    Path(__file__).with_name("k_quant_gather.cu"),
    CudaSizes,
    bundle_type(Inputs, *INPUTS),
    Outputs,
    constants={"WARP": WARP},
)


@variant(
    "k_quant_gather",
    requires=GPU,
    sources=SOURCE,
    # Where the other axes have their defaults, 4 and 2 units per block begin there.
    sizes={"batch_size": (32,), "chunk_tokens": (16384,)},
)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch in CUDA C++; 16-byte copies where cache, its block stride and both workspaces are aligned for them."""
    unit = max(1, min(point.block_size, WARP_BYTES // point.head_dim))
    units, block_stride = max_units(x, unit), x.kv_cache.stride(0)
    aligned = block_stride % 16 == 0 and all(tensor.data_ptr() % 16 == 0 for tensor in (x.kv_cache, out.k, out.scale))
    warps = next((w for w in (MOST_WARPS, MOST_WARPS // 2) if units >= w * TARGET_BLOCKS), 1)
    n = CudaSizes(
        num_reqs=len(x.cu_seq_lens) - 1,
        num_tokens=x.num_tokens,
        table_stride=x.block_table.stride(0),
        block_stride=block_stride,
        block_shift=point.block_size.bit_length() - 1,
        unit_shift=unit.bit_length() - 1,
        head_dim=point.head_dim,
        scale_bytes=out.scale.shape[1],
    )
    kernel = "k_quant_gather_kernel_vec16" if aligned else "k_quant_gather_kernel_vec1"
    return launcher(SOURCE, kernel, cdiv(units, warps), WARP * warps, n, bundle(x, *INPUTS), bundle(out))
