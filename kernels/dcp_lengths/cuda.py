"""dcp_lengths in CUDA C++: the launch of dcp_lengths.cu."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from spec_decode_bench.baselines.dcp_lengths.operator import Inputs, Outputs, rank_of
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import GPU, Point, variant
from spec_decode_bench.harness.cuda import cuda_source, launcher

THREADS = 128


class Sizes(NamedTuple):
    """num_reqs: real rows. round: tokens that all ranks take in turn; first: those of the ranks before this one."""

    num_reqs: int
    max_num_seqs: int
    round: int
    first: int
    interleave: int


SOURCE = cuda_source(Path(__file__).with_name("dcp_lengths.cu"), Sizes, Inputs, Outputs, constants={"THREADS": THREADS})


@variant("dcp_lengths", requires=GPU, sources=SOURCE)
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++."""
    interleave = point.cp_interleave
    n = Sizes(x.num_reqs, point.max_num_seqs, point.cp_size * interleave, rank_of(point) * interleave, interleave)
    grid = (cdiv(point.max_num_seqs, THREADS),)
    return launcher(SOURCE, "dcp_lengths_kernel", grid, THREADS, n, bundle(x), bundle(out))
