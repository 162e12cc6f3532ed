"""decode_step as the fused kernels of its operators, one after another."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.decode_step.operator import (
    Inputs,
    Outputs,
    native_part,
    on_rank,
    schedule_part,
    tile_part,
)
from spec_decode_bench.baselines.workloads.composition import Setup, in_sequence
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.kernels.dcp_lengths import cuda as local_cuda
from spec_decode_bench.kernels.dcp_lengths import triton as local_triton
from spec_decode_bench.kernels.decode_flatten import cuda as flatten_cuda
from spec_decode_bench.kernels.decode_flatten import triton as flatten_triton
from spec_decode_bench.kernels.decode_native import cuda as native_cuda
from spec_decode_bench.kernels.decode_native import triton as native_triton
from spec_decode_bench.kernels.mla_tile_schedule import cuda as tiles_cuda
from spec_decode_bench.kernels.mla_tile_schedule import triton as tiles_triton
from spec_decode_bench.kernels.paged_mqa_schedule import cuda as schedule_cuda
from spec_decode_bench.kernels.paged_mqa_schedule import triton as schedule_triton


def sequence(
    point: Point, x: Inputs, out: Outputs, flatten: Setup, native: Setup, schedule: Setup, tiles: Setup, local: Setup
) -> Callable[[], None]:
    """The launches of these variants in the order of a step.

    On the native path the rows per request take a separate launch, and so do lengths on one of several ranks.
    """
    if point.decode_path == "flatten":
        lengths = [flatten(point, x, out)]
    else:
        native_point, inputs, outputs = native_part(point, x, out)
        start, end = x.query_start_loc[:-1], x.query_start_loc[1:]
        lengths = [
            lambda: torch.sub(end, start, out=inputs.decode_lens),
            native(native_point, inputs, outputs),
        ]
    on_this, localize = on_rank(point, x, local)
    return in_sequence(
        *lengths, schedule(*schedule_part(point, out)), *localize, tiles(*tile_part(point, on_this, out))
    )


@variant("decode_step")
def triton_sequence(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The fused Triton kernels of the operators in sequence: three launches, one more on the native path, and on one
    of several ranks.
    """
    parts = (flatten_triton, native_triton, schedule_triton, tiles_triton, local_triton)
    return sequence(point, x, out, *(part.triton_fused for part in parts))


CUDA_PARTS = (flatten_cuda, native_cuda, schedule_cuda, tiles_cuda, local_cuda)


@variant("decode_step", requires=GPU, sources=[part.SOURCE for part in CUDA_PARTS])
def cuda_sequence(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The fused CUDA kernels of the operators in sequence: three launches, one more on the native path, and on one
    of several ranks.
    """
    return sequence(point, x, out, *(part.cuda_fused for part in CUDA_PARTS))
