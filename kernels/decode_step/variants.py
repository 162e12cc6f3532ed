"""decode_step, fused: every table of a step in one launch, where the operators' own kernels take three or four.

    triton_sequence, cuda_sequence    the fused operators one after another: the schedule reads the lengths written before it
    triton_fused, cuda_fused          one launch: some blocks expand rows, some build the schedules, none waits for another

Launches of one stream run one after another, so a sequence pays for each of its kernels from the first load to the last
store. In one launch the step takes as long as its longest part, the tile schedule, if every part can work from the
step's inputs. The paged-MQA schedule over flat tokens can: the segments of a request's tokens have a closed form, and
the token that holds a segment is found by walking over the tokens of one request. So B requests are scanned, not T
lengths, and nothing is read that another block writes.

On an H200, us (floor at B = 128, flattened: 1.13, aim: 4):

    batch, path, parts       triton_fused   cuda_fused   triton_sequence   cuda_sequence   op_chain (launches)
    128, flatten, 16         2.82           2.37         5.7               5.4             177 (124)
    128, native, 16          2.47           2.29         6.4               5.8             157 (113)
    1024, flatten, 132       6.49           4.57         14.2              9.7             296 (132)

What keeps it from the floor is the tile-schedule block: alone it takes 2.01 and 2.19 at B = 128, 5.57 and 3.94 at B =
1024 with 132 parts.
"""

from __future__ import annotations

from pathlib import Path

import torch
import triton
import triton.language as tl

from baselines.workloads.integers import cdiv, reciprocal
from harness.contract import GPU, variant
from harness.cuda import launcher
from kernels.decode_flatten import _kernels as flatten
from kernels.decode_flatten._kernels import flatten_rows
from kernels.decode_native import _kernels as native
from kernels.decode_native._kernels import context_len
from kernels.mla_tile_schedule import _kernels as tiles
from kernels.mla_tile_schedule._kernels import tile_schedule
from kernels.paged_mqa_schedule import _kernels as paged
from kernels.paged_mqa_schedule._kernels import schedule_rows

SOURCE = Path(__file__).with_name("decode_step.cu")
#: As in the CUDA source. A Triton program has as many, for the tile schedule.
THREADS = 256
#: Table columns of a Triton program: 16 bytes per thread.
COLUMNS = 4 * THREADS


def _is_flat(point) -> bool:
    return point.decode_path == "flatten"


def _atoms(point) -> int:
    """Query atoms of a row of the paged-MQA batch: one per flat token, one per two tokens of a request."""
    return 1 if _is_flat(point) else cdiv(point.max_decode_len, 2)


# --- the operators one after another ----------------------------------------------------------------------------------


def _sequence(point, x, out, flatten_step, native_step, schedule, tile_step):
    """Launches of one backend in the order of a step. On the native path the rows per request take a launch of their
    own.
    """
    size, width, back = point.batch_size, point.max_decode_len, point.remainder == "back"
    if _is_flat(point):
        launches = [flatten_step(x, out, point.block_size)]
        queries = out.lens[: x.num_decode_tokens]
    else:
        decode_lens, start, end = out.decode_lens[:size], x.query_start_loc[:-1], x.query_start_loc[1:]
        launches = [
            lambda: torch.sub(end, start, out=decode_lens),
            native_step(x.seq_lens, decode_lens, out.lens, width, 1, False),
        ]
        queries = out.lens[: size * width].view(size, width)[:, -1]
    launches.append(schedule(queries, out.schedule, point.num_sms, _atoms(point), back))
    metadata, num_splits = out.tile_scheduler_metadata, out.num_splits
    launches.append(
        tile_step(x.seq_lens, metadata, num_splits, point.num_sm_parts, point.overhead, point.layout == "old")
    )

    def launch():
        for one in launches:
            one()

    return launch


@variant("decode_step")
def triton_sequence(point, x, out):
    """The fused Triton kernels of the operators in sequence: three launches, four on the native path."""
    return _sequence(
        point, x, out, flatten.triton_flatten, native.triton_context_lens, paged.triton_schedule, tiles.triton_tiles
    )


@variant("decode_step", requires=GPU, sources=[part.SOURCE for part in (flatten, native, paged, tiles)])
def cuda_sequence(point, x, out):
    """The fused CUDA kernels of the operators in sequence: three launches, four on the native path."""
    return _sequence(
        point, x, out, flatten.cuda_flatten, native.cuda_context_lens, paged.cuda_schedule, tiles.cuda_tiles
    )


# --- one launch -------------------------------------------------------------------------------------------------------


@triton.jit
def _build_schedule(
    program,
    seq_lens,
    query_start_loc,
    schedule,
    metadata,
    num_splits,
    batch_size,
    num_sms,
    multiplier,
    shift,
    factor,
    queries,
    back,
    num_parts,
    overhead,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    OLD: tl.constexpr,
    REQUESTS: tl.constexpr,
    ENDS: tl.constexpr,
    PARTS: tl.constexpr,
    TEAM: tl.constexpr,
):
    """One of the programs in front: the tile schedule, or SLOTS rows of the paged-MQA schedule."""
    if program == 0:
        tile_schedule(
            seq_lens,
            metadata,
            num_splits,
            batch_size,
            num_parts,
            overhead,
            OLD=OLD,
            REQUESTS=REQUESTS,
            COLUMNS=ENDS,
            PARTS=PARTS,
            TEAM=TEAM,
        )
    else:
        schedule_rows(
            program - 1,
            seq_lens,
            query_start_loc,
            schedule,
            batch_size,
            1,
            num_sms,
            multiplier,
            shift,
            factor,
            queries,
            back,
            TOKENS=TOKENS,
            ROWS=ROWS,
            SLOTS=SLOTS,
        )


_SIZES = [
    "schedulers",
    "batch_size",
    "num_sms",
    "multiplier",
    "shift",
    "factor",
    "queries",
    "back",
    "num_parts",
    "overhead",
]


@triton.jit(do_not_specialize=[*_SIZES, "capacity", "columns"])
def _flatten_step(
    seq_lens,
    query_start_loc,
    schedule,
    metadata,
    num_splits,
    schedulers,
    batch_size,
    num_sms,
    multiplier,
    shift,
    factor,
    queries,
    back,
    num_parts,
    overhead,
    source,
    lens,
    decode_lens,
    table,
    capacity,
    columns,
    source_stride,
    table_stride,
    BLOCK_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    OLD: tl.constexpr,
    REQUESTS: tl.constexpr,
    ENDS: tl.constexpr,
    PARTS: tl.constexpr,
    TEAM: tl.constexpr,
):
    program, strip = tl.program_id(0), tl.program_id(1)
    if program >= schedulers:
        flatten_rows(
            program - schedulers,
            strip,
            tl.num_programs(1),
            seq_lens,
            query_start_loc,
            source,
            lens,
            decode_lens,
            table,
            batch_size,
            queries,
            capacity,
            columns,
            source_stride,
            table_stride,
            BLOCK_SIZE=BLOCK_SIZE,
            COLUMNS=COLUMNS,
        )
    elif strip == 0:
        _build_schedule(
            program,
            seq_lens,
            query_start_loc,
            schedule,
            metadata,
            num_splits,
            batch_size,
            num_sms,
            multiplier,
            shift,
            factor,
            queries,
            back,
            num_parts,
            overhead,
            TOKENS=True,
            ROWS=ROWS,
            SLOTS=SLOTS,
            OLD=OLD,
            REQUESTS=REQUESTS,
            ENDS=ENDS,
            PARTS=PARTS,
            TEAM=TEAM,
        )


@triton.jit(do_not_specialize=[*_SIZES, "width"])
def _native_step(
    seq_lens,
    query_start_loc,
    schedule,
    metadata,
    num_splits,
    schedulers,
    batch_size,
    num_sms,
    multiplier,
    shift,
    factor,
    queries,
    back,
    num_parts,
    overhead,
    lens,
    decode_lens,
    width,
    ENTRIES: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    OLD: tl.constexpr,
    REQUESTS: tl.constexpr,
    ENDS: tl.constexpr,
    PARTS: tl.constexpr,
    TEAM: tl.constexpr,
):
    program = tl.program_id(0)
    if program >= schedulers:
        i = (program - schedulers) * ENTRIES + tl.arange(0, ENTRIES)
        inside = i < batch_size * width
        b, j = i // width, i % width
        seq_len = tl.load(seq_lens + b, mask=inside, other=0)
        start = tl.load(query_start_loc + b, mask=inside, other=0)
        end = tl.load(query_start_loc + b + 1, mask=inside, other=0)
        tl.store(lens + i, context_len(seq_len, width, j, 1), mask=inside)
        tl.store(decode_lens + b, end - start, mask=inside & (j == 0))
    else:
        _build_schedule(
            program,
            seq_lens,
            query_start_loc,
            schedule,
            metadata,
            num_splits,
            batch_size,
            num_sms,
            multiplier,
            shift,
            factor,
            queries,
            back,
            num_parts,
            overhead,
            TOKENS=False,
            ROWS=ROWS,
            SLOTS=SLOTS,
            OLD=OLD,
            REQUESTS=REQUESTS,
            ENDS=ENDS,
            PARTS=PARTS,
            TEAM=TEAM,
        )


@variant("decode_step")
def triton_fused(point, x, out):
    """One launch. The first program builds the tile schedule, the next ones the paged-MQA schedule, the rest lengths
    and rows.
    """
    size, capacity, width = point.batch_size, out.lens.numel(), point.max_decode_len
    programs, rows, slots = paged.grid_of(size, point.num_sms)
    schedulers, tile = 1 + programs, tiles.tiles_of(size, point.num_sm_parts, point.layout == "old")
    built = {"ROWS": rows, "SLOTS": slots, "ENDS": tile.pop("COLUMNS"), **tile, "num_warps": THREADS // 32}
    numbers = (point.num_sms, *reciprocal(point.num_sms))
    rest = (int(point.remainder == "back"), point.num_sm_parts, point.overhead)
    if _is_flat(point):
        columns = flatten.columns_of(x.block_table, out.block_table)
        across, strips = flatten.grid_of(size, columns, COLUMNS, capacity, COLUMNS)

        def launch():
            _flatten_step[(schedulers + across, strips)](
                x.seq_lens,
                x.query_start_loc,
                out.schedule,
                out.tile_scheduler_metadata,
                out.num_splits,
                schedulers,
                size,
                *numbers,
                width,
                x.num_decode_tokens,
                *rest,
                x.block_table,
                out.lens,
                out.decode_lens,
                out.block_table,
                capacity,
                columns,
                x.block_table.stride(0),
                out.block_table.stride(0),
                BLOCK_SIZE=point.block_size,
                COLUMNS=COLUMNS,
                **built,
            )

        return launch
    atoms, entries = _atoms(point), cdiv(size * width, THREADS)

    def launch():
        _native_step[(schedulers + entries,)](
            x.seq_lens,
            x.query_start_loc,
            out.schedule,
            out.tile_scheduler_metadata,
            out.num_splits,
            schedulers,
            size,
            *numbers,
            atoms,
            size * atoms,
            *rest,
            out.lens,
            out.decode_lens,
            width,
            ENTRIES=THREADS,
            **built,
        )

    return launch


@variant("decode_step", requires=GPU, sources=SOURCE)
def cuda_fused(point, x, out):
    """The same in CUDA C++, by the device functions of the operators' own kernels."""
    size, width, source, table = point.batch_size, point.max_decode_len, x.block_table, out.block_table
    schedulers = 1 + cdiv(point.num_sms + 1, THREADS)
    many = "one" if size <= THREADS else "many"
    arguments = (
        x.seq_lens,
        x.query_start_loc,
        out.schedule,
        out.tile_scheduler_metadata,
        out.num_splits,
        schedulers,
        size,
        cdiv(size, THREADS),
        point.num_sms,
        *reciprocal(point.num_sms),
        int(point.remainder == "back"),
        point.num_sm_parts,
        point.overhead,
        *reciprocal(point.num_sm_parts),
        int(point.layout == "old"),
    )
    if not _is_flat(point):
        grid = schedulers + cdiv(size * width, THREADS)
        return launcher(
            SOURCE, f"native_{many}", grid, THREADS, *arguments, out.lens, out.decode_lens, width, _atoms(point)
        )
    columns, capacity, vector = (
        flatten.columns_of(source, table),
        out.lens.numel(),
        flatten.access_width(source, table, out.lens),
    )
    across, strips = flatten.grid_of(size, columns, THREADS * vector, capacity, THREADS * vector)
    return launcher(
        SOURCE,
        f"flatten_vec{vector}_{many}",
        (schedulers + across, strips),
        THREADS,
        *arguments,
        source,
        out.lens,
        out.decode_lens,
        table,
        x.num_decode_tokens,
        capacity,
        point.block_size,
        columns,
        source.stride(0),
        table.stride(0),
    )
