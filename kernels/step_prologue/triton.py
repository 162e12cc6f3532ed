"""step_prologue in Triton: one launch, in which programs specialise and none waits for another.

    cuda_sequence               the fused kernels of the parts one after another (sequence.py): three to eight launches
    triton_fused, cuda_fused    one launch

Parts seem to depend on each other: slot mappings on positions, the indexer on lengths and tables in batch order. But
positions are counts by slot plus the token's number, lengths counts plus query tokens, and a row in batch order is a
row by slot. So every program works from slots, query starts and the state by slot, and nothing is carried from program
to program. Only adaptive verification, which changes query starts by a top-k over the whole grid, needs a launch
before.

The programs of the schedules first gather all lengths. Triton cannot index shared memory, so each writes them into a
row of scratch memory of its own and reads them back behind a barrier of the program.

step_prologue.cu has the versions that were tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from spec_decode_bench.baselines.gather_block_tables.operator import rows_to_write
from spec_decode_bench.baselines.step_prologue.operator import (
    Inputs,
    Outputs,
    indexer_part,
    states_part,
    with_indexer,
)
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import group_tables, num_real, row_tiling
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch
from spec_decode_bench.kernels.compute_slot_mappings.triton import map_rows
from spec_decode_bench.kernels.decode_flatten import triton as decode_flatten
from spec_decode_bench.kernels.decode_flatten.triton import STRIP_SIZES, flatten_rows
from spec_decode_bench.kernels.decode_native.triton import context_len
from spec_decode_bench.kernels.decode_step import triton as decode_step
from spec_decode_bench.kernels.decode_step.triton import COLUMNS, ENTRIES, NUM_WARPS, build_schedule
from spec_decode_bench.kernels.gather_block_tables.triton import gather_row, strips_of
from spec_decode_bench.kernels.mamba_align_step import triton as mamba_align_step
from spec_decode_bench.kernels.mamba_align_step.triton import before_rows
from spec_decode_bench.kernels.mla_tile_schedule import triton as mla_tile_schedule
from spec_decode_bench.kernels.paged_mqa_schedule import triton as paged_mqa_schedule
from spec_decode_bench.kernels.step_inputs.triton import prepare_rows

#: Rows of a program, entries of a tail that it clears, lengths that it gathers at once.
ROWS, TAIL, GATHERED = 16, 512, 256


class Programs(NamedTuple):
    """How many programs work on each part, in the order of the grid: num_input_blocks for each strip, num_slot_blocks
    for each group and strip, num_table_blocks for each group. row_strips, table_strips, flatten_strips: programs that
    share a long row, a row of a table, a flattened row.
    """

    num_schedulers: int
    num_input_blocks: int
    num_slot_blocks: int
    num_state_blocks: int
    num_length_blocks: int
    num_table_blocks: int
    num_groups: int
    row_strips: int
    table_strips: int
    flatten_strips: int

    def total(self) -> int:
        by_row = (self.num_input_blocks + self.num_slot_blocks * self.num_groups) * self.row_strips
        by_table = self.num_table_blocks * self.num_groups
        return self.num_schedulers + by_row + self.num_state_blocks + self.num_length_blocks + by_table


#: Fields of the inputs and outputs that the kernels read, in the order of their first use.
INPUTS = (
    "idx_mapping",
    "query_start_loc",
    "num_computed_tokens",
    "cu_num_logits",
    "draft_tokens",
    "last_sampled_tokens",
    "prompt_lens",
    "all_token_ids",
    "block_sizes",
    "starts",
    "widths",
    "enabled",
    "tables",
    "reach",
    "num_blocks",
)
OUTPUTS = (
    "seq_lens",
    "next_prefill_tokens",
    "input_ids",
    "positions",
    "logits_indices",
    "expanded_idx_mapping",
    "expanded_local_pos",
    "logit_positions",
    "draft_sampled",
    "slot_mappings",
    "block_tables",
)


class Sizes(NamedTuple):
    """k: drafts per request. look_ahead: prompt tokens behind those of the step. new_tokens: sampled tokens."""

    num_reqs: int
    num_reqs_padded: int
    max_num_seqs: int
    max_num_batched_tokens: int
    k: int
    history_len: int
    look_ahead: int
    new_tokens = 1


def sizes(point: Point) -> Sizes:
    rows = num_real(point), point.batch_size, point.max_num_seqs
    return Sizes(*rows, point.max_num_batched_tokens, point.next_n - 1, point.history_len, point.look_ahead)


class Indexer(NamedTuple):
    """What the indexer builds. out, n: of decode_step, flatten: sizes of decode_flatten, whose table by slot is the
    first group's. scratch: [num_schedulers, B] lengths.
    """

    out: tuple
    n: decode_step.Sizes
    flatten: decode_flatten.Sizes
    scratch: torch.Tensor


class Tile(NamedTuple):
    """What the kernel is compiled for. PATH: of the indexer, in tables of blocks of BLOCK_SIZE tokens. LANES: tokens of
    a row at a time. STATES, SCHEDULE, TILES: of the parts, None without them. The others are constants of this file
    and of decode_step.
    """

    PATH: str
    BLOCK_SIZE: int
    ROWS: int
    LANES: int
    TAIL: int
    COLUMNS: int
    ENTRIES: int
    GATHERED: int
    STATES: mamba_align_step.Tile | None
    SCHEDULE: paged_mqa_schedule.Tile | None
    TILES: mla_tile_schedule.Tile | None


@triton.jit
def gather_lengths(x, num_computed_tokens, lengths, rows, GATHERED: tl.constexpr):
    """Lengths after the step of all rows, 0 for padding; the program may read them when this returns."""
    for first in range(0, rows, GATHERED):
        b = first + tl.arange(0, GATHERED)
        s = tl.load(x.idx_mapping + b, mask=b < rows, other=-1)
        end = tl.load(x.query_start_loc + b + 1, mask=s >= 0, other=0)
        query = end - tl.load(x.query_start_loc + b, mask=s >= 0, other=0)
        tl.store(lengths + b, tl.load(num_computed_tokens + s, mask=s >= 0, other=0) + query, mask=b < rows)
    tl.debug_barrier()


@triton.jit
def native_rows(program, x, num_computed_tokens, out, rows, width, ENTRIES: tl.constexpr):
    """ENTRIES of the (B, L) lengths, and rows per request."""
    i = program * ENTRIES + tl.arange(0, ENTRIES)
    inside = i < rows * width
    b, j = i // width, i % width
    s = tl.load(x.idx_mapping + b, mask=inside, other=-1)
    end = tl.load(x.query_start_loc + b + 1, mask=inside, other=0)
    query = end - tl.load(x.query_start_loc + b, mask=inside, other=0)
    length = tl.load(num_computed_tokens + s, mask=s >= 0, other=0) + query
    tl.store(out.lens + i, context_len(length, width, j, 1), mask=inside)
    tl.store(out.decode_lens + b, query, mask=inside & (j == 0))


@triton.jit
def step_prologue_kernel(programs, n, x, out, indexer, source_stride, expanded_stride, states, TILE: tl.constexpr):
    """indexer: an Indexer, or None. states: Arguments of mamba_align_step, or None. source_stride, expanded_stride: of
    rows that are flattened; outside the bundles, as Triton shall specialize on them.
    """
    # The longest chains of dependent instructions come first: schedules, then inputs, then copies.
    num_computed_tokens, rows, row_strips = x.num_computed_tokens, n.num_reqs_padded, programs.row_strips
    program = tl.program_id(0)
    if TILE.PATH != "none":  # noqa: SIM102  (known when it is compiled)
        if program < programs.num_schedulers:
            lengths, starts = indexer.scratch + program * rows, x.query_start_loc
            gather_lengths(x, num_computed_tokens, lengths, rows, TILE.GATHERED)
            is_flat = TILE.PATH == "flatten"
            build_schedule(program, lengths, starts, indexer.out, indexer.n, is_flat, TILE.SCHEDULE, TILE.TILES)
    program -= programs.num_schedulers
    blocks = programs.num_input_blocks
    if (program >= 0) & (program < blocks * row_strips):
        block, strip = program % blocks, program // blocks
        prepare_rows(block, strip, row_strips, x, out, n, 1, TILE.ROWS, TILE.LANES, TILE.TAIL)
    program -= blocks * row_strips
    blocks = programs.num_slot_blocks
    if (program >= 0) & (program < blocks * row_strips * programs.num_groups):
        block, strip, g = program % blocks, program // blocks % row_strips, program // (blocks * row_strips)
        map_rows(block, g, strip, row_strips, x, out, n, num_computed_tokens, 1, 0, 1, TILE.ROWS, TILE.LANES, TILE.TAIL)
    program -= blocks * row_strips * programs.num_groups
    if states is not None:
        if (program >= 0) & (program < programs.num_state_blocks):
            before_rows(program, states.x, states.out, states.n, TILE.STATES.ROWS, TILE.STATES.SLOTS)
        program -= programs.num_state_blocks
    if TILE.PATH == "flatten":
        if (program >= 0) & (program < programs.num_length_blocks):
            strips = programs.flatten_strips
            flatten_rows(
                program // strips,
                program % strips,
                strips,
                num_computed_tokens,
                x.query_start_loc,
                x.tables,
                indexer.out,
                indexer.flatten,
                source_stride,
                expanded_stride,
                TILE.BLOCK_SIZE,
                TILE.COLUMNS,
                x.idx_mapping,
            )
        program -= programs.num_length_blocks
    if TILE.PATH == "native":
        if (program >= 0) & (program < programs.num_length_blocks):
            native_rows(program, x, num_computed_tokens, indexer.out, rows, indexer.n.width, TILE.ENTRIES)
        program -= programs.num_length_blocks
    if program >= 0:
        blocks, strips = programs.num_table_blocks, programs.table_strips
        row, strip, g = program % blocks // strips, program % strips, program // blocks
        gather_row(row, strip, strips, g, x, out, n, TILE.COLUMNS)


@variant("step_prologue", sizes=STRIP_SIZES)
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch for every part; programs of the schedules come first."""
    rows, num_reqs, capacity = point.batch_size, num_real(point), point.max_num_seqs
    num_warps = NUM_WARPS if with_indexer(point) else 4
    lanes, row_strips = row_tiling(point)
    table_strips = strips_of(point, COLUMNS, 32 * num_warps)
    programs = Programs(
        num_schedulers=0,
        num_input_blocks=max(cdiv(num_reqs, ROWS), cdiv(capacity - num_reqs, TAIL)),
        num_slot_blocks=max(cdiv(rows, ROWS), cdiv(point.max_num_batched_tokens, TAIL)),
        num_state_blocks=0,
        num_length_blocks=0,
        num_table_blocks=rows_to_write(point) * table_strips,
        num_groups=point.num_groups,
        row_strips=row_strips,
        table_strips=table_strips,
        flatten_strips=1,
    )
    states = indexer = state_tile = schedule = tiles = None
    source_stride = expanded_stride = 0
    if point.state_groups:
        states, state_tile = (
            mamba_align_step.arguments(*states_part(point, x, out)),
            mamba_align_step.tiling(point, 256),
        )
        programs = programs._replace(num_state_blocks=cdiv(rows, state_tile.ROWS))
    if with_indexer(point):
        at, step, made = indexer_part(point, x, out)
        count, schedule = paged_mqa_schedule.tiling(rows, point.num_sms)
        tiles = mla_tile_schedule.tiling(rows, point.num_sm_parts, at.layout)
        source_stride, expanded_stride = group_tables(point, x.tables)[0].stride(0), made.block_table.stride(0)
        built = bundle(made, *decode_step.OUTPUTS, *decode_step.FLATTEN_OUTPUTS)
        scratch = torch.empty(1 + count, rows, dtype=torch.int32, device=made.lens.device)
        indexer = Indexer(built, decode_step.sizes(at, step, 1 + count), decode_flatten.sizes(step, made), scratch)
        across, strips = cdiv(rows * point.max_decode_len, ENTRIES), 1
        if point.indexer == "flatten":
            across, strips = decode_flatten.request_grid(step, made, COLUMNS)
        lengths = {"num_length_blocks": across * strips, "flatten_strips": strips}
        programs = programs._replace(num_schedulers=1 + count, **lengths)
    tile = Tile(
        PATH=point.indexer,
        BLOCK_SIZE=point.block_size,
        ROWS=ROWS,
        LANES=lanes,
        TAIL=TAIL,
        COLUMNS=COLUMNS,
        ENTRIES=ENTRIES,
        GATHERED=GATHERED,
        STATES=state_tile,
        SCHEDULE=schedule,
        TILES=tiles,
    )
    return fixed_launch(
        step_prologue_kernel,
        (programs.total(),),
        programs,
        sizes(point),
        bundle(x, *INPUTS),
        bundle(out, *OUTPUTS),
        indexer,
        source_stride,
        expanded_stride,
        states,
        TILE=tile,
        num_warps=num_warps,
    )
