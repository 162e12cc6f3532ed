"""Candidate for mla_tile_schedule in Triton: python bench.py CONFIG --variants candidates/triton_tile.py"""

import triton
import triton.language as tl

from harness.contract import variant
from harness.launch import fixed_launch
from kernels.mla_tile_schedule.triton import tiling


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _blocks(length, OLD: tl.constexpr):
    """ceil(length / 64) without a sum that overflows near 2^31."""
    return -(-tl.maximum(length, 0 if OLD else 1) >> 6)


@triton.jit
def _first_snap(p, start, slack, end, next_end):
    """128 * part + distance of the first part that snaps; -1 if a part has ends to pass first; 2^31 - 1 if all are
    settled.
    """
    snap = tl.where(end > start, p * 128 + end - start, 0x7FFFFFFF)
    return tl.min(tl.where(next_end <= start + slack, -1, snap), 0)


@triton.jit
def _ends_within(ends, reach, REQUESTS: tl.constexpr, ENDS: tl.constexpr, PARTS: tl.constexpr):
    """How many ends are at or below each reach: the row of ENDS ends, then the place in the row."""
    rows: tl.constexpr = REQUESTS // ENDS
    row_end = tl.max(tl.reshape(ends, (rows, ENDS)), 1)
    row = tl.minimum(tl.sum((row_end[None, :] <= reach[:, None]).to(tl.int32), 1), rows - 1)
    entries = tl.reshape(row[:, None] * ENDS + tl.arange(0, ENDS)[None, :], (PARTS * ENDS,))
    row_ends = tl.reshape(tl.gather(ends, entries, 0), (PARTS, ENDS))
    return row * ENDS + tl.sum((row_ends <= reach[:, None]).to(tl.int32), 1)


@triton.jit
def _entry(ends, i, REQUESTS: tl.constexpr):
    """ends[i]: 0 before the first, never reached behind the last."""
    value = tl.gather(ends, tl.minimum(tl.maximum(i, 0), REQUESTS - 1), 0)
    return tl.where(i < 0, 0, tl.where(i < REQUESTS, value, 0x7FFFFFFF))


@triton.jit
def _by_rounds(p, ends, num_parts, overhead, stride, REQUESTS: tl.constexpr, ENDS: tl.constexpr, PARTS: tl.constexpr):
    """Starts of the parts, ends up to each of them, and the last such end; one round for each stretched part."""
    start = tl.minimum(p, num_parts) * stride
    slack = tl.where(p > 0, overhead, 0)  # part 0 never snaps
    reached = _ends_within(ends, start + slack, REQUESTS, ENDS, PARTS)
    end, next_end = _entry(ends, reached - 1, REQUESTS), _entry(ends, reached, REQUESTS)
    # All parts look for a snap at once. The first that snaps is right, because nothing before it did; it moves itself
    # and all later ones. -1: a part that was moved has ends to pass first.
    found = _first_snap(p, start, slack, end, next_end)
    while found != 0x7FFFFFFF:
        if found < 0:
            behind = next_end <= start + slack
            end = tl.where(behind, next_end, end)
            reached += behind.to(tl.int32)
            next_end = _entry(ends, reached, REQUESTS)
        else:
            start += tl.where(p >= found // 128, found % 128, 0)
            # Settled: a request without blocks may put another end within reach.
            slack = tl.where(p <= found // 128, 0, slack)
        found = _first_snap(p, start, slack, end, next_end)
    return start, reached, end


@triton.jit
def _doubled(jump, batch_size, REQUESTS: tl.constexpr):
    to = jump & 0xFFFF
    further = tl.gather(jump, tl.minimum(to, REQUESTS - 1), 0)
    parts = tl.minimum((jump >> 16) + (further >> 16), 0x3FFF)
    return tl.where(to < batch_size, parts << 16 | (further & 0xFFFF), 0x3FFF0000 | batch_size)


@triton.jit
def _descended(jump, origin, at, p, batch_size, REQUESTS: tl.constexpr):
    to = tl.gather(jump, tl.minimum(origin, REQUESTS - 1), 0)
    taken = (origin < batch_size) & (at + (to >> 16) <= p)
    return tl.where(taken, to & 0xFFFF, origin), tl.where(taken, at + (to >> 16), at)


@triton.jit
def _by_jumps(
    p,
    ends,
    begins,
    batch_size,
    num_parts,
    overhead,
    stride,
    REQUESTS: tl.constexpr,
    ENDS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """The same by doubling. A stretched part starts at an end, and what follows depends on that end alone: a jump leads
    from each request to the one at which the next stretched part starts, with the parts between in the upper 16 bits.
    """
    request = tl.arange(0, REQUESTS)
    far = 0x3FFF0000 | batch_size
    jump = tl.full((REQUESTS,), 0, tl.int32) + far
    open_ = (request < batch_size).to(tl.int32)
    y, found, k = begins + stride, request, tl.full((REQUESTS,), 1, tl.int32)
    end, next_end = begins, ends
    while tl.max(open_, 0) > 0:
        behind = next_end <= y + overhead
        end = tl.where(behind, next_end, end)
        found += behind.to(tl.int32)
        next_end = _entry(ends, found, REQUESTS)
        ready = (next_end > y + overhead) & (open_ > 0)
        snapped = ready & (end >= y)
        jump = tl.where(snapped, k << 16 | found, jump)
        k += ready.to(tl.int32)
        open_ = tl.where(snapped | (ready & ((found >= batch_size) | (k >= num_parts))), 0, open_)
        y += tl.where(ready, stride, 0)

    jump2 = _doubled(jump, batch_size, REQUESTS)
    jump4 = _doubled(jump2, batch_size, REQUESTS)
    jump8 = _doubled(jump4, batch_size, REQUESTS)
    jump16 = _doubled(jump8, batch_size, REQUESTS)
    jump32 = _doubled(jump16, batch_size, REQUESTS)
    jump64 = _doubled(jump32, batch_size, REQUESTS)
    jump128 = _doubled(jump64, batch_size, REQUESTS)
    origin, at = tl.full((PARTS,), 0, tl.int32), tl.full((PARTS,), 0, tl.int32)
    origin, at = _descended(jump128, origin, at, p, batch_size, REQUESTS)
    origin, at = _descended(jump64, origin, at, p, batch_size, REQUESTS)
    origin, at = _descended(jump32, origin, at, p, batch_size, REQUESTS)
    origin, at = _descended(jump16, origin, at, p, batch_size, REQUESTS)
    origin, at = _descended(jump8, origin, at, p, batch_size, REQUESTS)
    origin, at = _descended(jump4, origin, at, p, batch_size, REQUESTS)
    origin, at = _descended(jump2, origin, at, p, batch_size, REQUESTS)
    origin, at = _descended(jump, origin, at, p, batch_size, REQUESTS)
    start = _entry(ends, origin - 1, REQUESTS) + (p - at) * stride
    reached = _ends_within(ends, start, REQUESTS, ENDS, PARTS)
    return start, reached, _entry(ends, reached - 1, REQUESTS)


@triton.jit(do_not_specialize=["batch_size", "num_parts", "overhead"])
def tile_schedule(
    seq_lens,
    metadata,
    num_splits,
    batch_size,
    num_parts,
    overhead,
    OLD: tl.constexpr,
    REQUESTS: tl.constexpr,
    ENDS: tl.constexpr,
    PARTS: tl.constexpr,
    TEAM: tl.constexpr,
):
    request = tl.arange(0, REQUESTS)
    real = request < batch_size
    length = tl.load(seq_lens + request, mask=real, other=0)
    costs = tl.where(real, _blocks(length, OLD) + overhead, 0)
    ends = tl.cumsum(costs, 0)
    total = tl.max(ends, 0)
    stride = (total + num_parts - 1) // num_parts
    ends = tl.where(real, ends, 0x7FFFFFFF)

    p = tl.arange(0, PARTS)
    if PARTS == 256 and REQUESTS == 128:
        # A part is stretched where an end lies in the overhead + 1 places behind its start.
        if (num_parts * batch_size * (overhead + 1)) // 16 >= total:
            start, reached, end = _by_jumps(
                p, ends, ends - costs, batch_size, num_parts, overhead, stride, REQUESTS, ENDS, PARTS
            )
        else:
            start, reached, end = _by_rounds(p, ends, num_parts, overhead, stride, REQUESTS, ENDS, PARTS)
    else:
        start, reached, end = _by_rounds(p, ends, num_parts, overhead, stride, REQUESTS, ENDS, PARTS)

    block = tl.where(reached < batch_size, start - end, 0)
    inside = (block > 0).to(tl.int32)
    starts_inside = tl.cumsum(inside, 0)
    head = (p == 0) | (reached != tl.gather(reached, tl.maximum(p - 1, 0), 0))
    origin = tl.associative_scan(tl.where(head, p - inside, -1), 0, _larger)
    split = (p - origin) * inside

    following = tl.minimum(p + 1, PARTS - 1)
    working = p + 1 < num_parts
    next_request = tl.where(working, tl.gather(reached, following, 0), batch_size)
    next_block = tl.where(working, tl.gather(block, following, 0), 0)
    cut_last = (next_block > 0).to(tl.int32)
    last = next_request - 1 + cut_last
    row, written = metadata + p * 8, p < num_parts
    last_length = tl.load(seq_lens + last, mask=written, other=0)
    tl.store(row, reached, mask=written)
    tl.store(row + 4, split, mask=written)
    if OLD:
        tl.store(row + 1, block * 64, mask=written)
        tl.store(row + 2, last, mask=written)
        tl.store(row + 3, tl.where(cut_last > 0, next_block * 64, last_length), mask=written)
    else:
        either = tl.where(reached == last, inside | cut_last, 0)
        whole = tl.where(last_length > 0, _blocks(last_length, OLD), 0)
        tl.store(row + 1, last, mask=written)
        tl.store(row + 2, block, mask=written)
        tl.store(row + 3, tl.where(cut_last > 0, next_block, whole), mask=written)
        tl.store(row + 5, inside | either, mask=written)
        tl.store(row + 6, cut_last | either, mask=written)

    # Part p finishes the requests reached .. next_request - 1; TEAM lanes share them.
    member = tl.arange(0, TEAM)
    tl.store(num_splits, 0)
    for skipped in range(0, tl.max(next_request - reached, 0), TEAM):
        finished = reached[:, None] + skipped + member[None, :] + 1
        tl.store(num_splits + finished, finished + starts_inside[:, None], mask=finished <= next_request[:, None])


def _with(point, x, out, warps):
    batch_size = len(x.seq_lens)
    return fixed_launch(
        tile_schedule,
        (1,),
        x.seq_lens,
        out.tile_scheduler_metadata,
        out.num_splits,
        batch_size,
        point.num_sm_parts,
        point.overhead,
        **tiling(batch_size, point.num_sm_parts, point.layout),
        num_warps=warps,
    )


@variant("mla_tile_schedule", sizes={"batch_size": (128, 1024)})
def triton_new_tile(point, x, out):
    """Doubling where many parts are stretched."""
    return _with(point, x, out, 8)


@variant("mla_tile_schedule", sizes={"batch_size": (128, 1024)})
def triton_new_tile4(point, x, out):
    """The same with four warps."""
    return _with(point, x, out, 4)
