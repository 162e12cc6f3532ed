"""Historic defects of mamba_spec_metadata that are about the anchor: never stored, or guessed in another unit."""

from __future__ import annotations

import torch

from baselines._mamba_spec_metadata_chain import chain
from harness.contract import variant


def _mode_all(point) -> str | None:
    return "mode all only" if point.cache_mode != "all" else None


@variant("mamba_spec_metadata", defect="the anchor of the step is never stored (review of vLLM #43955)", skip=_mode_all, waives="no_alloc")
def anchor_never_stored(point, x, out):
    fill = chain(point, x, out)

    def launch():
        before = out.next_anchors.clone()
        fill()
        out.next_anchors.copy_(before)

    return launch


@variant(
    "mamba_spec_metadata", defect="an unknown anchor is counted in the scheduler's blocks, not in Mamba's (vLLM #53142, #55507)",
    skip=_mode_all, waives="no_alloc",
)  # fmt: skip
def anchor_in_scheduler_blocks(point, x, out):
    """The scheduler's blocks are twice as long here: the column is too low, but inside of the row."""
    size = 2 * point.mamba_block_size

    def anchor(x):
        rows = slice(x.num_decodes)
        known = x.anchors.index_select(0, x.request_slots[rows]).masked_fill(x.fresh[rows], -1)
        computed = x.seq_lens[rows] - torch.diff(x.query_start_loc)[rows]
        return torch.where(known >= 0, known, ((computed - 1) // size).clamp(min=0))

    return chain(point, x, out, anchor=anchor)
