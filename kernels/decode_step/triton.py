"""decode_step in Triton: every table of a step in one launch, where the operators' own kernels take three or four.

    triton_sequence, cuda_sequence    the operators' kernels one after another (sequence.py): the schedule reads the
                                      lengths written before
    triton_fused, cuda_fused          one launch: some blocks expand rows, some build the schedules, and none waits for
                                      another

Launches of one stream run one after another, so a sequence pays for each kernel from its first load to its last store.
In one launch the step takes as long as its longest part, the tile schedule, provided that every part can work from the
step's inputs. The paged-MQA schedule over flat tokens can: the segments of a request's tokens have a closed form, also
on one of several context-parallel ranks, and the token that holds a segment is found by walking over the tokens of one
request. So B requests are scanned, not T lengths, and nothing is read that another block writes.

The block of the tile schedule limits the launch: with the tile schedule of one warp the CUDA kernel became faster
again.

Programmatic dependent launch is not used: slope and queued events disagree about it, because they then time launches
that overlap copies of themselves, which no engine submits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.decode_step.operator import Inputs, Outputs, schedule_point
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch
from spec_decode_bench.kernels.dcp_lengths.triton import rank_constants
from spec_decode_bench.kernels.decode_flatten import triton as decode_flatten
from spec_decode_bench.kernels.decode_flatten.triton import STRIP_SIZES, flatten_rows
from spec_decode_bench.kernels.decode_native.triton import context_len
from spec_decode_bench.kernels.mla_tile_schedule import triton as mla_tile_schedule
from spec_decode_bench.kernels.mla_tile_schedule.triton import tile_schedule
from spec_decode_bench.kernels.paged_mqa_schedule import triton as paged_mqa_schedule
from spec_decode_bench.kernels.paged_mqa_schedule.triton import schedule_rows

#: Table columns of a program: 16 bytes per thread of 8 warps, the number that suits the tile schedule.
COLUMNS = 1024
#: (B, L) lengths of a program on the native path.
ENTRIES = 256
NUM_WARPS = 8


#: Fields of the inputs and outputs that the kernels read, and further ones on the flatten path, of which the last two
#: are None.
INPUTS = ("seq_lens", "query_start_loc")
OUTPUTS = ("lens", "decode_lens", "schedule", "tile_scheduler_metadata", "num_splits")
FLATTEN_OUTPUTS = ("block_table", "indices", "request_lens")


class Sizes(NamedTuple):
    """num_schedulers: programs in front. width: columns of (B, L), L. tiles, schedule: of the parts."""

    num_schedulers: int
    width: int
    tiles: mla_tile_schedule.Sizes
    schedule: paged_mqa_schedule.Sizes


def sizes(point: Point, x: Inputs, num_schedulers: int) -> Sizes:
    """x: of the step, whose path decides what the paged-MQA schedule is over."""
    batch_size, width = point.batch_size, point.max_decode_len
    if point.decode_path == "flatten":
        schedule = paged_mqa_schedule.sizes(point, batch_size, width, x.num_decode_tokens)
    else:
        atoms = schedule_point(point, "native").atoms
        schedule = paged_mqa_schedule.sizes(point, batch_size, atoms, batch_size * atoms)
    return Sizes(num_schedulers, width, mla_tile_schedule.sizes(point, x), schedule)


@triton.jit
def build_schedule(
    program,
    seq_lens,
    query_start_loc,
    out,
    n,
    TOKENS: tl.constexpr,
    SCHEDULE: tl.constexpr,
    TILES: tl.constexpr,
):
    """One of the programs in front: the tile schedule, or SCHEDULE.SLOTS rows of the paged-MQA schedule."""
    if program == 0:
        tile_schedule(seq_lens, out, n.tiles, TILES)
    else:
        schedule_rows(program - 1, seq_lens, query_start_loc, 1, out.schedule, n.schedule, TOKENS, SCHEDULE)


@triton.jit
def decode_step_flatten_kernel(
    n,
    x,
    out,
    block_table,
    flatten,
    source_stride,
    table_stride,
    BLOCK_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    SCHEDULE: tl.constexpr,
    TILES: tl.constexpr,
    RANKS: tl.constexpr,
    RANK: tl.constexpr,
    INTERLEAVE: tl.constexpr,
):
    program, strip = tl.program_id(0), tl.program_id(1)
    if program >= n.num_schedulers:
        request, strips = program - n.num_schedulers, tl.num_programs(1)
        flatten_rows(
            request,
            strip,
            strips,
            x.seq_lens,
            x.query_start_loc,
            block_table,
            out,
            flatten,
            source_stride,
            table_stride,
            BLOCK_SIZE,
            COLUMNS,
            None,
            RANKS,
            RANK,
            INTERLEAVE,
        )
    elif strip == 0:
        build_schedule(program, x.seq_lens, x.query_start_loc, out, n, True, SCHEDULE, TILES)


@triton.jit
def decode_step_native_kernel(
    n,
    x,
    out,
    ENTRIES: tl.constexpr,
    SCHEDULE: tl.constexpr,
    TILES: tl.constexpr,
    RANKS: tl.constexpr,
    RANK: tl.constexpr,
    INTERLEAVE: tl.constexpr,
):
    program, width = tl.program_id(0), n.width
    if program >= n.num_schedulers:
        i = (program - n.num_schedulers) * ENTRIES + tl.arange(0, ENTRIES)
        inside = i < n.schedule.batch_size * width
        b, j = i // width, i % width
        seq_len = tl.load(x.seq_lens + b, mask=inside, other=0)
        start = tl.load(x.query_start_loc + b, mask=inside, other=0)
        end = tl.load(x.query_start_loc + b + 1, mask=inside, other=0)
        tl.store(out.lens + i, context_len(seq_len, width, j, 1, RANKS, RANK, INTERLEAVE), mask=inside)
        tl.store(out.decode_lens + b, end - start, mask=inside & (j == 0))
    else:
        build_schedule(program, x.seq_lens, x.query_start_loc, out, n, False, SCHEDULE, TILES)


@variant("decode_step", sizes=STRIP_SIZES)
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch. The first program builds the tile schedule, the next ones the paged-MQA schedule, the rest lengths
    and rows.
    """
    programs, schedule = paged_mqa_schedule.tiling(point.batch_size, point.num_sms)
    num_schedulers = 1 + programs
    tiles, ranks = mla_tile_schedule.tiling(point.batch_size, point.num_sm_parts, point.layout), rank_constants(point)
    first, log2 = paged_mqa_schedule.rank_segments(point)
    schedule, tiles = schedule._replace(FIRST=first, LOG2=log2), tiles._replace(**ranks)
    shapes = {"SCHEDULE": schedule, "TILES": tiles, "num_warps": NUM_WARPS} | ranks
    inputs, n = bundle(x, *INPUTS), sizes(point, x, num_schedulers)
    if point.decode_path == "flatten":
        across, strips = decode_flatten.request_grid(x, out, COLUMNS)
        tables = x.block_table, decode_flatten.sizes(x, out), x.block_table.stride(0), out.block_table.stride(0)
        arguments = n, inputs, bundle(out, *OUTPUTS, *FLATTEN_OUTPUTS), *tables
        shapes |= {"BLOCK_SIZE": point.block_size, "COLUMNS": COLUMNS}
        return fixed_launch(decode_step_flatten_kernel, (num_schedulers + across, strips), *arguments, **shapes)
    grid = (num_schedulers + cdiv(point.batch_size * point.max_decode_len, ENTRIES),)
    return fixed_launch(decode_step_native_kernel, grid, n, inputs, bundle(out, *OUTPUTS), ENTRIES=ENTRIES, **shapes)
