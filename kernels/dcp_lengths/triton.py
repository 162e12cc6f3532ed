"""dcp_lengths in Triton: one launch over the whole buffer.

The engine's kernel divides twice by a number that it learns at run time. Here ranks and interleave, which a server
never changes, are constants, so the compiler multiplies instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.dcp_lengths.operator import Inputs, Outputs, ranks_of
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

#: Rows of a program.
ROWS = 128


class Sizes(NamedTuple):
    """num_reqs: real rows."""

    num_reqs: int
    max_num_seqs: int


@triton.jit
def local_length(length, RANKS: tl.constexpr, RANK: tl.constexpr, INTERLEAVE: tl.constexpr):
    """Full rounds, and what the last one has left for this rank."""
    left = length % (RANKS * INTERLEAVE) - RANK * INTERLEAVE
    return length // (RANKS * INTERLEAVE) * INTERLEAVE + tl.minimum(tl.maximum(left, 0), INTERLEAVE)


def rank_constants(point: Point) -> dict[str, int]:
    """Constants of kernels, which a server never changes."""
    return dict(zip(("RANKS", "RANK", "INTERLEAVE"), ranks_of(point), strict=True))


@triton.jit
def dcp_lengths_kernel(
    n, x, out, RANKS: tl.constexpr, RANK: tl.constexpr, INTERLEAVE: tl.constexpr, ROWS: tl.constexpr
):
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    # A row of padding has no context, so none of it lies here.
    length = tl.load(x.seq_lens + b, mask=b < n.num_reqs, other=0)
    local = local_length(length, RANKS, RANK, INTERLEAVE)
    tl.store(out.local_seq_lens + b, local, mask=b < n.max_num_seqs)


@variant("dcp_lengths")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch: a thread per row, ranks and interleave as constants."""
    grid, n = (cdiv(point.max_num_seqs, ROWS),), Sizes(x.num_reqs, point.max_num_seqs)
    return fixed_launch(dcp_lengths_kernel, grid, n, bundle(x), bundle(out), **rank_constants(point), ROWS=ROWS)
