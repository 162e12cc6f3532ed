"""The operator chain of mamba_spec_metadata: what vLLM's builder launches, and the gathers of one of its layers.

``x`` and ``out`` are the operator's Inputs and Outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from baselines.workloads import mamba_steps as mamba
from baselines.workloads.decode_batch import NULL_BLOCK_ID
from baselines.workloads.torch_compile import compiled
from harness.contract import Operator, Point


def _store_rows(target: Tensor, rows: Tensor, num_reqs: int, pad: int) -> None:
    """Rows of the real requests into their persistent buffer, the padding value into the rest of the step's rows."""
    target[: len(rows)].copy_(rows)
    if len(rows) < num_reqs:
        target[len(rows) : num_reqs].fill_(pad)


def _known_anchor(x: Any) -> Tensor:
    return x.anchors.index_select(0, x.request_slots[: x.num_decodes]).masked_fill(x.fresh[: x.num_decodes], -1)


def _all_states(
    x: Any,
    out: Any,
    rows: Tensor,
    offsets: Tensor,
    block_size: int,
    anchor: Callable[[Any], Tensor],
    columns: int,
    num_reqs: int,
) -> None:
    """Indices and persistent copies as vLLM's builder makes them, then the gathers of its layers, once."""
    n, last = x.num_decodes, out.block_idx_last_scheduled_token
    query_lens = x.query_start_loc[1 : n + 1] - x.query_start_loc[:n]
    computed = x.seq_lens[:n] - query_lens
    last_computed = (-(computed // -block_size) - 1).clamp(min=0)
    _first_scheduled = -((computed + 1) // -block_size) - 1  # kept for prefill rows, computed for all
    last_scheduled = (-(x.seq_lens[:n] // -block_size) - 1).clamp(min=0)
    known = anchor(x)
    previous = torch.where(known >= 0, known, ((computed - 1) // block_size).clamp(min=0))

    _store_rows(rows[:, :columns], x.block_table[:n, :columns], num_reqs, NULL_BLOCK_ID)
    _store_rows(last, last_scheduled, num_reqs, 0)
    _store_rows(out.block_idx_last_computed_token, last_computed, num_reqs, 0)
    _store_rows(out.block_idx_last_scheduled_token_prev_step, previous, num_reqs, 0)
    _store_rows(out.num_accepted_tokens, x.num_accepted_tokens[:n], num_reqs, 1)

    reads = out.block_idx_last_scheduled_token_prev_step[:num_reqs, None] + offsets
    mamba.gather_into(out.input_slots[:num_reqs], rows[:num_reqs], reads)
    mamba.gather_into(out.output_slots[:num_reqs], rows[:num_reqs], last[:num_reqs, None] + offsets)
    out.conv_input_slot[:num_reqs].copy_(out.input_slots[:num_reqs, 0])
    out.conv_output_slot[:num_reqs].copy_(out.output_slots[:num_reqs, 0])
    out.next_anchors[x.request_slots[:n]] = last_scheduled


def _window(x: Any, out: Any, offsets: Tensor, block_size: int, aligned: bool, num_reqs: int) -> None:
    """Modes align and none: one table of 1 + k columns."""
    n, slots = x.num_decodes, x.block_table[: x.num_decodes]
    if aligned:
        first = ((x.seq_lens[:n] - 1) // block_size).clamp(min=0)
        slots = torch.gather(slots, 1, first[:, None] + offsets)
    _store_rows(out.input_slots, slots, num_reqs, NULL_BLOCK_ID)
    _store_rows(out.num_accepted_tokens, x.num_accepted_tokens[:n], num_reqs, 1)


def chain(
    point: Point,
    x: Any,
    out: Any,
    anchor=_known_anchor,
    narrower: int = 0,
    padded: bool = True,
    all_states=_all_states,
    window=_window,
) -> Callable[[], None]:
    """The operator chain. ``rows`` is the persistent full-width copy of the table that the layers of vLLM gather
    from.
    """
    width, device = mamba.table_columns(point), out.input_slots.device
    num_reqs = point.batch_size if padded else x.num_decodes
    # int64: every release of torch takes it for an index, and adding it to an int32 index converts in the same launch.
    offsets = torch.arange(1 + point.num_speculative_blocks, device=device)
    rows = torch.zeros(point.max_num_seqs, width, dtype=torch.int32, device=device)
    if point.cache_mode == "all":
        return lambda: all_states(x, out, rows, offsets, point.mamba_block_size, anchor, width - narrower, num_reqs)
    return lambda: window(x, out, offsets, point.mamba_block_size, point.cache_mode == "align", num_reqs)


def _run_all_states(point, x, out, all_states):
    return chain(point, x, out, all_states=all_states)


def _run_window(point, x, out, window):
    return chain(point, x, out, window=window)


_FULL, _PADDED = {"batch_size": 24, "table_padding": 3}, {"batch_size": 24, "padding": 0.2, "table_padding": 3}
_EXAMPLES_ALL = (_FULL, _PADDED, {"batch_size": 1})
_EXAMPLES_WINDOW = tuple(example | {"cache_mode": mode} for mode in ("align", "none") for example in (_FULL, _PADDED))


def compiled_chain_of(operator: Operator, point: Point, x: Any, out: Any) -> Callable[[], None]:
    """The chain by torch.compile; ``operator``: what its examples are points of."""
    device = out.input_slots.device
    if point.cache_mode == "all":
        return _run_all_states(point, x, out, compiled(_all_states, _run_all_states, operator, _EXAMPLES_ALL, device))
    return _run_window(point, x, out, compiled(_window, _run_window, operator, _EXAMPLES_WINDOW, device))
