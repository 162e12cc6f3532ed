"""mamba_spec_metadata from PyTorch operators: what vLLM's metadata builder launches, plus the gathers of one layer."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.mamba_spec_metadata.operator import Inputs, Outputs, operator
from spec_decode_bench.baselines.workloads import mamba_steps as mamba
from spec_decode_bench.baselines.workloads.decode_batch import NULL_BLOCK_ID
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled
from spec_decode_bench.harness.contract import COMPILER, Point, variant


def known_anchor(x: Inputs) -> torch.Tensor:
    """[num_decodes] int32, -1 = unknown or of another request."""
    return x.anchors.index_select(0, x.request_slots[: x.num_decodes]).masked_fill(x.fresh[: x.num_decodes], -1)


def _store_rows(target: torch.Tensor, rows: torch.Tensor, num_reqs: int, pad: int) -> None:
    """Real requests into the first rows of a persistent buffer, ``pad`` into the rows up to num_reqs."""
    target[: len(rows)].copy_(rows)
    if len(rows) < num_reqs:
        target[len(rows) : num_reqs].fill_(pad)


def fill_all_states(
    x: Inputs,
    out: Outputs,
    table: torch.Tensor,
    offsets: torch.Tensor,
    block_size: int,
    anchor: Callable[[Inputs], torch.Tensor],
    columns: int,
    num_reqs: int,
) -> None:
    """Mode all. Indices and persistent copies as in vLLM's builder, then the gathers of one layer.

    table:   [max_num_seqs, W] the persistent copy of the block table that the layers gather from.
    offsets: [1 + k] int64, 0 .. k.
    columns: how many columns of the block table are copied.
    """
    n, last = x.num_decodes, out.block_idx_last_scheduled_token
    query_lens = x.query_start_loc[1 : n + 1] - x.query_start_loc[:n]
    computed = x.seq_lens[:n] - query_lens
    last_computed = (-(computed // -block_size) - 1).clamp(min=0)
    _first_scheduled = -((computed + 1) // -block_size) - 1  # upstream computes it for all rows; only prefill uses it
    last_scheduled = (-(x.seq_lens[:n] // -block_size) - 1).clamp(min=0)
    known = anchor(x)
    previous = torch.where(known >= 0, known, ((computed - 1) // block_size).clamp(min=0))

    _store_rows(table[:, :columns], x.block_table[:n, :columns], num_reqs, NULL_BLOCK_ID)
    _store_rows(last, last_scheduled, num_reqs, 0)
    _store_rows(out.block_idx_last_computed_token, last_computed, num_reqs, 0)
    _store_rows(out.block_idx_last_scheduled_token_prev_step, previous, num_reqs, 0)
    _store_rows(out.num_accepted_tokens, x.num_accepted_tokens[:n], num_reqs, 1)

    reads = out.block_idx_last_scheduled_token_prev_step[:num_reqs, None] + offsets
    mamba.gather_into(out.input_slots[:num_reqs], table[:num_reqs], reads)
    mamba.gather_into(out.output_slots[:num_reqs], table[:num_reqs], last[:num_reqs, None] + offsets)
    out.conv_input_slot[:num_reqs].copy_(out.input_slots[:num_reqs, 0])
    out.conv_output_slot[:num_reqs].copy_(out.output_slots[:num_reqs, 0])
    out.next_anchors[x.request_slots[:n]] = last_scheduled


def fill_window(x: Inputs, out: Outputs, offsets: torch.Tensor, block_size: int, aligned: bool, num_reqs: int) -> None:
    """Modes align and none. One window of 1 + k columns serves as input and output."""
    n, slots = x.num_decodes, x.block_table[: x.num_decodes]
    if aligned:
        first = ((x.seq_lens[:n] - 1) // block_size).clamp(min=0)
        slots = torch.gather(slots, 1, first[:, None] + offsets)
    _store_rows(out.input_slots, slots, num_reqs, NULL_BLOCK_ID)
    _store_rows(out.num_accepted_tokens, x.num_accepted_tokens[:n], num_reqs, 1)


def _offsets(point: Point, out: Outputs) -> torch.Tensor:
    # int64: every release of torch accepts it as an index, and adding it to an int32 index converts in the same launch.
    return torch.arange(mamba.slots_per_step(point), device=out.input_slots.device)


def all_states_chain(
    point: Point,
    x: Inputs,
    out: Outputs,
    fill: Callable[..., None] = fill_all_states,
    anchor: Callable[[Inputs], torch.Tensor] = known_anchor,
    columns: int | None = None,
    num_reqs: int | None = None,
) -> Callable[[], None]:
    """Mode all. Default columns: the whole table. Default num_reqs: the batch, padding included."""
    offsets, width = _offsets(point, out), mamba.table_columns(point)
    table = torch.zeros(point.max_num_seqs, width, dtype=torch.int32, device=out.input_slots.device)
    copied = width if columns is None else columns
    rows = point.batch_size if num_reqs is None else num_reqs
    return lambda: fill(x, out, table, offsets, point.mamba_block_size, anchor, copied, rows)


def window_chain(
    point: Point, x: Inputs, out: Outputs, fill: Callable[..., None] = fill_window, num_reqs: int | None = None
) -> Callable[[], None]:
    """Modes align and none. Default num_reqs: the batch, padding included."""
    offsets, aligned = _offsets(point, out), point.cache_mode == "align"
    rows = point.batch_size if num_reqs is None else num_reqs
    return lambda: fill(x, out, offsets, point.mamba_block_size, aligned, rows)


@variant("mamba_spec_metadata", waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The operator chain of vLLM 0.22: 19 element-wise launches, 5 persistent copies, 5 fills where there is padding;
    and 11 for what it does elsewhere: 3 read the anchors and 2 store them (a host dictionary there), 6 gather the
    slots (4 there, in every layer).
    """
    return all_states_chain(point, x, out) if point.cache_mode == "all" else window_chain(point, x, out)


#: A general batch first; then what is compiled separately: a table without space between its rows, with and without
#: padding requests, and one request.
_FULL, _PADDED = {"batch_size": BUSY_BATCH}, {"batch_size": BUSY_BATCH, "padding": 0.2}
_EXAMPLES_ALL = (_FULL | {"table_padding": 3}, _FULL, _PADDED, {"batch_size": 1})
_EXAMPLES_WINDOW = tuple(example | {"cache_mode": mode} for mode in ("align", "none") for example in (_FULL, _PADDED))


@variant("mamba_spec_metadata", requires=COMPILER, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the operator chain."""
    device = out.input_slots.device
    if point.cache_mode == "all":
        fill = compiled(fill_all_states, all_states_chain, operator, _EXAMPLES_ALL, device)
        return all_states_chain(point, x, out, fill)
    return window_chain(point, x, out, compiled(fill_window, window_chain, operator, _EXAMPLES_WINDOW, device))
