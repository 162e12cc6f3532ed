"""How PyTorch copies states at block boundaries: lists built on the host, and a chain that decides on the device.

``x`` and ``out`` are the operator's Inputs and Outputs. Every copy reads its source completely before it writes, so
that one pool may be passed as both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from baselines.mamba_state_copy._batches import conv_columns, time_first
from harness.contract import Point

#: slot from, slot to, shift of a request's convolution; slot from of its SSM state
Copy = tuple[int, int, int, int]


def _decide_on_host(
    point: Point, x: Any, backwards: bool = True, padding_stays: bool = True
) -> tuple[list[Copy], list[int], list[int]]:
    """(copies, accepted counts, state columns); waits once, for the accepted counts, as they come from the sampler.

    backwards: whether a state may go to an earlier block. padding_stays: whether a length of 0 is looked at.
    """
    size, before = point.mamba_block_size, point.phase == "before_forward"
    seq_lens, accepted, known = x.seq_lens_cpu.tolist(), x.num_accepted_tokens.tolist(), x.state_columns_cpu.tolist()
    starts, drafts, table = x.query_start_loc_cpu.tolist(), x.num_draft_tokens_cpu.tolist(), x.block_table_cpu.numpy()
    copies, columns = [], [(seq_len - 1) // size for seq_len in seq_lens]
    for b, seq_len in enumerate(seq_lens):
        if seq_len == 0 and padding_stays:
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
            conv_source, conv_target, ssm_source = table[b, [source, target, source + shift]].tolist()
            copies.append((conv_source, conv_target, shift, ssm_source))
            if before or conv_source == conv_target:
                accepted[b] = 1
    return copies, accepted, columns


def _pinned(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A host array that the device reads without the host waiting. Free again in the next launch, once that has its
    counts.
    """
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def _sender(rows: int, width: int, device: torch.device) -> Callable[[list[tuple[int, ...]]], tuple[Tensor, ...]]:
    """send(up to ``rows`` tuples of ``width`` integers) -> their columns on the device, int64."""
    host, there = (
        _pinned((rows, width), torch.int64, device),
        torch.empty(rows, width, dtype=torch.int64, device=device),
    )

    def send(values):
        host[: len(values)] = torch.tensor(values)
        return there[: len(values)].copy_(host[: len(values)], non_blocking=True).unbind(1)

    return send


def _count_store(point: Point, out: Any) -> Callable[[list[int], list[int]], None]:
    """store(accepted counts, state columns), one each per request."""
    num_reqs, host = point.batch_size, _pinned((2, point.batch_size), torch.int32, out.num_accepted_tokens.device)

    def store(accepted, columns):
        host.copy_(torch.tensor([accepted, columns]))
        out.num_accepted_tokens[:num_reqs].copy_(host[0], non_blocking=True)
        if point.phase == "before_forward":
            out.state_columns[:num_reqs].copy_(host[1], non_blocking=True)

    return store


def pointer_lists_copies(point: Point, x: Any, out: Any) -> Callable[[], None]:
    columns, device, layers = conv_columns(point), out.ssm_states.device, range(point.num_layers)
    store, most = _count_store(point, out), point.batch_size * point.num_layers
    send_whole, send_shifted = _sender(most, 3, device), _sender(most * columns, 5, device)

    def launch():
        copies, accepted, state_columns = _decide_on_host(point, x)
        store(accepted, state_columns)
        whole = [(layer, source, target) for _, target, _, source in copies for layer in layers if source != target]
        # (layer, slot from, time from, slot to, time to): a convolution is a list of columns, as shifts differ.
        shifted = [
            (layer, source, time + shift, target, time)
            for source, target, shift, _ in copies
            for layer in layers
            if source != target or shift
            for time in range(columns - shift)
        ]
        if whole:
            layer, source, target = send_whole(whole)
            out.ssm_states[layer, target] = x.ssm_states[layer, source]
        if shifted:
            layer, source, begin, target, time = send_shifted(shifted)
            time_first(point, out.conv_states)[layer, target, time] = time_first(point, x.conv_states)[
                layer, source, begin
            ]

    return launch


def _decide_on_device(x: Any, size: int, before: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(moves, column from, shift, column to, column of the step's last token), int32 or bool [B]; 0 where nothing
    moves.
    """
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


def masked(x: Any, out: Any, time: Tensor, size: int, num_reqs: int, before: bool, transposed: bool) -> None:
    """A request that stays copies the null slot of the destination onto itself.

    time: 0, 1, ... of a convolution's columns. size: the Mamba block size. before: the copy before the forward pass, not the one
    after sampling. transposed: layout DS; here and not in set-up, as torch.compile takes one pool for both, but not two views of it.
    """
    conv_source, conv_target = x.conv_states, out.conv_states
    if transposed:
        conv_source, conv_target = conv_source.transpose(-1, -2), conv_target.transpose(-1, -2)
    moves, source, shift, target, last = _decide_on_device(x, size, before)
    columns = torch.stack((source, source + shift, target), 1).long()
    conv_from, ssm_from, to = (torch.gather(x.block_table, 1, columns) * moves[:, None]).long().unbind(1)
    states = torch.where((ssm_from != to)[None, :, None], x.ssm_states[:, ssm_from], out.ssm_states[:, to])
    out.ssm_states.index_copy_(1, to, states)
    begin = time + shift[:, None]
    inside = (begin < len(time)) & ((conv_from != to) | (shift > 0))[:, None]
    shifted = conv_source[:, conv_from[:, None], begin.clamp(max=len(time) - 1)]
    conv_target[:, to] = torch.where(inside[None, :, :, None], shifted, conv_target[:, to])
    settled = moves if before else moves & (conv_from == to)
    out.num_accepted_tokens[:num_reqs].copy_(x.num_accepted_tokens.masked_fill(settled, 1))
    if before:
        out.state_columns[:num_reqs].copy_(last)


def masked_copies(point: Point, x: Any, out: Any, masked: Callable[..., None] = masked) -> Callable[[], None]:
    time = torch.arange(conv_columns(point), device=out.ssm_states.device)
    size, before, transposed = point.mamba_block_size, point.phase == "before_forward", point.conv_layout == "DS"
    return lambda: masked(x, out, time, size, point.batch_size, before, transposed)


def shifted_by(conv: Tensor, source: int, target: int, shift: int) -> None:
    """The right way to move one request's convolution, see in_place."""
    conv[:, target, : conv.shape[2] - shift] = conv[:, source, shift:].clone()


def in_place(
    point: Point, x: Any, out: Any, shift_conv: Callable[[Tensor, int, int, int], None], **decided: bool
) -> Callable[[], None]:
    """For the defects: works inside a copy of the pool, as engines do inside theirs, then hands the destinations on.

    shift_conv: (conv states [layers, slots, columns, channels], slot from, slot to, shift), of one request.
    decided: see _decide_on_host.
    """
    store = _count_store(point, out)

    def launch():
        copies, accepted, columns = _decide_on_host(point, x, **decided)
        store(accepted, columns)
        conv, handed_on = time_first(point, x.conv_states.clone()), time_first(point, out.conv_states)
        for source, target, shift, ssm_source in copies:
            if source != target or shift:
                shift_conv(conv, source, target, shift)
                kept = conv_columns(point) - shift
                handed_on[:, target, :kept] = conv[:, target, :kept]
            if ssm_source != target:
                out.ssm_states[:, target] = x.ssm_states[:, ssm_source]

    return launch
