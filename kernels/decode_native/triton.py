"""decode_native in Triton: one launch where the operator chain takes four to six.

One lane per entry of (B, L), one or two loads and a store each.

decode_native.cu has the versions that were tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.decode_native.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch
from spec_decode_bench.kernels.dcp_lengths.triton import local_length, rank_constants

ENTRIES_PER_PROGRAM = 128


@triton.jit
def context_len(
    seq_len,
    row,
    j,
    compress_ratio,
    RANKS: tl.constexpr = 1,
    RANK: tl.constexpr = 0,
    INTERLEAVE: tl.constexpr = 1,
):
    """Context length at column j of a row of ``row`` tokens, 0 past the row; on one of several ranks, its own part."""
    length = tl.maximum(seq_len - row + 1 + j, 0)
    length = tl.where(j < row, length, 0)
    if RANKS > 1:
        length = local_length(length, RANKS, RANK, INTERLEAVE)
    return length // compress_ratio


class Sizes(NamedTuple):
    """width: columns of a row, L. is_front: 1 where rows are aligned at their front, else 0."""

    batch_size: int
    width: int
    compress_ratio: int
    is_front: int


def sizes(point: Point, x: Inputs) -> Sizes:
    return Sizes(len(x.seq_lens), point.max_decode_len, point.compress_ratio, int(point.row_alignment == "front"))


@triton.jit
def decode_native_kernel(
    n, x, out, BLOCK: tl.constexpr, RANKS: tl.constexpr, RANK: tl.constexpr, INTERLEAVE: tl.constexpr
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n.batch_size * n.width
    b, j = i // n.width, i % n.width
    row = tl.load(x.decode_lens + b, mask=inside, other=0) * n.is_front + n.width * (1 - n.is_front)
    seq_len = tl.load(x.seq_lens + b, mask=inside, other=0)
    tl.store(out.buffer + i, context_len(seq_len, row, j, n.compress_ratio, RANKS, RANK, INTERLEAVE), mask=inside)


@variant("decode_native")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch, clamp and compression included, straight into the flat buffer."""
    grid = (cdiv(len(x.seq_lens) * point.max_decode_len, ENTRIES_PER_PROGRAM),)
    arguments = sizes(point, x), bundle(x), bundle(out)
    return fixed_launch(decode_native_kernel, grid, *arguments, BLOCK=ENTRIES_PER_PROGRAM, **rank_constants(point))
