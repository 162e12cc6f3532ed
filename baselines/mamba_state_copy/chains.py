"""mamba_state_copy from PyTorch operators: lists built on the host, and a chain that decides on the device.

Every copy reads its whole source before it writes, so one pool may be passed as input and output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from spec_decode_bench.baselines.mamba_state_copy.operator import (
    Inputs,
    Outputs,
    by_slot,
    conv_columns,
    operator,
    time_first,
)
from spec_decode_bench.baselines.workloads.request_slots import rows_of_slots
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled
from spec_decode_bench.harness.contract import COMPILER, Point, variant

#: What a variant that decides on the host waives.
ON_HOST = ("no_alloc", "no_sync", "graph_safe")


def by_row(point: Point) -> str | None:
    """Skip reason of what is of vLLM's first model runner."""
    return "state is by row in the model runner that decides on the host" if by_slot(point) else None


# --- decided on the host ----------------------------------------------------------------------------------------------


class Copy(NamedTuple):
    """One request's copy: slots, and the columns by which its convolution is shifted."""

    conv_from: int
    ssm_from: int
    to: int
    shift: int


def decide_on_host(
    point: Point, x: Inputs, backwards: bool = True, skip_padding: bool = True
) -> tuple[list[Copy], list[int], list[int]]:
    """(copies, accepted counts, state columns). Waits once, for the accepted counts, as they come from the sampler.

    backwards: states may move to an earlier block. skip_padding: rows of length 0 are skipped.
    """
    size, before = point.mamba_block_size, point.phase == "before_forward"
    seq_lens, accepted, known = x.seq_lens_cpu.tolist(), x.num_accepted_tokens.tolist(), x.state_columns_cpu.tolist()
    starts, drafts, table = x.query_start_loc_cpu.tolist(), x.num_draft_tokens_cpu.tolist(), x.block_table_cpu.numpy()
    copies, columns = [], [(seq_len - 1) // size for seq_len in seq_lens]
    for b, seq_len in enumerate(seq_lens):
        if seq_len == 0 and skip_padding:
            continue
        if before:
            computed = seq_len - starts[b + 1] + starts[b]
            source = known[b] if known[b] >= 0 else (computed - 1) // size
            shift, target = accepted[b] - 1, columns[b]
            moves = source not in (-1, target) and (backwards or source < target)
        else:
            running = seq_len - drafts[b]
            blocks = (running + accepted[b] - 1) // size
            source, shift, target = known[b], blocks * size - running, blocks - 1
            moves = shift >= 0 and (backwards or source <= target)
        if moves:
            conv_from, ssm_from, to = table[b, [source, source + shift, target]].tolist()
            copies.append(Copy(conv_from, ssm_from, to, shift))
            if before or conv_from == to:
                accepted[b] = 1
    return copies, accepted, columns


def _pinned(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A host array that the device reads while the host goes on. It may be reused after the wait of the next launch."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def _sender(rows: int, width: int, device: torch.device) -> Callable[[list[tuple[int, ...]]], tuple[torch.Tensor, ...]]:
    """send(up to ``rows`` tuples of ``width`` integers) -> their ``width`` columns on the device, int64 each."""
    host = _pinned((rows, width), torch.int64, device)
    on_device = torch.empty(rows, width, dtype=torch.int64, device=device)

    def send(values: list[tuple[int, ...]]) -> tuple[torch.Tensor, ...]:
        host[: len(values)] = torch.tensor(values)
        return on_device[: len(values)].copy_(host[: len(values)], non_blocking=True).unbind(1)

    return send


def counts_writer(point: Point, out: Outputs) -> Callable[[list[int], list[int]], None]:
    """write(accepted counts, state columns), each with one number per request."""
    num_reqs, host = point.batch_size, _pinned((2, point.batch_size), torch.int32, out.num_accepted_tokens.device)

    def write(accepted: list[int], columns: list[int]) -> None:
        host.copy_(torch.tensor([accepted, columns]))
        out.num_accepted_tokens[:num_reqs].copy_(host[0], non_blocking=True)
        if point.phase == "before_forward":
            out.state_columns[:num_reqs].copy_(host[1], non_blocking=True)

    return write


@variant("mamba_state_copy", skip=by_row, waives=ON_HOST)
def pointer_lists(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Waits for the accepted counts, lists all copies (request x layer x state) in Python, then copies by these
    lists.
    """
    columns, device, layers = conv_columns(point), out.ssm_states.device, range(point.num_layers)
    write_counts, most = counts_writer(point, out), point.batch_size * point.num_layers
    send_whole, send_shifted = _sender(most, 3, device), _sender(most * columns, 5, device)

    def launch() -> None:
        copies, accepted, state_columns = decide_on_host(point, x)
        write_counts(accepted, state_columns)
        whole = [(layer, copy.ssm_from, copy.to) for copy in copies for layer in layers if copy.ssm_from != copy.to]
        # A convolution is a list of columns, because shifts differ: (layer, slot from, time from, slot to, time to).
        shifted = [
            (layer, copy.conv_from, time + copy.shift, copy.to, time)
            for copy in copies
            for layer in layers
            if copy.conv_from != copy.to or copy.shift
            for time in range(columns - copy.shift)
        ]
        if whole:
            layer, source, target = send_whole(whole)
            out.ssm_states[layer, target] = x.ssm_states[layer, source]
        if shifted:
            layer, source, begin, target, time = send_shifted(shifted)
            conv_in, conv_out = time_first(point, x.conv_states), time_first(point, out.conv_states)
            conv_out[layer, target, time] = conv_in[layer, source, begin]

    return launch


# --- decided on the device --------------------------------------------------------------------------------------------


def _decide_on_device(
    x: Inputs, size: int, before: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """[B] each: moves (bool), column from, shift, column to (0 where nothing moves), column of the last token."""
    last = (x.seq_lens - 1) // size
    if before:
        computed = x.seq_lens - torch.diff(x.query_start_loc)
        source = torch.where(x.state_columns >= 0, x.state_columns, (computed - 1) // size)
        shift, target = x.num_accepted_tokens - 1, last
        moves = (source >= 0) & (source != target) & (x.seq_lens > 0)
    else:
        running = x.seq_lens - x.num_draft_tokens
        blocks = (running + x.num_accepted_tokens - 1) // size
        source, shift, target = x.state_columns, blocks * size - running, blocks - 1
        moves = (shift >= 0) & (x.seq_lens > 0)
    return moves, source * moves, shift * moves, target * moves, last


def _copy_states(
    x: Inputs,
    out: Outputs,
    tables: torch.Tensor,
    columns: tuple[torch.Tensor, ...],
    moves: torch.Tensor,
    time: torch.Tensor,
    ds: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """All layers at once. Returns the slots that convolutions come from and go to, [layers, B]; requests that do not
    move copy the null slot onto itself.

    tables: [G, B, W]. columns: from, shift, to, 0 where nothing moves. time: int64, 0 .. conv columns - 1. ds: layout
    DS; the views are made here because torch.compile accepts one pool passed twice, but not two views of it.
    """
    conv_in, conv_out, ssm_in, ssm_out = x.conv_states, out.conv_states, x.ssm_states, out.ssm_states
    if ds:
        conv_in, conv_out = conv_in.transpose(-1, -2), conv_out.transpose(-1, -2)
    source, shift, target = columns
    layers, groups = len(ssm_in), len(tables)
    wanted = torch.stack((source, source + shift, target), 1).long().expand(groups, -1, -1)
    slots = (torch.gather(tables, 2, wanted) * moves[:, None]).long()
    layer = torch.arange(layers, device=slots.device)[:, None]
    # Not expand(), for which torch.compile distinguishes one layer a group from several.
    conv_from, ssm_from, to = slots[layer[:, 0] // (layers // groups)].unbind(2)
    ssm_out[layer, to] = torch.where((ssm_from != to)[:, :, None], ssm_in[layer, ssm_from], ssm_out[layer, to])
    begin = time + shift[:, None]
    inside = (begin < len(time)) & ((conv_from != to) | (shift > 0))[:, :, None]
    shifted = conv_in[layer[:, :, None], conv_from[:, :, None], begin.clamp(max=len(time) - 1)]
    conv_out[layer, to] = torch.where(inside[:, :, :, None], shifted, conv_out[layer, to])
    return conv_from, to


def copies_by_slot(x: Inputs, out: Outputs, time: torch.Tensor, size: int, before: bool, ds: bool) -> None:
    """Each layer by the table of its group; counts by slot through the row that each slot has."""
    slot, live = x.idx_mapping.clamp(min=0), x.idx_mapping >= 0
    count, known, computed = x.num_accepted_tokens[slot], x.state_columns[slot], x.num_computed_tokens[slot]
    last = (computed + torch.diff(x.query_start_loc) - 1) // size
    if before:
        shift, target = count - 1, last
        moves = live & (known >= 0) & (known != target)
    else:
        running, target = computed - count + 1, computed // size - 1
        shift = (target + 1) * size - running
        moves = live & (shift >= 0)
    _copy_states(x, out, x.block_table[:, slot], (known * moves, shift * moves, target * moves), moves, time, ds)
    row, has = rows_of_slots(x.idx_mapping, len(out.num_accepted_tokens))
    settled = count.masked_fill(moves if before else moves & (known == target), 1)
    out.num_accepted_tokens.copy_(torch.where(has, settled[row], out.num_accepted_tokens))
    if before:
        out.state_columns.copy_(torch.where(has, last[row], out.state_columns))


def copies_by_row(x: Inputs, out: Outputs, time: torch.Tensor, size: int, before: bool, ds: bool) -> None:
    """size: the Mamba block size. before: phase before_forward."""
    num_reqs = len(x.seq_lens)
    moves, *columns, last = _decide_on_device(x, size, before)
    conv_from, to = _copy_states(x, out, x.block_table[None], tuple(columns), moves, time, ds)
    settled = moves if before else moves & (conv_from[0] == to[0])
    out.num_accepted_tokens[:num_reqs].copy_(x.num_accepted_tokens.masked_fill(settled, 1))
    if before:
        out.state_columns[:num_reqs].copy_(last)


def _set_up(point: Point, x: Inputs, out: Outputs, copies: Callable[..., None] | None = None) -> Callable[[], None]:
    time = torch.arange(conv_columns(point), device=out.ssm_states.device)
    size, before, ds = point.mamba_block_size, point.phase == "before_forward", point.conv_layout == "DS"
    copies = copies or chain_of(point)
    return lambda: copies(x, out, time, size, before, ds)


def chain_of(point: Point) -> Callable[..., None]:
    return copies_by_slot if by_slot(point) else copies_by_row


@variant("mamba_state_copy", waives="no_alloc")
def masked_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Decides on the device, so it can be captured. Gathers states for all requests; where nothing moves, the null
    slot is copied onto itself.
    """
    return _set_up(point, x, out)


#: A general batch in each phase and layout, then one request, which Inductor compiles separately (see compiled).
_GENERAL = {"batch_size": BUSY_BATCH, "num_layers": 2, "ssm_state_bytes": 40, "conv_dim": 9, "crossing": 0.5}
_KINDS = [
    {"phase": phase, "conv_layout": layout} for phase in ("before_forward", "after_sampling") for layout in ("SD", "DS")
]
_EXAMPLES = (*(_GENERAL | kind for kind in _KINDS), _GENERAL | {"batch_size": 1})
_EXAMPLES_BY_SLOT = [_GENERAL | kind | {"state": "slots", "num_layers": 4, "num_groups": 2} for kind in _KINDS]


@variant("mamba_state_copy", requires=COMPILER, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the masked chain."""
    examples = _EXAMPLES_BY_SLOT if by_slot(point) else _EXAMPLES
    return _set_up(point, x, out, compiled(chain_of(point), _set_up, operator, examples, out.ssm_states.device))
