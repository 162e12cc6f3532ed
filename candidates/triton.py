"""Candidates in Triton of w/kernels: python bench.py CONFIG --variants candidates/triton.py"""

import triton
import triton.language as tl

from baselines.paged_mqa_schedule.operator import request_lens
from baselines.workloads.integers import cdiv, reciprocal
from harness.contract import variant
from harness.launch import fixed_launch
from kernels.k_quant_gather import triton as gather
from kernels.paged_mqa_schedule.triton import _weight
from kernels.seq_lens_update import triton as update

# --- paged_mqa_schedule: 32-bit reductions, one warp per program


@triton.jit(do_not_specialize=["lens", "batch_size", "row_stride", "num_sms", "multiplier", "shift", "atoms", "back"])
def _schedule(
    lens,
    table,
    batch_size,
    row_stride,
    num_sms,
    multiplier,
    shift,
    atoms,
    back,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    rows = tl.arange(0, ROWS)
    first = tl.cumsum(_weight(lens, lens, rows, batch_size, row_stride, False), 0)
    before = tl.max(first, 0)
    total = before
    for begin in range(ROWS, batch_size, ROWS):
        total += tl.sum(_weight(lens, lens, begin + rows, batch_size, row_stride, False), 0)

    units = total * atoms
    share = ((units.to(tl.int64) * multiplier) >> shift).to(tl.int32)
    rest = units - share * num_sms
    slot = tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
    start = slot * share + tl.where(back != 0, tl.maximum(slot - num_sms + rest, 0), tl.minimum(slot, rest))

    # Requests that end at or before a start, and their segments: prefixes grow, so the largest is their sum.
    ended = first[None, :] * atoms <= start[:, None]
    request = tl.sum(ended.to(tl.int32), 1)
    passed = tl.max(tl.where(ended, first[None, :], 0), 1)
    for begin in range(ROWS, batch_size, ROWS):
        prefix = before + tl.cumsum(_weight(lens, lens, begin + rows, batch_size, row_stride, False), 0)
        before = tl.max(prefix, 0)
        ended = prefix[None, :] * atoms <= start[:, None]
        request += tl.sum(ended.to(tl.int32), 1)
        passed = tl.maximum(passed, tl.max(tl.where(ended, prefix[None, :], 0), 1))

    # Where no unit is left, entries past the batch were counted too; the segment comes out as 0.
    request = tl.minimum(request, batch_size)
    segment = start - passed * atoms
    query = request * atoms
    if atoms > 1:
        live = request < batch_size
        width = _weight(lens, lens, request, batch_size, row_stride, False)
        for _ in range(1, atoms):
            next_atom = (segment >= width) & live
            segment -= tl.where(next_atom, width, 0)
            query += next_atom.to(tl.int32)
    inside = slot <= num_sms
    tl.store(table + 2 * slot, query, mask=inside)
    tl.store(table + 2 * slot + 1, segment, mask=inside)


def _paged(point, x, out, slots, warps, tiles=(128, 256, 1024)):
    lens, table = request_lens(x), out.schedule
    batch_size = len(lens)
    rows = next((tile for tile in tiles if batch_size <= tile), tiles[-1])
    if rows > 256:
        slots, warps = (slots if warps > 1 else 4), 4
    return fixed_launch(
        _schedule,
        (cdiv(point.num_sms + 1, slots),),
        lens,
        table,
        batch_size,
        lens.stride(0),
        point.num_sms,
        *reciprocal(point.num_sms),
        point.atoms,
        int(point.remainder == "back"),
        ROWS=rows,
        SLOTS=slots,
        num_warps=warps,
    )


@variant("paged_mqa_schedule")
def triton_w4s8(point, x, out):
    """As triton_fused (4 warps; 8 rows up to 256 requests), with 32-bit reductions."""
    return _paged(point, x, out, 8 if len(request_lens(x)) <= 256 else 2, 4, (256, 1024))


@variant("paged_mqa_schedule")
def triton_w1s2(point, x, out):
    """One warp, 2 rows."""
    return _paged(point, x, out, 2, 1)


@variant("paged_mqa_schedule")
def triton_w1s4(point, x, out):
    """One warp, 4 rows."""
    return _paged(point, x, out, 4, 1)


@variant("paged_mqa_schedule")
def triton_w1s8(point, x, out):
    """One warp, 8 rows."""
    return _paged(point, x, out, 8, 1)


@variant("paged_mqa_schedule")
def triton_w2s4(point, x, out):
    """Two warps, 4 rows."""
    return _paged(point, x, out, 4, 2)


# --- k_quant_gather: a search in steps of 33


@triton.jit(do_not_specialize=["batch_size", "num_tokens"])
def _gather(
    kv_cache,
    block_table,
    cu_seq_lens,
    k,
    scale,
    batch_size,
    num_tokens,
    table_stride,
    block_stride,
    BLOCK_SIZE: tl.constexpr,
    VALUES: tl.constexpr,
    SCALES: tl.constexpr,
    UNIT: tl.constexpr,
    UNITS: tl.constexpr,
    LANES: tl.constexpr,
):
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    lanes = tl.arange(0, LANES)[None, :] + 1
    # Request: the last b with first_unit(b) = cu_seq_lens[b] // UNIT + b <= unit. It lies in [first, first + span), and
    # first is known to be reached, so LANES probes cut the range in LANES + 1.
    first = tl.full((UNITS,), 0, tl.int32)
    start = tl.full((UNITS,), 0, tl.int32)
    end = tl.full((UNITS,), 0, tl.int32) + tl.load(cu_seq_lens + batch_size)
    span = batch_size + 1
    while span > 1:
        span = (span + LANES) // (LANES + 1)
        b = first[:, None] + lanes * span
        probe = tl.load(cu_seq_lens + tl.minimum(b, batch_size))
        reached = (b <= batch_size) & (probe // UNIT + b <= unit[:, None])
        first += tl.sum(reached.to(tl.int32), 1) * span
        start = tl.maximum(start, tl.max(tl.where(reached, probe, 0), 1))
        end = tl.minimum(end, tl.min(tl.where(reached, 0x7FFFFFFF, probe), 1))
    request = first
    end = tl.minimum(end, num_tokens)
    position = (unit - request - start // UNIT) * UNIT
    # 0 or less in idle units and past the last request, where start = end. Their table entry may hold anything.
    tokens = tl.minimum(end - start - position, UNIT)
    block = tl.load(
        block_table + request.to(tl.int64) * table_stride + position // BLOCK_SIZE, mask=tokens > 0, other=0
    )
    page = block.to(tl.int64) * block_stride
    offset = position % BLOCK_SIZE
    row = (start + position).to(tl.int64)
    e, h = tl.arange(0, UNIT * VALUES)[None, :], tl.arange(0, UNIT * SCALES)[None, :]
    some_values, some_scales = e < (tokens * VALUES)[:, None], h < (tokens * SCALES)[:, None]
    scales = tl.load(kv_cache + (page + BLOCK_SIZE * VALUES + offset * SCALES)[:, None] + h, mask=some_scales)
    values = tl.load(kv_cache + (page + offset * VALUES)[:, None] + e, mask=some_values)
    tl.store(k + (row * VALUES)[:, None] + e, values, mask=some_values)
    tl.store(scale + (row * SCALES)[:, None] + h, scales, mask=some_scales)


def _gather_with(point, x, out, **changed):
    before, gather._gather, sizes = gather._gather, _gather, {}
    for name, value in changed.items():
        sizes[name] = getattr(gather, name)
        setattr(gather, name, value)
    try:
        return gather.triton_fused(point, x, out)
    finally:
        gather._gather = before
        for name, value in sizes.items():
            setattr(gather, name, value)


@variant("k_quant_gather")
def triton_new_gather(point, x, out):
    """A search in steps of 33, which leaves start and end of the request in registers."""
    return _gather_with(point, x, out)


@variant("k_quant_gather")
def triton_new_gather32(point, x, out):
    """The same with units of 32 tokens, two per program."""
    return _gather_with(point, x, out, LONG_REQUESTS=(64, 32))


# --- seq_lens_update: other shapes of a program


def _updated(x, out, rows_per_program, warps):
    rows, capacity, threads = len(x.num_scheduled), len(out.seq_lens), rows_per_program * 32
    write_bound = update.bound_writer(x, out)
    launch_update = fixed_launch(
        update._update,
        (max(cdiv(rows, rows_per_program), cdiv(capacity - rows, threads)),),
        update.mapped(x, out),
        x.prev_num_computed,
        x.valid,
        x.query_start_loc,
        out.num_computed,
        out.num_accepted,
        out.seq_lens,
        out.positions,
        rows,
        capacity,
        ROWS=rows_per_program,
        LANES=32,
        num_warps=warps,
    )

    def run():
        launch_update()
        write_bound()

    return run


@variant("seq_lens_update")
def triton_r8w1(point, x, out):
    """8 requests per program of one warp."""
    return _updated(x, out, 8, 1)


@variant("seq_lens_update")
def triton_r8w2(point, x, out):
    """8 requests per program of two warps."""
    return _updated(x, out, 8, 2)


@variant("seq_lens_update")
def triton_r4w1(point, x, out):
    """4 requests per program of one warp."""
    return _updated(x, out, 4, 1)


@variant("seq_lens_update")
def triton_r32w4(point, x, out):
    """32 requests per program of four warps."""
    return _updated(x, out, 32, 4)
