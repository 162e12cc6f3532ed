"""mamba_state_copy: states that follow their request over a block boundary (cache mode align). Decided and done per step.

With q tokens in this step, nc = seq_lens - q computed ones, a = num_accepted_tokens, BS the Mamba block size:

    before_forward  the running state moves to the block that holds the step's last token.
                    from = state_columns, (nc - 1) // BS where unknown;  to = ceil(seq_lens / BS) - 1;  shift = a - 1
                    copied where from is known and from != to; then num_accepted becomes 1, and state_columns is to
    after_sampling  the state at a block's end stays behind for the prefix cache.
                    running = seq_lens - drafts;  aligned = (running + a - 1) // BS * BS;  shift = aligned - running
                    from = state_columns;  to = aligned / BS - 1;  copied where aligned >= running; num_accepted becomes 1
                    where both are the same slot

    conv[layer, table[to], 0 : C - shift] = conv[layer, table[from], shift : C]     along time; the rest keeps what it held
    ssm[layer, table[to]]                 = ssm[layer, table[from + shift]]         whole

A state is never copied onto itself. Sources are the input pools, destinations the output pools; an engine passes one
pool as both, so a convolution may be shifted inside its slot (memmove). Layouts: SD (time, channels) and DS (channels,
time). num_accepted_tokens and state_columns are read by all copies of a request: neither may be one array with its
output.

vLLM 0.22 decides on the host and builds lists of pointers (request x layer x state); later releases have kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from baselines.mamba_state_copy._batches import (
    COPY_AXES,
    Inputs,
    conv_columns,
    conv_shape,
    make_inputs,
    num_slots,
    time_first,
)
from baselines.mamba_state_copy._chains import in_place, masked, masked_copies, pointer_lists_copies, shifted_by
from baselines.mamba_state_copy._points import HARD_POINTS, SEQUENCES
from baselines.workloads import axes
from baselines.workloads import mamba_steps as mamba
from baselines.workloads.integers import cdiv
from baselines.workloads.torch_compile import compiled
from harness.contract import COMPILER, Expected, Operator, Point, Rule, variant

#: The harness holds some ten copies of the pools.
MOST_POOL_BYTES = 4 << 30


@dataclass(frozen=True)
class Outputs:
    conv_states: Tensor  # as in Inputs; an engine passes one pool as both
    ssm_states: Tensor  # the same
    num_accepted_tokens: Tensor  # [max_num_seqs] int32
    state_columns: Tensor | None = None  # [max_num_seqs] int32; before_forward only


def make_outputs(point: Point) -> Outputs:
    conv, ssm = make_pools_empty(point)
    counts = [torch.empty(point.max_num_seqs, dtype=torch.int32) for _ in range(1 + (point.phase == "before_forward"))]
    return Outputs(conv, ssm, *counts)


def make_pools_empty(point: Point) -> tuple[Tensor, Tensor]:
    """(conv states int16, ssm states int32) of all layers and slots."""
    shape = (point.num_layers, num_slots(point))
    return torch.empty(*shape, *conv_shape(point), dtype=torch.int16), torch.empty(
        *shape, point.ssm_state_bytes // 4, dtype=torch.int32
    )


def views(point: Point, out: Outputs) -> Mapping[str, Tensor]:
    counts = {"num_accepted_tokens": out.num_accepted_tokens[: point.batch_size]}
    if point.phase == "before_forward":
        counts["state_columns"] = out.state_columns[: point.batch_size]
    return {"conv_states": out.conv_states, "ssm_states": out.ssm_states} | counts


def _crossing(point: Point, x: Inputs, b: int) -> tuple[int, int, int] | None:
    """(column from, shift, column to) of request b; None where it stays."""
    size, seq_len, accepted = point.mamba_block_size, int(x.seq_lens[b]), int(x.num_accepted_tokens[b])
    if seq_len == 0:
        return None
    if point.phase == "before_forward":
        computed = seq_len - int(x.query_start_loc[b + 1] - x.query_start_loc[b])
        source, target = int(x.state_columns[b]), cdiv(seq_len, size) - 1
        if source < 0:
            source = (computed - 1) // size
        return (source, accepted - 1, target) if source >= 0 and source != target else None
    running = seq_len - int(x.num_draft_tokens[b])
    aligned = (running + accepted - 1) // size * size
    return (int(x.state_columns[b]), aligned - running, aligned // size - 1) if aligned >= running else None


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    before, capacity, columns = point.phase == "before_forward", point.max_num_seqs, conv_columns(point)
    pools = {"conv_states": torch.zeros_like(x.conv_states), "ssm_states": torch.zeros_like(x.ssm_states)}
    kept = {name: torch.ones(pool.shape, dtype=torch.bool) for name, pool in pools.items()}
    accepted, state_columns = [0] * capacity, [0] * capacity
    for b in range(len(x.seq_lens)):
        accepted[b] = int(x.num_accepted_tokens[b])
        state_columns[b] = cdiv(int(x.seq_lens[b]), point.mamba_block_size) - 1
        crossing = _crossing(point, x, b)
        if crossing is None:
            continue
        source, shift, target = crossing
        slots = x.block_table[b].tolist()
        assert 0 not in (slots[source], slots[source + shift], slots[target]), (
            "a request copies states it does not hold"
        )
        if before or slots[source] == slots[target]:
            accepted[b] = 1
        for layer in range(point.num_layers):
            if slots[source] != slots[target] or shift > 0:
                for tensors, value in (
                    (pools, time_first(point, x.conv_states)[layer, slots[source], shift:]),
                    (kept, False),
                ):
                    time_first(point, tensors["conv_states"])[layer, slots[target], : columns - shift] = value
            if slots[source + shift] != slots[target]:
                pools["ssm_states"][layer, slots[target]] = x.ssm_states[layer, slots[source + shift]]
                kept["ssm_states"][layer, slots[target]] = False
    spare = torch.arange(capacity) >= point.batch_size
    expected = {name: Expected(pool, untouched=kept[name]) for name, pool in pools.items()}
    expected["num_accepted_tokens"] = Expected(mamba.int32(accepted), untouched=spare)
    if before:
        expected["state_columns"] = Expected(mamba.int32(state_columns), untouched=spare)
    return expected


def bytes_moved(point: Point, x: Inputs) -> int:
    """States that move, read and written once; lengths, starts, counts and columns of all; three slots of who
    copies.
    """
    moved = 4 * (1 + len(x.seq_lens) * (7 if point.phase == "before_forward" else 6))
    for b in range(len(x.seq_lens)):
        crossing = _crossing(point, x, b)
        if crossing:
            source, shift, target = crossing
            conv = 2 * point.conv_dim * (conv_columns(point) - shift) if shift or source != target else 0
            ssm = point.ssm_state_bytes if source + shift != target else 0
            moved += 12 + 2 * point.num_layers * (conv + ssm)
    return moved


# --- PyTorch-op variants ----------------------------------------------------------------------------------------------


#: What a variant waives that decides on the host.
_ON_HOST = ("no_alloc", "no_sync", "graph_safe")


@variant("mamba_state_copy", waives=_ON_HOST)
def pointer_lists(point, x, out):
    """Lists (request x layer x state) built in Python from accepted counts, the one thing the host waits for; then a
    copy each.
    """
    return pointer_lists_copies(point, x, out)


@variant("mamba_state_copy", waives="no_alloc")
def masked_chain(point, x, out):
    """No host decision, so it can be captured: the states of all requests are gathered, and put back where nothing
    moves.
    """
    return masked_copies(point, x, out)


_GENERAL = {"batch_size": 24, "num_layers": 2, "ssm_state_bytes": 40, "conv_dim": 9, "crossing": 0.5}
_KINDS = [
    {"phase": phase, "conv_layout": layout} for phase in ("before_forward", "after_sampling") for layout in ("SD", "DS")
]
_EXAMPLES = (*(_GENERAL | kind for kind in _KINDS), _GENERAL | {"batch_size": 1})


@variant("mamba_state_copy", requires=COMPILER, waives="no_alloc")
def compiled_chain(point, x, out):
    """torch.compile (Inductor, dynamic shapes) of the masked chain."""
    return masked_copies(point, x, out, compiled(masked, masked_copies, operator, _EXAMPLES, out.ssm_states.device))


# --- historic defects -------------------------------------------------------------------------------------------------


def _sd_only(point: Point) -> str | None:
    return "layout SD only" if point.conv_layout == "DS" else None


@variant(
    "mamba_state_copy",
    defect="several blocks shift inside one slot, in any order (vLLM #50729)",
    skip=_sd_only,
    waives=_ON_HOST,
)
def overlapping_shift(point, x, out):
    """In place on a copy of the pools; a block per column, the last one first, as no order is promised."""

    def shift_columns(conv, source, target, shift):
        for column in reversed(range(conv_columns(point) - shift)):
            conv[:, target, column] = conv[:, source, column + shift]

    return in_place(point, x, out, shift_columns)


@variant(
    "mamba_state_copy",
    defect="the first copy sets num_accepted_tokens, its siblings read it (vLLM #50432)",
    waives=_ON_HOST,
)
def accepted_updated_in_place(point, x, out):
    """In place on a copy of the pools: the block of layer 0 is done before those of the other layers begin."""

    def shift_layers(conv, source, target, shift):
        for layer in range(point.num_layers):
            seen = shift if layer == 0 else 0
            conv[layer, target, : conv_columns(point) - seen] = conv[layer, source, seen:].clone()

    return in_place(point, x, out, shift_layers)


@variant(
    "mamba_state_copy",
    defect="layout DS is shifted as if its columns lay together (vLLM #45473)",
    skip=lambda p: "layout DS only" if p.conv_layout == "SD" else None,
    waives=_ON_HOST,
)
def shifted_as_contiguous(point, x, out):
    def shift_flat(conv, source, target, shift):
        begin = shift * point.conv_dim
        for layer in range(point.num_layers):
            flat = [conv[layer, slot].T.contiguous().view(-1) for slot in (target, source)]
            flat[0][: len(flat[1]) - begin] = flat[1][begin:].clone()
            conv[layer, target] = flat[0].view(point.conv_dim, -1).T

    return in_place(point, x, out, shift_flat)


@variant(
    "mamba_state_copy",
    defect="the first copy stores the next state_columns, its siblings read them (the kind of race in vLLM #50432)",
    waives=_ON_HOST,
)
def columns_updated_in_place(point, x, out):
    """One array for both: when the blocks of the other layers begin, a state lies where it has to go already."""
    return pointer_lists_copies(Point({**point, "num_layers": 1}) if point.phase == "before_forward" else point, x, out)


@variant(
    "mamba_state_copy",
    defect="a guard against backward copies, the cause named in vLLM #53505, drops those that are due",
    waives=_ON_HOST,
)
def backward_copy_dropped(point, x, out):
    """A state goes back where drafts beyond a block's end were rejected, or where that end is left to the prefix
    cache.
    """
    return in_place(point, x, out, shifted_by, backwards=False)


@variant(
    "mamba_state_copy",
    defect="the convolution is copied as if no draft had been rejected (vLLM #50272)",
    waives=_ON_HOST,
)
def shift_ignored(point, x, out):
    def unshifted(conv, source, target, shift):
        kept = conv_columns(point) - shift
        conv[:, target, :kept] = conv[:, source, :kept].clone()

    return in_place(point, x, out, unshifted)


@variant(
    "mamba_state_copy",
    defect="padding rows move what their stale columns say (the kind of xllm #1939)",
    waives=_ON_HOST,
)
def padding_copied(point, x, out):
    return in_place(point, x, out, shifted_by, padding_stays=False)


operator = Operator(
    name="mamba_state_copy",
    summary="recurrent states copied at block boundaries: convolution shifted by the accepted drafts, SSM state whole",
    axes=(*mamba.DECODE_STEP, mamba.MAX_NUM_SEQS, *COPY_AXES),
    make_inputs=make_inputs,
    make_outputs=make_outputs,
    views=views,
    reference=reference,
    bytes_moved=bytes_moved,
    baseline="pointer_lists",
    hard_points=HARD_POINTS,
    sequences=SEQUENCES,
    rules=(
        *mamba.RULES,
        mamba.SEQS_FIT,
        Rule(
            "the states of batch_size {batch_size} x num_layers {num_layers} must not exceed 4 GiB: lower them, ssm_state_bytes "
            "({ssm_state_bytes}) or conv_dim ({conv_dim})",
            lambda p: (
                p.num_layers * num_slots(p) * (p.ssm_state_bytes + 2 * p.conv_dim * conv_columns(p)) <= MOST_POOL_BYTES
            ),
        ),
    ),
    redundant=axes.same_batch_elsewhere,
)
