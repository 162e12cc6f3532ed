"""The axes and batches of mamba_state_copy: steps of which a chosen share crosses a block boundary, state tables and
pools of states.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from baselines.workloads import axes
from baselines.workloads import mamba_steps as mamba
from baselines.workloads.axes import num_padding_requests
from baselines.workloads.decode_batch import NULL_BLOCK_ID, make_batch
from harness.contract import HOST, Axis, Point

#: Taps of the causal convolution; its state holds one column less, and k more for the drafts.
CONV_WIDTH = 4


def _state_bytes(value):
    if axes.whole(4)(value) % 4:
        raise ValueError("must be a multiple of 4")
    return value


COPY_AXES = (
    Axis("phase", axes.choice("before_forward", "after_sampling"), "before_forward", "which of a step's two copies"),
    Axis(
        "crossing",
        axes.probability,
        0.25,
        "share of the real requests that copy; q / mamba_block_size in the long run",
        axes.plain,
    ),
    Axis("num_layers", axes.whole(1), 8, "Mamba layers (40 in Nemotron-3 Super)"),
    Axis("ssm_state_bytes", _state_bytes, 16384, "SSM state of a slot and layer (2 or 4 MiB in Nemotron-3 Super)"),
    Axis("conv_dim", axes.whole(1), 512, "channels of the convolution, 2 bytes each (10,240 in Nemotron-3 Super)"),
    Axis(
        "conv_layout", axes.choice("SD", "DS"), "SD", "conv state of a slot: SD (time, channels) or DS (channels, time)"
    ),
)


#: Inputs whose contents an engine's host holds too, at ``<name>_cpu``.
KNOWN_TO_HOST = ("seq_lens", "query_start_loc", "state_columns", "num_draft_tokens", "block_table")


@dataclass(frozen=True)
class Inputs:
    """What the sampler says, num_accepted_tokens, is on the device alone. All else follows from it and from what the
    scheduler decided, so a host that has waited for it knows the rest in both phases: the block ids and drafts it
    handed out, the column it chose, and, with the rejected drafts taken off, the lengths.

    num_accepted_tokens and state_columns must not be one array with the outputs of the same name: all blocks of a
    kernel read them while one of them writes what comes next, and where the columns from and to are the same already,
    nothing is copied.
    """

    seq_lens: Tensor  # [B] int32, this step's tokens included; 0 = padding request
    query_start_loc: Tensor  # [B + 1] int32
    num_accepted_tokens: Tensor  # [B] int32: of the step before (before_forward) or of this one (after_sampling)
    state_columns: Tensor  # [B] int32, column of the running state; -1 = unknown
    num_draft_tokens: Tensor  # [B] int32, of this step
    block_table: Tensor  # [B, W] int32, slots; NULL where a request holds none
    conv_states: Tensor  # [num_layers, slots, conv columns, conv_dim] int16, the last two exchanged in layout DS
    ssm_states: Tensor  # [num_layers, slots, ssm_state_bytes / 4] int32
    seq_lens_cpu: Tensor = field(metadata=HOST)
    query_start_loc_cpu: Tensor = field(metadata=HOST)
    state_columns_cpu: Tensor = field(metadata=HOST)
    num_draft_tokens_cpu: Tensor = field(metadata=HOST)
    block_table_cpu: Tensor = field(metadata=HOST)

    def tell_host(self) -> None:
        """The host's copies follow an edit of the tensors of KNOWN_TO_HOST."""
        for name in KNOWN_TO_HOST:
            getattr(self, f"{name}_cpu").copy_(getattr(self, name))


def with_host_copies(**tensors: Tensor) -> Inputs:
    """Inputs of all tensors but the host's copies, which are made here."""
    return Inputs(**tensors, **{f"{name}_cpu": tensors[name].to("cpu", copy=True) for name in KNOWN_TO_HOST})


@dataclass(frozen=True)
class Crossings:
    """CPU tensors, int32. Padding requests stand last: length 0, accepted 1, column -1, no drafts."""

    seq_lens: Tensor  # [B]
    query_start_loc: Tensor  # [B + 1]
    num_accepted: Tensor  # [B]
    state_columns: Tensor  # [B]
    num_drafts: Tensor  # [B]


def conv_columns(point: Point) -> int:
    """C: tokens that the state of a convolution covers."""
    return CONV_WIDTH - 1 + point.num_speculative_blocks


def slots_per_request(point: Point) -> int:
    """Columns between the running state before a step and the last scratch slot after it."""
    return 2 * point.num_speculative_blocks + 2


def num_slots(point: Point) -> int:
    """Those of all requests, and the null slot."""
    return 1 + point.batch_size * slots_per_request(point)


def make_crossings(point: Point, seed: int) -> Crossings:
    """``crossing`` of the real requests get a length at which the phase copies. The others get one in the middle of a
    block, if a block is long enough; where it is not, they keep what was drawn.
    """
    batch, rng = make_batch(point, seed), np.random.default_rng([seed, 5])
    k, size, count = point.num_speculative_blocks, point.mamba_block_size, point.batch_size
    before = point.phase == "before_forward"
    rows = batch.decode_lens.numpy().astype(np.int64)
    drawn = batch.seq_lens.numpy().astype(np.int64) - rows
    accepted = mamba.num_accepted(rng, point.acceptance, count, k)
    block = np.maximum(np.minimum(drawn // size, (point.max_model_len - rows) // size), 1)
    if before:
        # The boundary lies past what the step before scheduled and inside of what this one does.
        scheduled = np.minimum(1 + k, rows - 1 + accepted)
        at_boundary = block * size - rows + 1 + (rng.random(count) * (rows + accepted - scheduled)).astype(np.int64)
    else:
        accepted = np.minimum(accepted, np.maximum(rows, 1))
        at_boundary = block * size - 1 - (rng.random(count) * accepted).astype(np.int64)
    inside = (block - 1) * size + (size + rng.integers(-1, 1, count)) // 2
    crosses = np.zeros(count, dtype=bool)
    real = count - num_padding_requests(point)
    crosses[rng.permutation(real)[: round(point.crossing * real)]] = True
    computed = np.where(crosses, at_boundary, inside if size >= 4 * (1 + k) else drawn)
    computed = np.clip(computed, 0, point.max_model_len - rows) * (rows > 0)
    if before:
        accepted = np.minimum(accepted, np.maximum(computed, 1))
        scheduled = np.maximum(np.where(crosses, scheduled, 1 + k), accepted)
        scheduled = np.minimum(scheduled, point.max_model_len - computed + accepted)
        columns = np.where(computed > 0, (computed - accepted + scheduled - 1) // size, -1)
        accepted = np.where(computed > 0, accepted, 1)
    else:
        columns = np.where(rows > 0, (computed + rows - 1) // size, -1)
        accepted = np.where(rows > 0, accepted, 1)
    return Crossings(
        seq_lens=mamba.int32(computed + rows),
        query_start_loc=batch.query_start_loc,
        num_accepted=mamba.int32(accepted),
        state_columns=mamba.int32(columns),
        num_drafts=mamba.int32(np.maximum(rows - 1, 0)),
    )


def make_table(point: Point, step: Crossings, seed: int) -> Tensor:
    """int32 [B, W]: distinct slots in the columns a request holds, NULL_BLOCK_ID elsewhere, as the manager frees the
    rest.
    """
    rng, width = np.random.default_rng([seed, 6]), mamba.table_columns(point)
    held = slots_per_request(point)
    table = np.full((point.batch_size, width), NULL_BLOCK_ID, dtype=np.int32)
    ids = (1 + rng.permutation(num_slots(point) - 1)).reshape(point.batch_size, held)
    rows = torch.diff(step.query_start_loc).tolist()
    for b, (seq_len, column) in enumerate(zip(step.seq_lens.tolist(), step.state_columns.tolist(), strict=True)):
        if seq_len:
            first = (seq_len - rows[b]) // point.mamba_block_size
            first = max(
                min(first, column if column >= 0 else first, (seq_len - rows[b] - 1) // point.mamba_block_size), 0
            )
            shown = min(held, width - first)
            table[b, first : first + shown] = ids[b, :shown]
    return torch.from_numpy(table)


def make_pools(point: Point, seed: int) -> tuple[Tensor, Tensor]:
    """(conv states int16, ssm states int32) of all layers and slots, random: no two states are alike."""
    rng, layers, slots = np.random.default_rng([seed, 7]), point.num_layers, num_slots(point)
    shape = conv_shape(point)
    conv = rng.integers(-(2**15), 2**15, (layers, slots, *shape), dtype=np.int16)
    ssm = rng.integers(-(2**31), 2**31, (layers, slots, point.ssm_state_bytes // 4), dtype=np.int32)
    return torch.from_numpy(conv), torch.from_numpy(ssm)


def conv_shape(point: Point) -> tuple[int, int]:
    """Of one slot and layer: (conv columns, conv_dim), exchanged in layout DS."""
    shape = (conv_columns(point), point.conv_dim)
    return shape if point.conv_layout == "SD" else shape[::-1]


def time_first(point: Point, conv_states: Tensor) -> Tensor:
    """[layers, slots, conv columns, conv_dim], whatever the layout."""
    return conv_states if point.conv_layout == "SD" else conv_states.transpose(-1, -2)


def make_inputs(point: Point, seed: int) -> Inputs:
    step = make_crossings(point, seed)
    conv_states, ssm_states = make_pools(point, seed)
    return with_host_copies(
        seq_lens=step.seq_lens,
        query_start_loc=step.query_start_loc,
        num_accepted_tokens=step.num_accepted,
        state_columns=step.state_columns,
        num_draft_tokens=step.num_drafts,
        block_table=make_table(point, step, seed),
        conv_states=conv_states,
        ssm_states=ssm_states,
    )
