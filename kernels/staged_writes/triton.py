"""staged_writes in Triton: one launch for all groups.

Most writes of a step are one block. The engine's kernel has a program of 1,024 lanes for each; here writes share a
program, several lanes each. Where a prompt brings long ones, programs share rows in strips, as far as they do not fill
a GPU anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.staged_writes.operator import Inputs, Outputs, longest_write
from spec_decode_bench.baselines.workloads.integers import cdiv, strips_of_rows, tile
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

#: Ids that a program writes at a time, and programs that share long rows at most: four per SM of a large GPU.
IDS, PROGRAMS = 256, 528


class Sizes(NamedTuple):
    num_writes: int


@triton.jit
def staged_writes_kernel(n, x, out, WRITES: tl.constexpr, LANES: tl.constexpr):
    strip, strips = tl.program_id(1), tl.num_programs(1)
    w = tl.program_id(0) * WRITES + tl.arange(0, WRITES)
    inside = w < n.num_writes
    end = tl.load(x.cu_lens + w, mask=inside, other=0)
    first = tl.load(x.cu_lens + w - 1, mask=inside & (w > 0), other=0)
    group = tl.load(x.group_ids + w, mask=inside, other=0)
    slot = tl.load(x.indices + w, mask=inside, other=0).to(tl.int64)
    column = tl.load(x.write_starts + w, mask=inside, other=0)
    row = tl.load(x.starts + group) + slot * tl.load(x.widths + group) + column
    lens = end - first
    for i in range(strip * LANES, tl.max(lens, 0), strips * LANES):
        j = i + tl.arange(0, LANES)[None, :]
        there = j < lens[:, None]
        ids = tl.load(x.contents + first[:, None] + j, mask=there, other=0)
        tl.store(out.tables + row[:, None] + j, ids, mask=there)


@variant("staged_writes")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch for all groups: writes of few blocks share a program, programs share writes of many."""
    longest, writes = longest_write(point), len(x.cu_lens)
    lanes = tile(min(longest, 64), (4, 16, 64))
    rows = cdiv(writes, IDS // lanes)
    grid, tiling = (rows, strips_of_rows(longest, lanes, rows, PROGRAMS)), {"WRITES": IDS // lanes, "LANES": lanes}
    return fixed_launch(staged_writes_kernel, grid, Sizes(writes), bundle(x), bundle(out), **tiling)
