"""compute_slot_mappings as an engine launches it: a program per row, and one for the whole tail."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from spec_decode_bench.baselines.compute_slot_mappings.operator import Inputs, Outputs, rank_of
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.kernels.compute_slot_mappings.triton import slots_of

CHUNK = 1024


@triton.jit(do_not_specialize=["rows", "capacity"])
def compute_slot_mappings_rows_kernel(
    idx_mapping,
    query_start_loc,
    positions,
    tables,
    starts,
    widths,
    block_sizes,
    enabled,
    sharded,
    slots,
    rows,
    capacity,
    RANKS: tl.constexpr,
    RANK: tl.constexpr,
    INTERLEAVE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    g, b = tl.program_id(0), tl.program_id(1)
    target = slots + g.to(tl.int64) * capacity
    start = tl.load(query_start_loc + b)
    lanes = tl.arange(0, CHUNK)
    if b == rows:
        for t in range(start, capacity, CHUNK):
            tl.store(target + t + lanes, tl.full((CHUNK,), -1, tl.int64), mask=t + lanes < capacity)
    else:
        end = tl.load(query_start_loc + b + 1)
        s = tl.load(idx_mapping + b)
        known = tl.where(tl.load(enabled + g) != 0, s, -1)
        table = tables + tl.load(starts + g) + s * tl.load(widths + g)
        block_size, is_sharded = tl.load(block_sizes + g), tl.load(sharded + g) != 0
        for t in range(start, end, CHUNK):
            inside = t + lanes < end
            position = tl.load(positions + t + lanes, mask=inside, other=0).to(tl.int32)
            slot = slots_of(
                position, tl.where(inside, known, -1) >= 0, table, block_size, is_sharded, RANKS, RANK, INTERLEAVE
            )
            tl.store(target + t + lanes, slot, mask=inside)


@variant("compute_slot_mappings")
def unfused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The engine's way: one launch, grid (groups, rows + 1); the last program of a group fills the tail alone."""
    grid = (point.num_groups, len(x.idx_mapping) + 1)

    def launch() -> None:
        compute_slot_mappings_rows_kernel[grid](
            x.idx_mapping,
            x.query_start_loc,
            x.positions,
            x.tables,
            x.starts,
            x.widths,
            x.block_sizes,
            x.enabled.view(torch.uint8),
            x.sharded.view(torch.uint8),
            out.slot_mappings,
            len(x.idx_mapping),
            out.slot_mappings.shape[1],
            RANKS=point.cp_size,
            RANK=rank_of(point),
            INTERLEAVE=point.cp_interleave,
            CHUNK=CHUNK,
        )

    return launch
