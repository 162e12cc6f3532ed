"""decode_step in CUDA C++: the launch. triton.py explains why one is enough, decode_step.cu how blocks share work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import torch

from spec_decode_bench.baselines.decode_step.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle, bundle_type
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher
from spec_decode_bench.harness.launch import replayed
from spec_decode_bench.harness.tensors import I32
from spec_decode_bench.kernels.dcp_lengths.cuda import Local, local
from spec_decode_bench.kernels.decode_flatten import cuda as decode_flatten
from spec_decode_bench.kernels.decode_flatten.cuda import access_width
from spec_decode_bench.kernels.decode_flatten.triton import STRIP_SIZES, request_grid
from spec_decode_bench.kernels.decode_step.triton import INPUTS, OUTPUTS, Sizes, sizes
from spec_decode_bench.kernels.mla_tile_schedule import cuda as mla_tile_schedule
from spec_decode_bench.kernels.paged_mqa_schedule import cuda as paged_mqa_schedule
from spec_decode_bench.kernels.paged_mqa_schedule.triton import rank_segments

THREADS = 256
#: From THREADS - 1 SMs on, one more block writes the schedule.
SIZES = STRIP_SIZES | {"num_sms": (THREADS - 1,)}


class Tables(NamedTuple):
    """What flattening takes further: the table of the requests, and that of the tokens. flatten: of decode_flatten."""

    block_table: Annotated[torch.Tensor, I32]
    expanded_block_table: Annotated[torch.Tensor, I32]
    flatten: decode_flatten.CudaSizes


class OneOfSeveral(NamedTuple):
    """Of decode_step.cu: a context-parallel rank. segment_log2: of rank_segments."""

    local: Local
    segment_log2: int


SOURCE = cuda_source(
    Path(__file__).with_name("decode_step.cu"),
    Sizes,
    bundle_type(Inputs, *INPUTS),
    bundle_type(Outputs, *OUTPUTS),
    Tables,
    constants={"THREADS": THREADS},
    uses=(decode_flatten.SOURCE, mla_tile_schedule.SOURCE, paged_mqa_schedule.SOURCE),
)


@variant("decode_step", requires=GPU, sources=SOURCE, sizes=SIZES)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, with the device functions of the operators' own kernels."""
    size = point.batch_size
    num_schedulers = 1 + cdiv(point.num_sms + 1, THREADS)
    n, inputs, outputs = sizes(point, x, num_schedulers), bundle(x, *INPUTS), bundle(out, *OUTPUTS)
    shape, ranks = "one" if size <= THREADS else "many", ()
    if point.cp_size > 1:
        shape, ranks = f"ranks_{shape}", (OneOfSeveral(local(point), rank_segments(point)[1]),)
    if point.decode_path == "native":
        blocks = num_schedulers + cdiv(size * point.max_decode_len, THREADS)
        return launcher(SOURCE, f"decode_step_native_{shape}_kernel", blocks, THREADS, n, inputs, outputs, *ranks)
    vector = access_width(x, out)
    tables = Tables(x.block_table, out.block_table, decode_flatten.cuda_sizes(point, x, out))
    across, strips = request_grid(x, out, THREADS * vector)
    kernel = f"decode_step_flatten_{shape}_kernel_vec{vector}"
    return launcher(SOURCE, kernel, (num_schedulers + across, strips), THREADS, n, inputs, tables, outputs, *ranks)


@variant("decode_step", requires=GPU, sources=SOURCE, sizes=SIZES)
def cuda_replayed(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """cuda_fused, captured at set-up and replayed as a graph of one node: less host time. The host may not change an
    argument, as it could for cuda_fused.
    """
    return replayed(cuda_fused(point, x, out))
