"""Historic defects of mla_tile_schedule that are about what a row holds: nothing, or fields in another order."""

from __future__ import annotations

import torch

from baselines._mla_tile_schedule_forms import tile_schedule
from harness.contract import variant


def _scheduled(point, x, out, new: bool, keep):
    """The schedule as torch operators; ``keep(rows, held)`` says what becomes of the rows and of what the buffer held."""
    device, shortest = x.seq_lens.device, int(point.layout == "new")
    index = torch.arange(point.num_sm_parts, device=device)
    drift = torch.arange(point.overhead * (point.num_sm_parts - 1) + 1, device=device)
    held, splits = out.tile_scheduler_metadata[: point.num_sm_parts], out.num_splits[: point.batch_size + 1]

    def launch():
        rows, counts = tile_schedule(x.seq_lens, index, drift, point.overhead, new, shortest)
        held.copy_(keep(rows, held))
        splits.copy_(counts)

    return launch


@variant("mla_tile_schedule", defect="rows of parts without work are left as they were (vLLM's FlashMLA #3, #7)", waives="no_alloc")
def idle_parts_unwritten(point, x, out):
    """Their begin must be B, or a part runs what an earlier step left there."""
    working = lambda rows, held: torch.where(rows[:, :1] < point.batch_size, rows, held)  # noqa: E731
    return _scheduled(point, x, out, point.layout == "new", working)


def _one_part_new_layout(point) -> str | None:
    return None if point.num_sm_parts == 1 and point.layout == "new" else "one part and the new layout only"


@variant(
    "mla_tile_schedule", defect="the only row of the batch-invariant path has the old field order (suspected in vLLM)",
    skip=_one_part_new_layout, waives="no_alloc",
)  # fmt: skip
def old_field_order(point, x, out):
    return _scheduled(point, x, out, False, lambda rows, held: rows)
