"""Historic bugs of mla_tile_schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from spec_decode_bench.baselines.mla_tile_schedule.chains import copied, fresh_copy, fresh_tiles
from spec_decode_bench.baselines.mla_tile_schedule.operator import Inputs, Outputs, unbounded_parts
from spec_decode_bench.harness.contract import Point, variant


@variant("mla_tile_schedule", defect="a captured graph gets fresh tensors (vLLM #32810, fixed in #35175)")
def fresh_tensors(point: Point, x: Inputs, out: Outputs) -> Callable[[], Mapping[str, torch.Tensor]]:
    return fresh_tiles(point, x)


def _derived_parts_only(point: Point) -> str | None:
    return None if point.num_sm_parts == max(unbounded_parts(point), 1) else "P is given here, not derived"


@variant(
    "mla_tile_schedule",
    defect="P = num_sms // CTAs without a lower bound: P = 0, nothing is scheduled (FP8 extension)",
    skip=_derived_parts_only,
)
def parts_without_lower_bound(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """On a GPU the division by P = 0 goes unnoticed, the loop over parts never runs, and only num_splits[0] is set."""
    if unbounded_parts(point):
        return fresh_copy(point, x, out)

    def launch():
        out.num_splits[0] = 0

    return launch


def _new_layout(point: Point) -> str | None:
    return "in the old layout a zero length has zero blocks" if point.layout == "old" else None


@variant(
    "mla_tile_schedule",
    defect="a zero length counts as zero blocks: the last block of a padding request is -1 (vLLM #33664, #35969)",
    skip=_new_layout,
)
def zero_length_without_block(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return copied(out.views(point), fresh_tiles(point, x, shortest=0))


@variant("mla_tile_schedule", defect="rows of parts without work are not written (vLLM's FlashMLA #3, #7)")
def idle_parts_unwritten(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """They must start at request B, or a part runs the work of an earlier step."""
    persistent, compute = out.views(point), fresh_tiles(point, x)
    held = persistent["tile_scheduler_metadata"]

    def working_parts():
        fresh = compute()
        rows = fresh["tile_scheduler_metadata"]
        return fresh | {"tile_scheduler_metadata": torch.where(rows[:, :1] < point.batch_size, rows, held)}

    return copied(persistent, working_parts)


def _one_part_new_layout(point: Point) -> str | None:
    return None if point.num_sm_parts == 1 and point.layout == "new" else "one part and the new layout only"


@variant(
    "mla_tile_schedule",
    defect="the only row of the batch-invariant path has the old field order (suspected in vLLM)",
    skip=_one_part_new_layout,
)
def old_field_order(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return copied(out.views(point), fresh_tiles(point, x, new=False))
