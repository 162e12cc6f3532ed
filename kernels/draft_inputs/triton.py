"""draft_inputs in Triton: one launch per pass, several rows per program, tails shared by all programs.

draft_inputs.cu has the versions with their times.
"""

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl

from baselines.draft_inputs.operator import Inputs, Outputs
from baselines.workloads.integers import cdiv
from baselines.workloads.request_slots import row_tiling
from harness.contract import Point, variant
from harness.launch import fixed_launch

#: First pass: rows of a program, and entries of the tails that it clears.
ROWS, TAIL = 4, 256
#: Second pass: entries of a program. Later passes: hidden values of a program.
ENTRIES, HIDDEN = 128, 2048


@triton.jit
def clear_tails(program, rows, capacity, end, lens, starts, last_index, step, TAIL: tl.constexpr):
    """TAIL entries behind the last row, which ends with token ``end``."""
    past = rows + program * TAIL + tl.arange(0, TAIL)
    tl.store(lens + past, tl.zeros((TAIL,), tl.int32), mask=past < capacity)
    tl.store(last_index + past, tl.zeros((TAIL,), tl.int64), mask=past < capacity)
    tl.store(starts + past, tl.zeros((TAIL,), tl.int32) + end, mask=past <= capacity)
    if program == 0:
        tl.store(step, 0)


@triton.jit
def load_shifted(turn, start, tokens, target_ids, target_pos, LANES: tl.constexpr):
    """[ROWS, LANES] ids and positions that ``shift_rows`` stores in a turn, the ``turn``-th LANES tokens of each row;
    tokens: of each row, or more.
    """
    j = turn * LANES + tl.arange(0, LANES)[None, :]
    t = start[:, None] + j
    shifted = tl.load(target_ids + t + 1, mask=j < tokens[:, None] - 1, other=0)
    return shifted, tl.load(target_pos + t, mask=j < tokens[:, None], other=0)


@triton.jit
def _store_shifted(turn, start, kept, shifted, position, ids, pos, LANES: tl.constexpr):
    j = turn * LANES + tl.arange(0, LANES)[None, :]
    tl.store(ids + start[:, None] + j, shifted, mask=j < kept[:, None] - 1)
    tl.store(pos + start[:, None] + j, position, mask=j < kept[:, None])


@triton.jit
def shift_rows(
    b,
    strip,
    strips,
    start,
    kept,
    token,
    length,
    shifted,
    position,
    target_ids,
    target_pos,
    ids,
    pos,
    lens,
    starts,
    last_index,
    LANES: tl.constexpr,
):
    """Rows of the first pass: kept tokens shifted by one, ``token`` behind them. kept is 0 behind the last row.

    Long rows are shared by ``strips`` programs, LANES tokens in turn; the first strip writes what a row has once.
    shifted, position: of ``load_shifted`` for the first turn, perhaps from before the kept tokens were known.
    """
    end = start + kept - 1
    once = tl.where(strip == 0, kept, 0) > 0  # a row keeps a token at least
    tl.store(ids + end, token, mask=once)
    tl.store(lens + b, length, mask=once)
    tl.store(last_index + b, end.to(tl.int64), mask=once)
    tl.store(starts + b, start, mask=once)
    _store_shifted(strip, start, kept, shifted, position, ids, pos, LANES)
    for turn in range(strip + strips, tl.cdiv(tl.max(kept, 0), LANES), strips):
        shifted, position = load_shifted(turn, start, kept, target_ids, target_pos, LANES)
        _store_shifted(turn, start, kept, shifted, position, ids, pos, LANES)


@triton.jit(do_not_specialize=["rows", "capacity"])
def _first(
    query_start_loc,
    seq_lens,
    num_rejected,
    target_ids,
    target_pos,
    idx,
    num_sampled,
    last,
    next_prefill,
    ids,
    pos,
    lens,
    starts,
    last_index,
    step,
    rows,
    capacity,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    TAIL: tl.constexpr,
):
    program, strip = tl.program_id(0), tl.program_id(1)
    last_end = tl.load(query_start_loc + rows)
    b = program * ROWS + tl.arange(0, ROWS)
    inside = b < rows
    start = tl.load(query_start_loc + b, mask=inside, other=0)
    query = tl.load(query_start_loc + b + 1, mask=inside, other=0) - start
    kept = query - tl.load(num_rejected + b, mask=inside, other=0)
    s = tl.load(idx + b, mask=inside, other=0)
    newest = tl.load(last + s, mask=inside, other=0).to(tl.int32)
    prompt = tl.load(next_prefill + s, mask=inside, other=0)
    token = tl.where(tl.load(num_sampled + b, mask=inside, other=0) > 0, newest, prompt)
    length = tl.load(seq_lens + b, mask=inside, other=0)
    shifted, position = load_shifted(strip, start, kept, target_ids, target_pos, LANES)
    shift_rows(
        b,
        strip,
        tl.num_programs(1),
        start,
        kept,
        token,
        length,
        shifted,
        position,
        target_ids,
        target_pos,
        ids,
        pos,
        lens,
        starts,
        last_index,
        LANES,
    )
    # After the rows, whose chain of loads is longer.
    if strip == 0:
        clear_tails(program, rows, capacity, last_end, lens, starts, last_index, step, TAIL)


@triton.jit
def advanced(value, most, ADVANCE: tl.constexpr):
    """The next position or length."""
    if ADVANCE:
        value = tl.minimum(value, most - 1) + 1
    return value


@triton.jit(do_not_specialize=["rows", "capacity", "k", "most"])
def _second(
    seq_lens,
    num_rejected,
    pos_before,
    drafts,
    ids,
    pos,
    lens,
    starts,
    src,
    rows,
    capacity,
    k,
    most,
    ADVANCE: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    b = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    inside = b < rows
    p = tl.load(pos_before + b, mask=inside, other=0)
    length = tl.load(seq_lens + b, mask=inside, other=0) - tl.load(num_rejected + b, mask=inside, other=0)
    tl.store(ids + b, tl.load(drafts + b.to(tl.int64) * k, mask=inside, other=0).to(tl.int32), mask=inside)
    tl.store(src + b, p + 2, mask=inside)
    tl.store(pos + b, advanced(p, most - 1, ADVANCE), mask=inside)
    tl.store(lens + b, tl.where(inside, advanced(length, most, ADVANCE), 0), mask=b < capacity)
    tl.store(starts + b, tl.minimum(b, rows), mask=b <= capacity)


@triton.jit(do_not_specialize=["k", "most", "hidden_size"])
def _later(
    step,
    sampled,
    pos_before,
    src_before,
    lens_before,
    hidden_before,
    ids,
    pos,
    lens,
    src,
    drafts,
    hidden,
    k,
    most,
    hidden_size,
    ADVANCE: tl.constexpr,
    HIDDEN: tl.constexpr,
):
    b, strip = tl.program_id(0), tl.program_id(1)
    done = tl.load(step)
    if strip == 0:
        token = tl.load(sampled + b)
        tl.store(drafts + b.to(tl.int64) * k + done, token)
        if done < k - 1:
            tl.store(ids + b, token.to(tl.int32))
            tl.store(src + b, tl.load(src_before + b) + 1)
            tl.store(pos + b, advanced(tl.load(pos_before + b), most - 1, ADVANCE))
            tl.store(lens + b, advanced(tl.load(lens_before + b), most, ADVANCE))
    if done < k - 1:
        h = strip * HIDDEN + tl.arange(0, HIDDEN)
        row = b.to(tl.int64) * hidden_size
        tl.store(hidden + row + h, tl.load(hidden_before + row + h, mask=h < hidden_size), mask=h < hidden_size)


@variant("draft_inputs")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch per pass."""
    rows, capacity, k, most = len(x.seq_lens), point.max_num_seqs, point.next_n - 1, point.max_model_len
    advance = point.advance == "yes"
    if point.draft_pass == "first":
        lanes, strips = row_tiling(point)
        grid = (max(cdiv(rows, ROWS), cdiv(capacity + 1 - rows, TAIL)), strips)

        launch = fixed_launch(
            _first,
            grid,
            x.query_start_loc,
            x.seq_lens,
            x.num_rejected,
            x.target_ids,
            x.target_pos,
            x.idx,
            x.num_sampled,
            x.last,
            x.next_prefill,
            out.ids,
            out.pos,
            out.lens,
            out.starts,
            out.last_index,
            out.step,
            rows,
            capacity,
            ROWS=ROWS,
            LANES=lanes,
            TAIL=TAIL,
        )

    elif point.draft_pass == "second":
        grid = (cdiv(capacity + 1, ENTRIES),)

        launch = fixed_launch(
            _second,
            grid,
            x.seq_lens,
            x.num_rejected,
            x.pos_before,
            x.drafts,
            out.ids,
            out.pos,
            out.lens,
            out.starts,
            out.src,
            rows,
            capacity,
            k,
            most,
            ADVANCE=advance,
            ENTRIES=ENTRIES,
        )

    else:
        grid = (rows, cdiv(point.hidden_size, HIDDEN))

        launch = fixed_launch(
            _later,
            grid,
            x.step,
            x.sampled,
            x.pos_before,
            x.src_before,
            x.lens_before,
            x.hidden_before,
            out.ids,
            out.pos,
            out.lens,
            out.src,
            out.drafts,
            out.hidden,
            k,
            most,
            point.hidden_size,
            ADVANCE=advance,
            HIDDEN=HIDDEN,
        )

    return launch
