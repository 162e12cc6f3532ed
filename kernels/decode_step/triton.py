"""decode_step in Triton: every table of a step in one launch, where the operators' own kernels take three or four.

    triton_sequence, cuda_sequence    the operators' kernels one after another (chains.py): the schedule reads the
                                      lengths written before
    triton_fused, cuda_fused          one launch: some blocks expand rows, some build the schedules, and none waits for
                                      another. Half the time of the sequence

Launches of one stream run one after another, so a sequence pays for each kernel from its first load to its last store.
In one launch the step takes as long as its longest part, the tile schedule, provided that every part can work from the
step's inputs. The paged-MQA schedule over flat tokens can: the segments of a request's tokens have a closed form, and
the token that holds a segment is found by walking over the tokens of one request. So B requests are scanned, not T
lengths, and nothing is read that another block writes.

The block of the tile schedule limits the launch. Versions, us on an H200 at B = 128 (lengths 4096 to 8192, flatten):

    kernels one after another                       Triton 5.67    CUDA C++ 5.37
    one launch                                      Triton 2.81    CUDA C++ 2.36
    with the tile schedule of one warp                             CUDA C++ 1.85

Programmatic dependent launch (slope 1.57, queued events 0.91) is not used: the timers disagree, because they then time
launches that overlap copies of themselves, which no engine submits.
"""

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl

from baselines.decode_flatten.operator import copied_columns
from baselines.decode_step.operator import Inputs, Outputs, schedule_point
from baselines.workloads.integers import cdiv, reciprocal
from harness.contract import Point, variant
from harness.launch import fixed_launch
from kernels.decode_flatten import triton as decode_flatten
from kernels.decode_flatten.triton import STRIP_SIZES, flatten_rows
from kernels.decode_native.triton import context_len
from kernels.mla_tile_schedule import triton as mla_tile_schedule
from kernels.mla_tile_schedule.triton import tile_schedule
from kernels.paged_mqa_schedule import triton as paged_mqa_schedule
from kernels.paged_mqa_schedule.triton import schedule_rows

#: Table columns of a program: 16 bytes per thread of 8 warps, the number that suits the tile schedule.
COLUMNS = 1024
#: (B, L) lengths of a program on the native path.
ENTRIES = 256
NUM_WARPS = 8


@triton.jit
def build_schedule(
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
            ENDS=ENDS,
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


#: Integers of both kernels that Triton must not specialise on: it would recompile for 1 and for multiples of 16.
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
        build_schedule(
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
        build_schedule(
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


@variant("decode_step", sizes=STRIP_SIZES)
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch. The first program builds the tile schedule, the next ones the paged-MQA schedule, the rest lengths
    and rows.
    """
    size, width = point.batch_size, point.max_decode_len
    programs, schedule_sizes = paged_mqa_schedule.tiling(size, point.num_sms)
    schedulers = 1 + programs
    sizes = {
        **schedule_sizes,
        **mla_tile_schedule.tiling(size, point.num_sm_parts, point.layout),
        "num_warps": NUM_WARPS,
    }
    sms = (point.num_sms, *reciprocal(point.num_sms))
    rest = (int(point.remainder == "back"), point.num_sm_parts, point.overhead)
    if point.decode_path == "flatten":
        source, table, block_size = x.block_table, out.block_table, point.block_size
        capacity, columns = out.lens.numel(), copied_columns(x, out)
        across, strips = decode_flatten.request_grid(x, out, COLUMNS)
        return fixed_launch(
            _flatten_step,
            (schedulers + across, strips),
            x.seq_lens,
            x.query_start_loc,
            out.schedule,
            out.tile_scheduler_metadata,
            out.num_splits,
            schedulers,
            size,
            *sms,
            width,
            x.num_decode_tokens,
            *rest,
            source,
            out.lens,
            out.decode_lens,
            table,
            capacity,
            columns,
            source.stride(0),
            table.stride(0),
            BLOCK_SIZE=block_size,
            COLUMNS=COLUMNS,
            **sizes,
        )
    atoms, entries = schedule_point(point, "native").atoms, cdiv(size * width, ENTRIES)
    return fixed_launch(
        _native_step,
        (schedulers + entries,),
        x.seq_lens,
        x.query_start_loc,
        out.schedule,
        out.tile_scheduler_metadata,
        out.num_splits,
        schedulers,
        size,
        *sms,
        atoms,
        size * atoms,
        *rest,
        out.lens,
        out.decode_lens,
        width,
        ENTRIES=ENTRIES,
        **sizes,
    )
