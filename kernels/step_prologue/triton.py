"""step_prologue in Triton: one launch, in which programs specialise and none waits for another.

    cuda_sequence               the fused kernels of the parts one after another (chains.py): three to eight launches
    triton_fused, cuda_fused    one launch

Parts seem to depend on each other: slot mappings on positions, the indexer on lengths and tables in batch order. But
positions are counts by slot plus the token's number, lengths counts plus query tokens, and a row in batch order is a
row by slot. So every program works from slots, query starts and the state by slot, and nothing is carried from program
to program. Only adaptive verification, which changes query starts by a top-k over the whole grid, needs a launch
before.

The programs of the schedules first gather all lengths. Triton cannot index shared memory, so each writes them into a
row of scratch memory of its own and reads them back behind a barrier of the program.

step_prologue.cu has the versions with their times.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

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
from baselines.workloads.request_slots import group_tables, num_real, row_tiling
from harness.contract import Point, variant
from harness.launch import fixed_launch
from kernels.compute_slot_mappings.triton import map_rows
from kernels.decode_flatten import triton as decode_flatten
from kernels.decode_flatten.triton import STRIP_SIZES, flatten_rows
from kernels.decode_native.triton import context_len
from kernels.decode_step.triton import COLUMNS, ENTRIES, NUM_WARPS, build_schedule
from kernels.gather_block_tables.triton import gather_row, strips_of
from kernels.mamba_align_step.triton import before_rows
from kernels.mla_tile_schedule import triton as mla_tile_schedule
from kernels.paged_mqa_schedule import triton as paged_mqa_schedule
from kernels.step_inputs.triton import prepare_rows

#: Rows of a program, entries of a tail that it clears, lengths that it gathers at once.
ROWS, TAIL, GATHERED = 16, 512, 256


@triton.jit
def gather_lengths(idx, query_start_loc, num_computed, lengths, rows, GATHERED: tl.constexpr):
    """Lengths after the step of all rows, 0 for padding; the program may read them when this returns."""
    for first in range(0, rows, GATHERED):
        b = first + tl.arange(0, GATHERED)
        s = tl.load(idx + b, mask=b < rows, other=-1)
        query = tl.load(query_start_loc + b + 1, mask=s >= 0, other=0) - tl.load(
            query_start_loc + b, mask=s >= 0, other=0
        )
        tl.store(lengths + b, tl.load(num_computed + s, mask=s >= 0, other=0) + query, mask=b < rows)
    tl.debug_barrier()


@triton.jit
def native_rows(program, idx, query_start_loc, num_computed, lens, decode_lens, rows, width, ENTRIES: tl.constexpr):
    """ENTRIES of the (B, L) lengths, and rows per request."""
    i = program * ENTRIES + tl.arange(0, ENTRIES)
    inside = i < rows * width
    b, j = i // width, i % width
    s = tl.load(idx + b, mask=inside, other=-1)
    query = tl.load(query_start_loc + b + 1, mask=inside, other=0) - tl.load(query_start_loc + b, mask=inside, other=0)
    length = tl.load(num_computed + s, mask=s >= 0, other=0) + query
    tl.store(lens + i, context_len(length, width, j, 1), mask=inside)
    tl.store(decode_lens + b, query, mask=inside & (j == 0))


#: Integers that Triton must not specialise on: it would recompile for 1 and for multiples of 16.
_SIZES = [
    *("rows", "real", "capacity", "k", "history_len", "look_ahead", "token_capacity", "groups"),
    *(
        "schedulers",
        "row_strips",
        "of_inputs",
        "of_slots",
        "of_tables",
        "strips",
        "of_states",
        "of_lengths",
        "flatten_strips",
    ),
    *("state_width", "slots_per_row", "state_groups", "mamba_block_size"),
    *(
        "width",
        "num_queries",
        "columns",
        "num_sms",
        "multiplier",
        "shift",
        "factor",
        "queries",
        "back",
        "num_parts",
        "overhead",
    ),
]


@triton.jit(do_not_specialize=_SIZES)
def _prologue(
    idx,
    query_start_loc,
    cu_num_logits,
    num_computed,
    last,
    draft,
    prompt_lens,
    all_ids,
    tables,
    starts,
    widths,
    block_sizes,
    reach,
    enabled,
    num_blocks,
    seq_lens,
    positions,
    input_ids,
    next_prefill,
    logits_indices,
    expanded_idx,
    expanded_pos,
    drafted,
    logit_positions,
    block_tables,
    slots,
    rows,
    real,
    capacity,
    k,
    history_len,
    look_ahead,
    token_capacity,
    groups,
    schedulers,
    row_strips,
    of_inputs,
    of_slots,
    of_tables,
    strips,
    of_states,
    of_lengths,
    flatten_strips,
    state_tables,
    columns_before,
    accepted_before,
    accepted,
    moves,
    state_columns,
    source_columns,
    source_offsets,
    batch_accepted,
    state_slots,
    mask,
    state_starts,
    state_width,
    slots_per_row,
    state_groups,
    mamba_block_size,
    first_table,
    lens,
    decode_lens,
    expanded,
    schedule,
    metadata,
    num_splits,
    lengths,
    width,
    num_queries,
    columns,
    source_stride,
    expanded_stride,
    num_sms,
    multiplier,
    shift,
    factor,
    queries,
    back,
    num_parts,
    overhead,
    PATH: tl.constexpr,
    STATES: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    LANES: tl.constexpr,
    TAIL: tl.constexpr,
    STATE_ROWS: tl.constexpr,
    STATE_SLOTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ENTRIES: tl.constexpr,
    GATHERED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr = None,
    SLOTS: tl.constexpr = None,
    OLD: tl.constexpr = None,
    REQUESTS: tl.constexpr = None,
    ENDS: tl.constexpr = None,
    PARTS: tl.constexpr = None,
    TEAM: tl.constexpr = None,
):
    # The longest chains of dependent instructions come first: schedules, then inputs, then copies.
    program = tl.program_id(0)
    if PATH != "none":  # noqa: SIM102  (known when it is compiled)
        if program < schedulers:
            own = lengths + program * rows
            gather_lengths(idx, query_start_loc, num_computed, own, rows, GATHERED)
            build_schedule(
                program,
                own,
                query_start_loc,
                schedule,
                metadata,
                num_splits,
                rows,
                num_sms,
                multiplier,
                shift,
                factor,
                queries,
                back,
                num_parts,
                overhead,
                TOKENS=PATH == "flatten",
                ROWS=ROWS,
                SLOTS=SLOTS,
                OLD=OLD,
                REQUESTS=REQUESTS,
                ENDS=ENDS,
                PARTS=PARTS,
                TEAM=TEAM,
            )
    program -= schedulers
    if (program >= 0) & (program < of_inputs * row_strips):
        prepare_rows(
            program % of_inputs,
            program // of_inputs,
            row_strips,
            idx,
            query_start_loc,
            cu_num_logits,
            num_computed,
            last,
            draft,
            prompt_lens,
            all_ids,
            seq_lens,
            positions,
            input_ids,
            next_prefill,
            logits_indices,
            expanded_idx,
            expanded_pos,
            drafted,
            logit_positions,
            real,
            capacity,
            k,
            history_len,
            look_ahead,
            NEW=1,
            ROWS=TILE_ROWS,
            LANES=LANES,
            TAIL=TAIL,
        )
    program -= of_inputs * row_strips
    if (program >= 0) & (program < of_slots * row_strips * groups):
        map_rows(
            program % of_slots,
            program // (of_slots * row_strips),
            program // of_slots % row_strips,
            row_strips,
            idx,
            query_start_loc,
            num_computed,
            tables,
            starts,
            widths,
            block_sizes,
            enabled,
            enabled,
            slots,
            rows,
            token_capacity,
            0,
            RANKS=1,
            RANK=0,
            INTERLEAVE=1,
            ROWS=TILE_ROWS,
            LANES=LANES,
            TAIL=TAIL,
            COUNTED=True,
        )
    program -= of_slots * row_strips * groups
    if STATES:
        if (program >= 0) & (program < of_states):
            before_rows(
                program,
                idx,
                num_computed,
                columns_before,
                accepted_before,
                query_start_loc,
                state_tables,
                accepted,
                moves,
                state_columns,
                source_columns,
                source_offsets,
                batch_accepted,
                state_slots,
                mask,
                state_starts,
                rows,
                capacity,
                state_width,
                slots_per_row,
                state_groups,
                mamba_block_size,
                ROWS=STATE_ROWS,
                SLOTS=STATE_SLOTS,
            )
        program -= of_states
    if PATH == "flatten":
        if (program >= 0) & (program < of_lengths):
            flatten_rows(
                program // flatten_strips,
                program % flatten_strips,
                flatten_strips,
                num_computed,
                query_start_loc,
                first_table,
                lens,
                decode_lens,
                expanded,
                rows,
                num_queries,
                token_capacity,
                columns,
                source_stride,
                expanded_stride,
                BLOCK_SIZE=BLOCK_SIZE,
                COLUMNS=COLUMNS,
                idx=idx,
            )
        program -= of_lengths
    if PATH == "native":
        if (program >= 0) & (program < of_lengths):
            native_rows(program, idx, query_start_loc, num_computed, lens, decode_lens, rows, width, ENTRIES=ENTRIES)
        program -= of_lengths
    if program >= 0:
        gather_row(
            program % of_tables // strips,
            program % strips,
            strips,
            program // of_tables,
            idx,
            tables,
            num_computed,
            starts,
            widths,
            block_sizes,
            reach,
            num_blocks,
            block_tables,
            real,
            capacity,
            COLUMNS=COLUMNS,
        )


@variant("step_prologue", sizes=STRIP_SIZES)
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch for every part; programs of the schedules come first."""
    rows, real, capacity, width = point.batch_size, num_real(point), point.max_num_seqs, point.max_decode_len
    _, inputs, _ = tables_part(point, x, out)
    num_warps = NUM_WARPS if with_indexer(point) else 4
    strips = strips_of(point, COLUMNS, 32 * num_warps)
    lanes, row_strips = row_tiling(point)
    counts = {
        "row_strips": row_strips,
        "of_inputs": max(cdiv(real, ROWS), cdiv(capacity - real, TAIL)),
        "of_slots": max(cdiv(rows, ROWS), cdiv(point.max_num_batched_tokens, TAIL)),
        "of_tables": rows_to_write(point) * strips,
        "strips": strips,
        "schedulers": 0,
        "of_states": 0,
        "of_lengths": 0,
        "flatten_strips": 1,
    }
    states = dict.fromkeys(
        (
            "state_tables",
            "accepted",
            "moves",
            "source_columns",
            "source_offsets",
            "batch_accepted",
            "state_slots",
            "mask",
        )
    )
    states |= {"columns_before": x.columns_before, "accepted_before": x.accepted_before, "state_columns": None}
    states |= {
        "state_starts": None,
        "state_width": 0,
        "slots_per_row": point.next_n,
        "state_groups": point.state_groups,
    }
    tile = {"STATE_ROWS": 1, "STATE_SLOTS": 1}
    if point.state_groups:
        at, state, made = states_part(point, x, out)
        tile["STATE_SLOTS"] = triton.next_power_of_2(point.next_n)
        tile["STATE_ROWS"] = max(256 // tile["STATE_SLOTS"], 1)
        counts["of_states"] = cdiv(rows, tile["STATE_ROWS"])
        states |= {name: getattr(made, name) for name in states if hasattr(made, name)}
        states |= {"state_tables": state.slot_tables, "state_columns": made.columns, "state_starts": made.starts}
        states |= {"mask": made.mask.view(torch.uint8), "state_width": table_columns(at)}
    tables = dict.fromkeys(
        ("first_table", "lens", "decode_lens", "expanded", "schedule", "metadata", "num_splits", "lengths")
    )
    tables |= dict.fromkeys(
        (
            "width",
            "num_queries",
            "columns",
            "source_stride",
            "expanded_stride",
            "num_sms",
            "multiplier",
            "shift",
            "factor",
        ),
        0,
    )
    tables |= dict.fromkeys(("queries", "back", "num_parts", "overhead"), 0)
    if with_indexer(point):
        at, step, made = indexer_part(point, x, out)
        programs, schedule_sizes = paged_mqa_schedule.tiling(rows, point.num_sms)
        tile |= {**schedule_sizes, **mla_tile_schedule.tiling(rows, point.num_sm_parts, at.layout)}
        counts["schedulers"] = 1 + programs
        first = group_tables(point, x.tables)[0]
        tables |= {
            "first_table": first,
            "lens": made.lens,
            "decode_lens": made.decode_lens,
            "expanded": made.block_table,
            "schedule": made.schedule,
            "metadata": made.tile_scheduler_metadata,
            "num_splits": made.num_splits,
            "lengths": torch.empty(1 + programs, rows, dtype=torch.int32, device=made.lens.device),
            "width": width,
            "num_queries": step.num_decode_tokens,
            "columns": copied_columns(step, made),
            "source_stride": first.stride(0),
            "expanded_stride": made.block_table.stride(0),
            "num_sms": point.num_sms,
            "multiplier": reciprocal(point.num_sms)[0],
            "shift": reciprocal(point.num_sms)[1],
            "back": int(point.remainder == "back"),
            "num_parts": point.num_sm_parts,
            "overhead": at.overhead,
        }
        if point.indexer == "flatten":
            across, counts["flatten_strips"] = decode_flatten.request_grid(step, made, COLUMNS)
            counts["of_lengths"] = across * counts["flatten_strips"]
            tables |= {"factor": width, "queries": step.num_decode_tokens}
        else:
            atoms = schedule_point(at, "native").atoms
            counts["of_lengths"] = cdiv(rows * width, ENTRIES)
            tables |= {"factor": atoms, "queries": rows * atoms}
    grid = (
        counts["schedulers"]
        + counts["of_inputs"] * counts["row_strips"]
        + counts["of_slots"] * counts["row_strips"] * point.num_groups
        + counts["of_states"]
        + counts["of_lengths"]
        + counts["of_tables"] * point.num_groups,
    )

    return fixed_launch(
        _prologue,
        grid,
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
        x.enabled.view(torch.uint8),
        inputs.num_blocks,
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
        **counts,
        **states,
        mamba_block_size=point.mamba_block_size,
        **tables,
        **tile,
        PATH=point.indexer,
        STATES=point.state_groups > 0,
        TILE_ROWS=ROWS,
        LANES=lanes,
        TAIL=TAIL,
        COLUMNS=COLUMNS,
        ENTRIES=ENTRIES,
        GATHERED=GATHERED,
        BLOCK_SIZE=point.block_size,
        num_warps=num_warps,
    )
