"""mamba_state_copy in CUDA C++: as triton.py, with 16-byte accesses and several of them in flight per thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from spec_decode_bench.baselines.mamba_state_copy.operator import Inputs, Outputs, by_slot, conv_columns, time_first
from spec_decode_bench.baselines.workloads.integers import cdiv, reciprocal
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.kernels.mamba_state_copy.triton import GRID_SIZES, num_blocks

#: Threads of a block, and accesses of an SSM state that a thread has in flight at most.
THREADS, ACCESSES = 256, 4


class CudaSizes(NamedTuple):
    """mamba_state_copy::Sizes. Of the pairs, multiplier and shift divide by the block size, pieces and layers."""

    num_reqs: int
    table_stride: int
    after: int
    block_size: int
    multiplier: int
    division_shift: int
    num_layers: int
    slots_in: int
    slots_out: int
    words: int
    ssm_pieces: int
    pieces: int
    columns: int
    channels: int
    time_stride: int
    channel_stride: int
    span: int
    pieces_multiplier: int
    pieces_shift: int
    layers_multiplier: int
    layers_shift: int
    layers_per_group: int


SOURCE = cuda_source(
    Path(__file__).with_name("mamba_state_copy.cu"),
    CudaSizes,
    Inputs,
    Outputs,
    constants={"THREADS": THREADS, "ACCESSES": ACCESSES},
)


def _vector(size: int, widest: int, *pools: torch.Tensor) -> int:
    """Elements per access: ``widest`` (16 bytes) where the state's size and both addresses allow it, else 1."""
    return widest if size % widest == 0 and all(pool.data_ptr() % 16 == 0 for pool in pools) else 1


@variant("mamba_state_copy", requires=GPU, sources=SOURCE, sizes=GRID_SIZES)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++: 16-byte accesses where sizes and addresses allow them, several in flight per thread."""
    words, after, sd = x.ssm_states.shape[2], point.phase == "after_sampling", point.conv_layout == "SD"
    time_stride, channel_stride = time_first(point, x.conv_states).stride()[2:]
    ssm_vector = _vector(words, 4, x.ssm_states, out.ssm_states)
    conv_vector = _vector(point.conv_dim, 8, x.conv_states, out.conv_states) if sd else 1
    span = THREADS * ACCESSES
    if words <= span * ssm_vector:  # a state that would be one piece: two blocks share it
        span //= 2
    ssm_pieces = cdiv(words, span * ssm_vector)
    pieces = ssm_pieces + cdiv(point.conv_dim, THREADS * conv_vector)
    n = CudaSizes(
        point.batch_size,
        x.block_table.stride(-2),
        int(after),
        point.mamba_block_size,
        *reciprocal(point.mamba_block_size),
        point.num_layers,
        x.ssm_states.shape[1],
        out.ssm_states.shape[1],
        words // ssm_vector,
        ssm_pieces,
        pieces,
        conv_columns(point),
        point.conv_dim // conv_vector,
        time_stride // conv_vector,
        channel_stride,
        span,
        *reciprocal(pieces),
        *reciprocal(point.num_layers),
        point.num_layers // point.num_groups,
    )
    group_stride = ctypes.c_longlong(x.block_table.stride(0))
    kernel = f"mamba_state_copy_{'slots_' if by_slot(point) else ''}kernel_ssm{ssm_vector}_conv{conv_vector}"
    arguments = n, bundle(x), bundle(out), group_stride
    return launcher(SOURCE, kernel, num_blocks(point, pieces), THREADS, *arguments)
