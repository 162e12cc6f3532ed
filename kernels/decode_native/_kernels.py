"""The kernels of decode_native with their launches, and the formula of an entry."""

from __future__ import annotations

from pathlib import Path

import triton
import triton.language as tl
from torch import Tensor

from baselines.workloads.integers import cdiv
from harness.cuda import launcher

SOURCE = Path(__file__).with_name("decode_native.cu")
THREADS = 128


@triton.jit
def context_len(seq_len, row, j, compress_ratio):
    """Context length of column j of a row with ``row`` tokens, 0 past it."""
    length = tl.maximum(seq_len - row + 1 + j, 0)
    return tl.where(j < row, length, 0) // compress_ratio


@triton.jit(do_not_specialize=["entries", "width", "compress_ratio", "front"])
def _context_lens(seq_lens, decode_lens, out, entries, width, compress_ratio, front, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < entries
    b, j = i // width, i % width
    row = tl.load(decode_lens + b, mask=inside, other=0) * front + width * (1 - front)
    tl.store(out + i, context_len(tl.load(seq_lens + b, mask=inside, other=0), row, j, compress_ratio), mask=inside)


def triton_context_lens(
    seq_lens: Tensor, decode_lens: Tensor, buffer: Tensor, width: int, compress_ratio: int, front: bool
):
    """A closure that writes (B, width) lengths to the start of ``buffer``, all int32."""
    entries = len(seq_lens) * width
    grid = (cdiv(entries, THREADS),)

    def launch():
        _context_lens[grid](seq_lens, decode_lens, buffer, entries, width, compress_ratio, int(front), BLOCK=THREADS)

    return launch


def cuda_context_lens(
    seq_lens: Tensor, decode_lens: Tensor, buffer: Tensor, width: int, compress_ratio: int, front: bool
):
    """The same in CUDA C++."""
    batch_size = len(seq_lens)
    return launcher(
        SOURCE,
        "context_lens",
        cdiv(batch_size * width, THREADS),
        THREADS,
        seq_lens,
        decode_lens,
        buffer,
        batch_size,
        width,
        compress_ratio,
        int(front),
    )
