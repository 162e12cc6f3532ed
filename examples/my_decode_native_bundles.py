"""my_decode_native.py with bundles: the kernel takes all inputs as x, all outputs as out and its sizes as n.

A bundle is a NamedTuple: a kernel reads x.seq_lens, as the scalar reference does, and an array more or less changes no
list of parameters. fixed_launch compiles at set-up and packs the arguments, so that a call is one call of the driver;
the host time of the plain form contains Triton's launcher.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench import variant
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.launch import fixed_launch


class Sizes(NamedTuple):
    entries: int
    width: int
    ratio: int


@triton.jit
def fill(n, x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seq_len = tl.load(x.seq_lens + i // n.width, mask=i < n.entries)
    tl.store(out.buffer + i, tl.maximum(seq_len - n.width + 1 + i % n.width, 0) // n.ratio, mask=i < n.entries)


@variant("decode_native", skip=lambda p: "plain rows only" if p.row_alignment == "front" or p.cp_size > 1 else None)
def mine_bundled(point, x, out):
    n = Sizes(point.batch_size * point.max_decode_len, point.max_decode_len, point.compress_ratio)
    return fixed_launch(fill, (triton.cdiv(n.entries, 128),), n, bundle(x), bundle(out), BLOCK=128)
