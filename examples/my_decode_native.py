"""A variant of decode_native: python bench.py configs/mtp3.yaml --variants examples/my_decode_native.py"""

import triton
import triton.language as tl

from spec_decode_bench import variant


@triton.jit
def fill(seq_lens, lens, entries, width, ratio, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seq_len = tl.load(seq_lens + i // width, mask=i < entries)
    tl.store(lens + i, tl.maximum(seq_len - width + 1 + i % width, 0) // ratio, mask=i < entries)


@variant("decode_native", skip=lambda p: "plain rows only" if p.row_alignment == "front" or p.cp_size > 1 else None)
def mine(point, x, out):  # set-up, not timed: allocation, compilation, host constants
    entries = point.batch_size * point.max_decode_len
    grid = (triton.cdiv(entries, 128),)

    def launch():  # the only timed code
        fill[grid](x.seq_lens, out.buffer, entries, point.max_decode_len, point.compress_ratio, BLOCK=128)

    return launch
