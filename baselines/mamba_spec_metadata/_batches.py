"""Batches for mamba_spec_metadata: a step of requests, the table of their states, and anchors that earlier owners
left behind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from baselines.workloads import axes
from baselines.workloads import mamba_steps as mamba
from harness.contract import Axis, Point

PADDING = replace(
    axes.PADDING,
    parse=axes.probability,
    doc="share of the batch that is padding requests (rounded up; one real request stays, unless it is 1: an idle data-parallel rank)",
)
CACHE_MODE = Axis(
    "cache_mode",
    axes.choice("all", "align", "none"),
    "all",
    "which states are kept: all (one per block), align (the running one, at block boundaries), none (1 + k slots)",
)
AXES = (
    *(PADDING if axis.name == "padding" else axis for axis in mamba.DECODE_STEP),
    mamba.CHURN,
    CACHE_MODE,
    mamba.MAX_NUM_SEQS,
    axes.TABLE_PADDING,
)


@dataclass(frozen=True)
class Inputs:
    seq_lens: Tensor  # [B] int32, this step's tokens included; 0 = padding request
    query_start_loc: Tensor  # [B + 1] int32
    num_accepted_tokens: Tensor  # [B] int32, of the step before: accepted drafts + 1
    request_slots: Tensor  # [B] int32, stable while a request lives; 0 = padding request
    fresh: Tensor  # [B] bool, new or resumed: the anchor in its slot is somebody else's
    anchors: Tensor  # [max_num_seqs + 1] int32 by request slot, -1 = unknown
    block_table: Tensor  # [B, W] int32, or [B, 1 + k] in mode none; stride(0) >= its width
    num_decodes: int  # requests before padding


def make_inputs(point: Point, seed: int) -> Inputs:
    step, rng = mamba.make_step(point, seed), np.random.default_rng([seed, 4])
    table = mamba.make_state_table(point, step, seed)
    if point.cache_mode == "none":
        table = table[:, : 1 + point.num_speculative_blocks].clone()
    live = (step.seq_lens > 0).numpy()
    slots = np.where(live, 1 + rng.permutation(point.max_num_seqs)[: point.batch_size], 0)
    # Slots of nobody, and of fresh rows, hold a column of the table too: an owner before left it.
    anchors = rng.integers(-1, table.shape[1] - point.num_speculative_blocks, point.max_num_seqs + 1)
    known = step.anchors.numpy() >= 0
    anchors[slots[known]] = step.anchors.numpy()[known]
    anchors[0] = -1
    return Inputs(
        seq_lens=step.seq_lens,
        query_start_loc=step.query_start_loc,
        num_accepted_tokens=step.num_accepted,
        request_slots=mamba.int32(slots),
        fresh=torch.from_numpy(live & ~known),
        anchors=mamba.int32(anchors),
        block_table=table,
        num_decodes=point.batch_size - axes.num_padding_requests(point),
    )


def first_columns(point: Point, x: Inputs) -> tuple[Tensor, Tensor]:
    """Mode all: the columns of the table where input and output slots of each real request begin, int32
    [num_decodes] both.
    """
    seq_lens, computed = (
        x.seq_lens[: x.num_decodes],
        x.seq_lens[: x.num_decodes] - torch.diff(x.query_start_loc)[: x.num_decodes],
    )
    anchors = x.anchors[x.request_slots[: x.num_decodes].long()].masked_fill(x.fresh[: x.num_decodes], -1)
    last = lambda tokens: (tokens - 1).clamp(min=0) // point.mamba_block_size  # noqa: E731
    return torch.where(anchors >= 0, anchors, last(computed)), last(seq_lens)
