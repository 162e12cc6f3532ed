"""decode_native in Triton: one launch where the operator chain takes four to six.

One lane per entry of (B, L), one or two loads and a store each. Up to B = 128 it is about a tenth above the floor.

decode_native.cu has the versions with their times.
"""

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl

from baselines.decode_native.operator import Inputs, Outputs
from baselines.workloads.integers import cdiv
from harness.contract import Point, variant
from harness.launch import fixed_launch

ENTRIES_PER_PROGRAM = 128


@triton.jit
def context_len(seq_len, row, j, compress_ratio):
    """Context length at column j of a row of ``row`` tokens, 0 past the row."""
    length = tl.maximum(seq_len - row + 1 + j, 0)
    return tl.where(j < row, length, 0) // compress_ratio


@triton.jit(do_not_specialize=["entries", "width", "compress_ratio", "front"])
def _context_lens(seq_lens, decode_lens, out, entries, width, compress_ratio, front, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < entries
    b, j = i // width, i % width
    row = tl.load(decode_lens + b, mask=inside, other=0) * front + width * (1 - front)
    tl.store(out + i, context_len(tl.load(seq_lens + b, mask=inside, other=0), row, j, compress_ratio), mask=inside)


@variant("decode_native")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch, clamp and compression included, straight into the flat buffer."""
    width, compress_ratio, front = point.max_decode_len, point.compress_ratio, int(point.row_alignment == "front")
    entries = len(x.seq_lens) * width
    grid = (cdiv(entries, ENTRIES_PER_PROGRAM),)
    return fixed_launch(
        _context_lens,
        grid,
        x.seq_lens,
        x.decode_lens,
        out.buffer,
        entries,
        width,
        compress_ratio,
        front,
        BLOCK=ENTRIES_PER_PROGRAM,
    )
