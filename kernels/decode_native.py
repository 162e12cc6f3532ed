"""decode_native, fused: one launch where the operator chain takes four to six. B * L threads, a load or two and a store each."""

from __future__ import annotations

from pathlib import Path

import triton
import triton.language as tl

from harness.contract import GPU, variant
from harness.cuda import launcher

SOURCE = Path(__file__).parent / "cuda" / "decode_native.cu"
THREADS = 128


@triton.jit(do_not_specialize=["entries", "width", "compress_ratio", "front"])
def _context_lens(seq_lens, decode_lens, out, entries, width, compress_ratio, front, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < entries
    b, j = i // width, i % width
    row = tl.load(decode_lens + b, mask=inside, other=0) * front + width * (1 - front)
    length = tl.maximum(tl.load(seq_lens + b, mask=inside, other=0) - row + 1 + j, 0)
    tl.store(out + i, tl.where(j < row, length, 0) // compress_ratio, mask=inside)


@variant("decode_native")
def triton_fused(point, x, out):
    """One launch, clamp and compression included, straight into the flat buffer."""
    entries = point.batch_size * point.max_decode_len
    grid, front = (-(-entries // THREADS),), int(point.row_alignment == "front")

    def launch():
        _context_lens[grid](
            x.seq_lens, x.decode_lens, out.buffer, entries, point.max_decode_len, point.compress_ratio, front, BLOCK=THREADS
        )

    return launch


@variant("decode_native", requires=GPU, sources=SOURCE)
def cuda_fused(point, x, out):
    """The same in CUDA C++."""
    entries = point.batch_size * point.max_decode_len
    return launcher(
        SOURCE, "context_lens", -(-entries // THREADS), THREADS,
        x.seq_lens, x.decode_lens, out.buffer,
        point.batch_size, point.max_decode_len, point.compress_ratio, int(point.row_alignment == "front"),
    )  # fmt: skip
