"""Historic bugs of mamba_state_copy, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import torch

from spec_decode_bench.baselines.mamba_state_copy.chains import (
    ON_HOST,
    by_row,
    counts_writer,
    decide_on_host,
    masked_chain,
    pointer_lists,
)
from spec_decode_bench.baselines.mamba_state_copy.operator import Inputs, Outputs, by_slot, conv_columns, time_first
from spec_decode_bench.baselines.workloads.broken import on_changed, wrapped
from spec_decode_bench.harness.contract import Point, variant

#: (conv states [layers, slots, columns, channels], slot from, slot to, shift): moves one request's convolution.
ShiftConv: TypeAlias = "Callable[[torch.Tensor, int, int, int], None]"


def _in_place(point: Point, x: Inputs, out: Outputs, shift_conv: ShiftConv, **decision: bool) -> Callable[[], None]:
    """Shifts convolutions inside a copy of the input pool, as engines do inside theirs, then copies the destinations
    out. decision: see decide_on_host.
    """
    write_counts, width = counts_writer(point, out), conv_columns(point)

    def launch() -> None:
        copies, accepted, columns = decide_on_host(point, x, **decision)
        write_counts(accepted, columns)
        pool, conv_out = time_first(point, x.conv_states.clone()), time_first(point, out.conv_states)
        for conv_from, ssm_from, to, shift in copies:
            if conv_from != to or shift:
                shift_conv(pool, conv_from, to, shift)
                conv_out[:, to, : width - shift] = pool[:, to, : width - shift]
            if ssm_from != to:
                out.ssm_states[:, to] = x.ssm_states[:, ssm_from]

    return launch


def _shift(conv: torch.Tensor, source: int, target: int, shift: int) -> None:
    """The correct shift."""
    conv[:, target, : conv.shape[2] - shift] = conv[:, source, shift:].clone()


@variant(
    "mamba_state_copy",
    defect="several blocks shift inside one slot, in any order (vLLM #50729)",
    skip=lambda p: "layout SD only" if p.conv_layout == "DS" else by_row(p),
    waives=ON_HOST,
)
def overlapping_shift(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """In place on a copy of the pools; a block per column, the last one first: their order is not guaranteed."""

    def shift_columns(conv: torch.Tensor, source: int, target: int, shift: int) -> None:
        for column in reversed(range(conv_columns(point) - shift)):
            conv[:, target, column] = conv[:, source, column + shift]

    return _in_place(point, x, out, shift_columns)


@variant(
    "mamba_state_copy",
    defect="the first copy sets num_accepted_tokens, which other copies still read (vLLM #50432)",
    skip=by_row,
    waives=ON_HOST,
)
def accepted_updated_in_place(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """In place on a copy of the pools: the block of layer 0 is done before those of the other layers begin."""

    def shift_layers(conv: torch.Tensor, source: int, target: int, shift: int) -> None:
        for layer in range(point.num_layers):
            seen = shift if layer == 0 else 0
            conv[layer, target, : conv_columns(point) - seen] = conv[layer, source, seen:].clone()

    return _in_place(point, x, out, shift_layers)


@variant(
    "mamba_state_copy",
    defect="layout DS is shifted as if its columns were contiguous (vLLM #45473)",
    skip=lambda p: "layout DS only" if p.conv_layout == "SD" else by_row(p),
    waives=ON_HOST,
)
def shifted_as_contiguous(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    def shift_flat(conv: torch.Tensor, source: int, target: int, shift: int) -> None:
        begin = shift * point.conv_dim
        for layer in range(point.num_layers):
            written, read = (conv[layer, slot].T.contiguous().view(-1) for slot in (target, source))
            written[: len(read) - begin] = read[begin:].clone()
            conv[layer, target] = written.view(point.conv_dim, -1).T

    return _in_place(point, x, out, shift_flat)


@variant(
    "mamba_state_copy",
    defect="the first copy stores the next state_columns, which other copies still read (a race like vLLM #50432)",
    skip=by_row,
    waives=ON_HOST,
)
def columns_updated_in_place(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One array is input and output: to the blocks of later layers the states seem to be in place already."""
    return pointer_lists(Point({**point, "num_layers": 1}) if point.phase == "before_forward" else point, x, out)


@variant(
    "mamba_state_copy",
    defect="a guard against backward copies, the cause named in vLLM #53505, also drops required ones",
    skip=by_row,
    waives=ON_HOST,
)
def backward_copy_dropped(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """A state moves back if drafts past a block's end were rejected, or if the block's end is kept for the prefix
    cache.
    """
    return _in_place(point, x, out, _shift, backwards=False)


@variant(
    "mamba_state_copy",
    defect="the convolution is copied as if no draft had been rejected (vLLM #50272)",
    skip=by_row,
    waives=ON_HOST,
)
def shift_ignored(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    def unshifted(conv: torch.Tensor, source: int, target: int, shift: int) -> None:
        kept = conv_columns(point) - shift
        conv[:, target, :kept] = conv[:, source, :kept].clone()

    return _in_place(point, x, out, unshifted)


@variant(
    "mamba_state_copy",
    defect="padding rows copy what their stale columns say (like xllm #1939)",
    skip=by_row,
    waives=ON_HOST,
)
def padding_copied(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return _in_place(point, x, out, _shift, skip_padding=False)


def _slots_only(point: Point) -> str | None:
    return None if by_slot(point) else "state is by row"


@variant(
    "mamba_state_copy", defect="rows without a request, slot -1, move the states of another slot", skip=_slots_only
)
def filtered_rows_copied(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """-1 wraps around to the last slot, as an index into a tensor does."""
    return on_changed(masked_chain, point, x, out, idx_mapping=lambda: wrapped(point, x.idx_mapping))


@variant("mamba_state_copy", defect="all groups' states move by the table of the first group", skip=_slots_only)
def first_table_for_all(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return masked_chain(point, replace(x, block_table=x.block_table[:1].expand(point.num_groups, -1, -1)), out)


@variant(
    "mamba_state_copy",
    defect="counts after the step are taken for counts before it, so a state is kept a step late or early",
    skip=lambda p: _slots_only(p) or ("before the forward pass" if p.phase == "before_forward" else None),
)
def counts_before_the_step(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    def earlier() -> torch.Tensor:
        return (x.num_computed_tokens - x.num_accepted_tokens).clamp(min=0)

    return on_changed(masked_chain, point, x, out, num_computed_tokens=earlier)
