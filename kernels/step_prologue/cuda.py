"""step_prologue in CUDA C++: the launch of step_prologue.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from baselines.decode_flatten.operator import copied_columns
from baselines.decode_step.operator import schedule_point
from baselines.gather_block_tables.operator import rows_to_write
from baselines.mamba_align_step.operator import table_columns
from baselines.step_prologue.operator import (
    Inputs,
    Outputs,
    indexer_part,
    states_part,
    tables_part,
    with_indexer,
)
from baselines.workloads.integers import cdiv, reciprocal
from baselines.workloads.request_slots import group_tables, group_widths, num_real, table_starts, warps_per_row
from harness.contract import GPU, Point, variant
from harness.cuda import launcher
from kernels.decode_flatten.cuda import access_width
from kernels.decode_flatten.triton import STRIP_SIZES, request_grid
from kernels.gather_block_tables.triton import strips_of

SOURCE = Path(__file__).with_name("step_prologue.cu")
#: As in the CUDA sources.
THREADS, LANES = 256, 8


def _or_null(tensor: torch.Tensor | None) -> torch.Tensor | ctypes.c_longlong:
    return ctypes.c_longlong(0) if tensor is None else tensor


def _states(point: Point, x: Inputs, out: Outputs) -> tuple[Any, ...]:
    """Arguments of the states; nulls where no group has any."""
    names = ("accepted", "moves", "columns", "source_columns", "source_offsets", "batch_accepted", "state_slots")
    made = tuple(_or_null(getattr(out, name)) for name in (*names, "mask", "starts"))
    before = (_or_null(x.columns_before), _or_null(x.accepted_before))
    if not point.state_groups:
        return (_or_null(None), *before, *made, 0, 0, 0, 1)
    at, state, _ = states_part(point, x, out)
    sizes = (table_columns(at), point.next_n, point.state_groups, point.mamba_block_size)
    return (state.slot_tables, *before, *made, *sizes)


@variant("step_prologue", requires=GPU, sources=SOURCE, sizes=STRIP_SIZES | {"num_sms": (THREADS - 1,)})
def cuda_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The same in CUDA C++, with the device functions of the operators' own kernels."""
    rows, real, capacity, width = point.batch_size, num_real(point), point.max_num_seqs, point.max_decode_len
    _, gathered, _ = tables_part(point, x, out)
    widths = group_widths(point)
    aligned = all(size % 4 == 0 for size in (*widths, *table_starts(point)))
    vector = 4 if aligned and x.tables.data_ptr() % 16 == out.block_tables.data_ptr() % 16 == 0 else 1
    indexer, schedulers, of_lengths = (), 0, 0
    if with_indexer(point):
        at, step, made = indexer_part(point, x, out)
        vector = min(vector, access_width(step, made))
        schedulers = 1 + cdiv(point.num_sms + 1, THREADS)
        flatten = point.indexer == "flatten"
        across, strips = request_grid(step, made, THREADS * vector) if flatten else (cdiv(rows * width, THREADS), 1)
        of_lengths = across * strips
        indexer = (
            made.lens,
            made.decode_lens,
            made.block_table,
            made.schedule,
            made.tile_scheduler_metadata,
            made.num_splits,
            schedulers,
            of_lengths,
            strips,
            width,
            step.num_decode_tokens,
            point.block_size,
            copied_columns(step, made),
            group_tables(point, x.tables)[0].stride(0),
            made.block_table.stride(0),
            point.num_sms,
            *reciprocal(point.num_sms),
            schedule_point(at, "native").atoms,
            int(point.remainder == "back"),
            point.num_sm_parts,
            at.overhead,
            *reciprocal(point.num_sm_parts),
        )
    of_inputs = max(cdiv(real, THREADS // 32), cdiv(capacity - real, THREADS))
    of_slots = max(cdiv(rows, THREADS // 32), cdiv(point.max_num_batched_tokens, 4 * THREADS))
    row_strips = warps_per_row(point)
    of_states = cdiv(rows, THREADS // LANES) if point.state_groups else 0
    strips = strips_of(point, THREADS * vector, THREADS)
    of_tables = rows_to_write(point) * strips
    groups = point.num_groups
    blocks = schedulers + (of_inputs + of_slots * groups) * row_strips + of_states + of_lengths + of_tables * groups
    states = _states(point, x, out) if indexer or point.state_groups else ()
    name = point.indexer if indexer else "states_base" if states else "base"
    return launcher(
        SOURCE,
        f"{name}_vec{vector}",
        blocks,
        THREADS,
        x.idx,
        x.query_start_loc,
        x.cu_num_logits,
        x.num_computed,
        x.last,
        x.draft,
        x.prompt_lens_device if x.prompt_lens_host is None else x.prompt_lens_host,
        x.all_ids_device if x.all_ids_host is None else x.all_ids_host,
        x.tables,
        x.starts,
        x.widths,
        x.block_sizes,
        x.reach,
        x.enabled,
        gathered.num_blocks,
        out.seq_lens,
        out.positions,
        out.input_ids,
        out.next_prefill,
        out.logits_indices,
        out.expanded_idx,
        out.expanded_pos,
        out.drafted,
        out.logit_positions,
        out.block_tables,
        out.slots,
        rows,
        real,
        capacity,
        point.next_n - 1,
        point.history_len,
        point.look_ahead,
        point.max_num_batched_tokens,
        point.num_groups,
        row_strips,
        of_inputs,
        of_slots,
        of_states,
        of_tables,
        strips,
        *states,
        *indexer,
    )
