"""mamba_state_copy: copies recurrent states that follow their request over a block boundary (cache mode align).

With q tokens in this step, nc = seq_lens - q computed tokens, a = num_accepted_tokens, BS the Mamba block size:

    before_forward  The running state moves to the block that holds the step's last token.
                    from = state_columns, or (nc - 1) // BS where unknown
                    to = ceil(seq_lens / BS) - 1;  shift = a - 1
                    copied where from is known and from != to; then num_accepted becomes 1. state_columns becomes to.
    after_sampling  The state at the end of a block is kept for the prefix cache.
                    running = seq_lens - drafts;  aligned = (running + a - 1) // BS * BS
                    from = state_columns;  to = aligned / BS - 1;  shift = aligned - running
                    copied where aligned >= running; num_accepted becomes 1 where from and to are the same slot

    conv[layer, table[to], 0 : C - shift] = conv[layer, table[from], shift : C]     along time; the rest is unchanged
    ssm[layer, table[to]]                 = ssm[layer, table[from + shift]]         whole

A state is never copied onto itself. Sources are the input pools and destinations the output pools; an engine passes one
pool as both, so a convolution may be shifted inside its slot (memmove). Layouts of a convolution's state: SD (time,
channels) and DS (channels, time).

That is vLLM's runner V1, in which counts and columns are by row. Runner V2 keeps them, and the tables of num_groups
cache groups, by request slot (``state: slots``), and knows how many tokens are computed. s = idx_mapping[b], -1 for
rows without a request, which leave everything as it is; c = num_computed_tokens[s]:

    before_forward  from = state_columns[s], -1 = none yet;  to = ceil((c + q) / BS) - 1;  shift = a - 1
    after_sampling  c counts the accepted tokens already:  running = c - a + 1
                    aligned = c // BS * BS;  num_accepted becomes 1 where from and to are the same column

Each group has an equal share of the layers, one after another. Other slots keep their contents.

All copies of a request read num_accepted_tokens and state_columns, so neither may share an array with its output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.mamba_state_copy.cases import EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes, request_slots
from spec_decode_bench.baselines.workloads import mamba_steps as mamba
from spec_decode_bench.baselines.workloads.decode_batch import (
    NULL_BLOCK_ID,
    UNUSED_BLOCK_ID,
    accepted_drafts,
    int32,
    make_batch,
)
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I16, I32, I64, Tensors, field

#: Taps of the causal convolution. Its state holds one column less, and k more for the drafts.
CONV_WIDTH = 4
#: Limit of the states of all requests and layers, bytes.
MOST_POOL_BYTES = 4 << 30


def whole_words(value: object) -> int:
    """Parser of positive multiples of 4."""
    if axes.whole(4)(value) % 4:
        raise ValueError("must be a multiple of 4")
    return value


def crossing_share(value: object) -> float:
    """Parser of numbers in [0, 1]. Of the smallest batches most examples let a request copy."""
    return axes.probability(value)


crossing_share.examples = (0.7, 0.0, 1.0)


def of_copies(*all_axes: Axis) -> Iterator[Axis]:
    """Axes on which nothing depends where no request copies a state."""
    idle = lambda p: round(p.crossing * axes.num_decodes(p)) == 0  # noqa: E731
    return (replace(axis, idle=lambda p, own=axis.idle: own(p) or idle(p)) for axis in all_axes)


COPY_AXES = (
    Axis("phase", axes.choice("before_forward", "after_sampling"), "before_forward", "which of a step's two copies"),
    Axis(
        "crossing",
        crossing_share,
        0.25,
        "share of the real requests that copy; q / mamba_block_size in the long run",
        axes.plain,
    ),
    *of_copies(
        Axis("num_layers", axes.whole(1), 8, "Mamba layers (40 in Nemotron-3 Super)"),
        Axis("ssm_state_bytes", whole_words, 16384, "SSM state of a slot and layer (2 or 4 MiB in Nemotron-3 Super)"),
        Axis("conv_dim", axes.whole(1), 512, "channels of the convolution, 2 bytes each (10,240 in Nemotron-3 Super)"),
        Axis(
            "conv_layout",
            axes.choice("SD", "DS"),
            "SD",
            "conv state of a slot: SD (time, channels) or DS (channels, time)",
        ),
    ),
    Axis(
        "state",
        axes.choice("rows", "slots"),
        "rows",
        "what counts, columns and tables are kept by: rows or request slots",
    ),
    Axis("num_groups", axes.whole(1), 1, "cache groups that share the layers, each with a table of its own", largest=8),
)
#: The axes of a decode step. Where nothing moves, blocks and drafts do not matter.
_MOVED = ("num_speculative_blocks", "mamba_block_size")
AXES = tuple(next(of_copies(axis)) if axis.name in _MOVED else axis for axis in mamba.DECODE_STEP)
RULES = (
    *mamba.RULES,
    axes.SEQS_FIT,
    Rule(
        "the states of batch_size {batch_size} x num_layers {num_layers} must not exceed 4 GiB: lower them, "
        "ssm_state_bytes ({ssm_state_bytes}) or conv_dim ({conv_dim})",
        lambda p: p.num_layers * num_slots(p) * state_bytes(p) <= MOST_POOL_BYTES,
    ),
    Rule(
        "num_layers ({num_layers}) must be a multiple of num_groups ({num_groups})",
        lambda p: p.num_layers % p.num_groups == 0,
    ),
    Rule("num_groups ({num_groups}) are kept by slot: state must be slots", lambda p: p.num_groups == 1 or by_slot(p)),
)

#: Inputs with a copy on the host, ``<name>_cpu``.
HOST_COPIES = ("seq_lens", "query_start_loc", "state_columns", "num_draft_tokens", "block_table")


def by_slot(point: Point) -> bool:
    return point.state == "slots"


def _before_forward(point: Point) -> bool:
    return point.phase == "before_forward"


# --- shapes -----------------------------------------------------------------------------------------------------------


def conv_columns(point: Point) -> int:
    """C: tokens that the state of a convolution covers."""
    return CONV_WIDTH - 1 + point.num_speculative_blocks


def conv_shape(point: Point) -> tuple[int, int]:
    """Convolution state of one slot and layer: (conv columns, conv_dim), swapped in layout DS."""
    shape = (conv_columns(point), point.conv_dim)
    return shape if point.conv_layout == "SD" else shape[::-1]


def time_first(point: Point, conv_states: torch.Tensor) -> torch.Tensor:
    """View [layers, slots, conv columns, conv_dim] of conv states in either layout."""
    return conv_states if point.conv_layout == "SD" else conv_states.transpose(-1, -2)


def state_bytes(point: Point) -> int:
    """Bytes of both states of one slot and layer."""
    return point.ssm_state_bytes + 2 * point.conv_dim * conv_columns(point)


def slots_per_request(point: Point) -> int:
    """Columns from the running state before a step to the last scratch slot after it."""
    return 2 * point.num_speculative_blocks + 2


def num_slots(point: Point) -> int:
    """Slots of all requests, and the null slot."""
    return 1 + point.batch_size * slots_per_request(point)


def _ssm_words(point: Point) -> int:
    return point.ssm_state_bytes // 4


def _num_counted(point: Point) -> int:
    """Entries of the counts, by row or by slot."""
    return point.max_num_seqs if by_slot(point) else point.batch_size


def _table_shape(point: Point) -> tuple[int, ...]:
    rows = (point.num_groups, point.max_num_seqs) if by_slot(point) else (point.batch_size,)
    return (*rows, mamba.table_columns(point))


def _table_stride(point: Point) -> int:
    return mamba.table_stride(point) * (point.max_num_seqs if by_slot(point) else 1)


# --- inputs and outputs -----------------------------------------------------------------------------------------------


class Inputs(Tensors):
    """The sampler leaves num_accepted_tokens on the device only. Everything else follows from it and from what the
    scheduler decided (block ids, drafts, columns), so a host that has waited for it knows the rest in both phases.

    With state = slots, the two counts are [R] by slot, and the table is [G, R, W].
    """

    seq_lens: I32["batch_size"]  # including this step's tokens; 0 = padding request
    query_start_loc: I32["batch_size + 1"]
    num_accepted_tokens: I32[_num_counted]  # of the previous step (before_forward) or of this one (after_sampling)
    state_columns: I32[_num_counted]  # column of the running state; -1 = unknown
    num_draft_tokens: I32["batch_size"]  # of this step
    block_table: I32[_table_shape] = field(strided=_table_stride)  # state slots; NULL where a request holds none
    conv_states: I16["num_layers", num_slots, conv_shape]
    ssm_states: I32["num_layers", num_slots, _ssm_words]
    seq_lens_cpu: I32["batch_size"] = field(host=True)
    query_start_loc_cpu: I32["batch_size + 1"] = field(host=True)
    state_columns_cpu: I32[_num_counted] = field(host=True)
    num_draft_tokens_cpu: I32["batch_size"] = field(host=True)
    block_table_cpu: I32[_table_shape] = field(host=True)
    idx_mapping: I64["batch_size"] = field(where=by_slot)  # request slot; -1 = none
    num_computed_tokens: I32["max_num_seqs"] = field(where=by_slot)  # before the step (before_forward) or after it

    def sync_host_copies(self) -> None:
        """Copies the tensors of HOST_COPIES to the host again, after they were edited."""
        for name in HOST_COPIES:
            getattr(self, f"{name}_cpu").copy_(getattr(self, name))


class Outputs(Tensors):
    """An engine passes the pools of Inputs."""

    conv_states: I16["num_layers", num_slots, conv_shape]
    ssm_states: I32["num_layers", num_slots, _ssm_words]
    num_accepted_tokens: I32["max_num_seqs"] = field(read=_num_counted)
    state_columns: I32["max_num_seqs"] = field(read=_num_counted, where=_before_forward)


def make_step(point: Point, seed: int) -> dict[str, torch.Tensor]:
    """The first five inputs, by row. Padding requests are the last rows: length 0, accepted 1, column -1, no drafts.

    ``crossing`` of the real requests get a length at which the phase copies. The others get one in the middle of a
    block if blocks are long enough for that, else they keep the drawn length.
    """
    batch, rng = make_batch(point, seed), np.random.default_rng([seed, 5])
    k, size, count = point.num_speculative_blocks, point.mamba_block_size, point.batch_size
    before = point.phase == "before_forward"
    tokens = batch.decode_lens.numpy().astype(np.int64)
    drawn = batch.seq_lens.numpy().astype(np.int64) - tokens
    accepted = 1 + accepted_drafts(rng, point.acceptance, count, k)
    # A crossing request passes the boundary at block * size tokens.
    block = np.maximum(np.minimum(drawn // size, (point.max_model_len - tokens) // size), 1)
    if before:
        # Reached by this step, but not by the tokens that the previous one scheduled.
        scheduled = np.minimum(1 + k, tokens - 1 + accepted)
        at_boundary = block * size - tokens + 1 + (rng.random(count) * (tokens + accepted - scheduled)).astype(np.int64)
    else:
        # Reached by one of the accepted tokens.
        accepted = np.minimum(accepted, np.maximum(tokens, 1))
        at_boundary = block * size - 1 - (rng.random(count) * accepted).astype(np.int64)
    middle = (block - 1) * size + (size + rng.integers(-1, 1, count)) // 2
    crosses = np.zeros(count, dtype=bool)
    real = count - axes.num_padding_requests(point)
    crosses[rng.permutation(real)[: round(point.crossing * real)]] = True
    computed = np.where(crosses, at_boundary, middle if size >= 4 * (1 + k) else drawn)
    computed = np.clip(computed, 0, point.max_model_len - tokens) * (tokens > 0)
    if before:
        accepted = np.minimum(accepted, np.maximum(computed, 1))
        scheduled = np.maximum(np.where(crosses, scheduled, 1 + k), accepted)
        scheduled = np.minimum(scheduled, point.max_model_len - computed + accepted)
        columns = np.where(computed > 0, (computed - accepted + scheduled - 1) // size, -1)
        accepted = np.where(computed > 0, accepted, 1)
    else:
        columns = np.where(tokens > 0, (computed + tokens - 1) // size, -1)
        accepted = np.where(tokens > 0, accepted, 1)
    return {
        "seq_lens": int32(computed + tokens),
        "query_start_loc": batch.query_start_loc,
        "num_accepted_tokens": int32(accepted),
        "state_columns": int32(columns),
        "num_draft_tokens": int32(np.maximum(tokens - 1, 0)),
    }


def make_table(point: Point, step: Mapping[str, torch.Tensor], seed: int) -> torch.Tensor:
    """int32 [B, W] with row stride W + table_padding: distinct slots in the columns that a request holds, NULL_BLOCK_ID
    elsewhere (freed blocks).
    """
    rng, width = np.random.default_rng([seed, 6]), mamba.table_columns(point)
    held = slots_per_request(point)
    storage = np.full((point.batch_size, width + point.table_padding), UNUSED_BLOCK_ID, dtype=np.int32)
    table = storage[:, :width]
    table[:] = NULL_BLOCK_ID
    ids = (1 + rng.permutation(num_slots(point) - 1)).reshape(point.batch_size, held)
    computed = (step["seq_lens"] - torch.diff(step["query_start_loc"])).tolist()
    for b, column in enumerate(step["state_columns"].tolist()):
        if step["seq_lens"][b] > 0:
            first = (computed[b] - 1) // point.mamba_block_size
            first = max(min(first, column) if column >= 0 else first, 0)
            shown = min(held, width - first)
            table[b, first : first + shown] = ids[b, :shown]
    return torch.from_numpy(table)


def make_pools(point: Point, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(conv states int16, SSM states int32) of all layers and slots, random so that no two states are alike."""
    rng, layers, slots = np.random.default_rng([seed, 7]), point.num_layers, num_slots(point)
    conv = rng.integers(-(2**15), 2**15, (layers, slots, *conv_shape(point)), dtype=np.int16)
    ssm = rng.integers(-(2**31), 2**31, (layers, slots, point.ssm_state_bytes // 4), dtype=np.int32)
    return torch.from_numpy(conv), torch.from_numpy(ssm)


def with_host_copies(**tensors: torch.Tensor) -> Inputs:
    """Inputs from all tensors but the host's copies, which are made here."""
    return Inputs(**tensors, **{f"{name}_cpu": tensors[name].to("cpu", copy=True) for name in HOST_COPIES})


def _kept_by_slot(point: Point, step: Mapping[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Inputs that differ with the step's requests in slots; a request without a state has a column of -1, as by row."""
    rng, rows, capacity = np.random.default_rng([seed, 8]), point.batch_size, point.max_num_seqs
    idx_mapping = rng.permutation(capacity)[:rows]
    lens, accepted = step["seq_lens"], step["num_accepted_tokens"]
    if point.phase == "before_forward":
        computed = lens - torch.diff(step["query_start_loc"])
    else:
        computed = lens - step["num_draft_tokens"] + accepted - 1
    width = mamba.table_columns(point)
    tables = torch.full((point.num_groups, capacity, width + point.table_padding), UNUSED_BLOCK_ID, dtype=torch.int32)
    tables[:, :, :width] = NULL_BLOCK_ID
    for g in range(point.num_groups):
        tables[g, idx_mapping, :width] = make_table(point, step, seed + 1000 * g)

    def placed(values: torch.Tensor) -> torch.Tensor:
        return request_slots.by_slot(idx_mapping, values.numpy(), capacity, unused=UNUSED_BLOCK_ID)

    return {
        "num_accepted_tokens": placed(accepted),
        "state_columns": placed(step["state_columns"]),
        "block_table": tables[:, :, :width],
        "idx_mapping": torch.from_numpy(np.where(lens.numpy() > 0, idx_mapping, -1)),
        "num_computed_tokens": placed(computed),
    }


def make_inputs(point: Point, seed: int) -> Inputs:
    step, (conv_states, ssm_states) = make_step(point, seed), make_pools(point, seed)
    kept = _kept_by_slot(point, step, seed) if by_slot(point) else {"block_table": make_table(point, step, seed)}
    return with_host_copies(**step | kept, conv_states=conv_states, ssm_states=ssm_states)


# --- reference --------------------------------------------------------------------------------------------------------


def copied_columns(point: Point, x: Inputs, b: int) -> tuple[int, int, int] | None:
    """(column from, shift, column to) of request b; None where nothing is copied."""
    if by_slot(point):
        return _copied_by_slot(point, x, b)
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


def _copied_by_slot(point: Point, x: Inputs, b: int) -> tuple[int, int, int] | None:
    size, s = point.mamba_block_size, int(x.idx_mapping[b])
    if s < 0:
        return None
    source, accepted, computed = int(x.state_columns[s]), int(x.num_accepted_tokens[s]), int(x.num_computed_tokens[s])
    if point.phase == "before_forward":
        target = cdiv(computed + int(x.query_start_loc[b + 1] - x.query_start_loc[b]), size) - 1
        return (source, accepted - 1, target) if source >= 0 and source != target else None
    running, aligned = computed - accepted + 1, computed // size * size
    return (source, aligned - running, aligned // size - 1) if aligned >= running else None


def _last_column(point: Point, x: Inputs, b: int) -> int:
    """Of the tokens of this step."""
    length = int(x.seq_lens[b])
    if by_slot(point):
        length = int(x.num_computed_tokens[x.idx_mapping[b]] + x.query_start_loc[b + 1] - x.query_start_loc[b])
    return cdiv(length, point.mamba_block_size) - 1


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    before, capacity, width = point.phase == "before_forward", point.max_num_seqs, conv_columns(point)
    conv, ssm = torch.zeros_like(x.conv_states), torch.zeros_like(x.ssm_states)
    conv_kept, ssm_kept = (torch.ones(pool.shape, dtype=torch.bool) for pool in (conv, ssm))
    # Views through which the loop below addresses a convolution by time, in either layout.
    conv_in, conv_out, conv_out_kept = (time_first(point, pool) for pool in (x.conv_states, conv, conv_kept))
    accepted, state_columns, spare = [0] * capacity, [0] * capacity, torch.ones(capacity, dtype=torch.bool)
    for b in range(len(x.seq_lens)):
        place = int(x.idx_mapping[b]) if by_slot(point) else b
        if place < 0:
            continue
        spare[place] = False
        accepted[place] = int(x.num_accepted_tokens[place])
        state_columns[place] = _last_column(point, x, b) if before else 0
        columns = copied_columns(point, x, b)
        if columns is None:
            continue
        first, shift, last = columns
        if before or first == last:
            accepted[place] = 1
        for layer in range(point.num_layers):
            group = layer * point.num_groups // point.num_layers
            table = (x.block_table[group] if by_slot(point) else x.block_table)[place].tolist()
            conv_from, ssm_from, to = table[first], table[first + shift], table[last]
            assert NULL_BLOCK_ID not in (conv_from, ssm_from, to), "a request copies states it does not hold"
            if conv_from != to or shift > 0:
                conv_out[layer, to, : width - shift] = conv_in[layer, conv_from, shift:]
                conv_out_kept[layer, to, : width - shift] = False
            if ssm_from != to:
                ssm[layer, to] = x.ssm_states[layer, ssm_from]
                ssm_kept[layer, to] = False
    expected = {
        "conv_states": Expected(conv, untouched=conv_kept),
        "ssm_states": Expected(ssm, untouched=ssm_kept),
        "num_accepted_tokens": Expected(int32(accepted), untouched=spare),
    }
    if before:
        expected["state_columns"] = Expected(int32(state_columns), untouched=spare)
    return expected


def bytes_moved(point: Point, x: Inputs) -> int:
    """States that move, read and written once; starts, lengths, counts and columns of all requests; three table entries
    of each that copies.
    """
    moved = 8 * len(x.seq_lens) * by_slot(point) + 4 * (
        1 + len(x.seq_lens) * (7 if point.phase == "before_forward" else 6)
    )
    for b in range(len(x.seq_lens)):
        if columns := copied_columns(point, x, b):
            source, shift, target = columns
            conv = 2 * point.conv_dim * (conv_columns(point) - shift) if shift or source != target else 0
            ssm = point.ssm_state_bytes if source + shift != target else 0
            moved += 12 * point.num_groups + 2 * point.num_layers * (conv + ssm)
    return moved


def in_place(point: Point) -> Mapping[str, str]:
    """vLLM has one pool."""
    return {name: name for name in ("conv_states", "ssm_states")}


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point)


operator = Operator(
    name="mamba_state_copy",
    summary="recurrent states copied at block boundaries: convolution shifted by the accepted drafts, SSM state whole",
    axes=(*AXES, mamba.MAX_NUM_SEQS, axes.TABLE_PADDING, *COPY_AXES),
    rules=RULES,
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    in_place=in_place,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="pointer_lists",
    redundant=axes.same_batch_elsewhere,
)
