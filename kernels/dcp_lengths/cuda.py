"""dcp_lengths in CUDA C++: the launch of dcp_lengths.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from spec_decode_bench.baselines.dcp_lengths.operator import Inputs, Outputs, ranks_of
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher

THREADS = 128


class Sizes(NamedTuple):
    """num_reqs: real rows. The rest: of dcp_lengths::Local."""

    num_reqs: int
    max_num_seqs: int
    round: int
    first: int
    interleave: int


class Local(NamedTuple):
    """dcp_lengths::Local, as an argument of kernels of other operators."""

    round: int
    first: int
    interleave: int


def local(point: Point) -> Local:
    size, rank, interleave = ranks_of(point)
    return Local(size * interleave, rank * interleave, interleave)


SOURCE = cuda_source(Path(__file__).with_name("dcp_lengths.cu"), Sizes, Inputs, Outputs, constants={"THREADS": THREADS})


@variant("dcp_lengths", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++."""
    ranks = local(point)
    n = Sizes(x.num_reqs, point.max_num_seqs, ranks.round, ranks.first, ranks.interleave)
    grid = (cdiv(point.max_num_seqs, THREADS),)
    return launcher(SOURCE, "dcp_lengths_kernel", grid, THREADS, n, bundle(x), bundle(out))
