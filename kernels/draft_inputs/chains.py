"""draft_inputs as an engine launches it: one program per row, and one for the tails."""

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl

from baselines.draft_inputs.operator import Inputs, Outputs
from harness.contract import Point, variant
from kernels.draft_inputs.triton import advanced

CHUNK = 1024


@triton.jit(do_not_specialize=["num_reqs", "max_num_seqs"])
def draft_inputs_first_rows_kernel(
    query_start_loc,
    seq_lens,
    num_rejected,
    target_ids,
    target_pos,
    idx_mapping,
    num_sampled,
    last,
    next_prefill,
    ids,
    pos,
    lens,
    starts,
    last_index,
    step,
    num_reqs,
    max_num_seqs,
    CHUNK: tl.constexpr,
):
    b = tl.program_id(0)
    lanes = tl.arange(0, CHUNK)
    start = tl.load(query_start_loc + b)
    if b == num_reqs:
        tl.store(step, 0)
        for first in range(num_reqs, max_num_seqs + 1, CHUNK):
            i = first + lanes
            tl.store(lens + i, tl.zeros((CHUNK,), tl.int32), mask=i < max_num_seqs)
            tl.store(last_index + i, tl.zeros((CHUNK,), tl.int64), mask=i < max_num_seqs)
            tl.store(starts + i, tl.zeros((CHUNK,), tl.int32) + start, mask=i <= max_num_seqs)
    else:
        kept = tl.load(query_start_loc + b + 1) - start - tl.load(num_rejected + b)
        s = tl.load(idx_mapping + b)
        end = start + kept - 1
        for first in range(0, kept, CHUNK):
            j = first + lanes
            shifted = tl.load(target_ids + start + j + 1, mask=j < kept - 1, other=0)
            tl.store(ids + start + j, shifted, mask=j < kept - 1)
            position = tl.load(target_pos + start + j, mask=j < kept, other=0)
            tl.store(pos + start + j, position, mask=j < kept)
        if tl.load(num_sampled + b) > 0:
            tl.store(ids + end, tl.load(last + s).to(tl.int32))
        else:
            tl.store(ids + end, tl.load(next_prefill + s))
        tl.store(last_index + b, end.to(tl.int64))
        tl.store(lens + b, tl.load(seq_lens + b))
        tl.store(starts + b, start)


@triton.jit(do_not_specialize=["num_reqs", "max_num_seqs", "k", "max_model_len"])
def draft_inputs_second_rows_kernel(
    seq_lens,
    num_rejected,
    pos_before,
    drafts,
    ids,
    pos,
    lens,
    starts,
    src,
    num_reqs,
    max_num_seqs,
    k,
    max_model_len,
    ADVANCE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    b = tl.program_id(0)
    if b == num_reqs:
        for first in range(num_reqs, max_num_seqs + 1, CHUNK):
            i = first + tl.arange(0, CHUNK)
            tl.store(lens + i, tl.zeros((CHUNK,), tl.int32), mask=i < max_num_seqs)
            tl.store(starts + i, tl.zeros((CHUNK,), tl.int32) + num_reqs, mask=i <= max_num_seqs)
    else:
        p = tl.load(pos_before + b)
        tl.store(ids + b, tl.load(drafts + b.to(tl.int64) * k).to(tl.int32))
        tl.store(src + b, p + 2)
        tl.store(pos + b, advanced(p, max_model_len - 1, ADVANCE))
        tl.store(lens + b, advanced(tl.load(seq_lens + b) - tl.load(num_rejected + b), max_model_len, ADVANCE))
        tl.store(starts + b, b)


@triton.jit(do_not_specialize=["k", "max_model_len", "hidden_size"])
def draft_inputs_later_rows_kernel(
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
    max_model_len,
    hidden_size,
    ADVANCE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    b = tl.program_id(0)
    done, token = tl.load(step), tl.load(sampled + b)
    tl.store(drafts + b.to(tl.int64) * k + done, token)
    if done < k - 1:
        tl.store(ids + b, token.to(tl.int32))
        tl.store(src + b, tl.load(src_before + b) + 1)
        tl.store(pos + b, advanced(tl.load(pos_before + b), max_model_len - 1, ADVANCE))
        tl.store(lens + b, advanced(tl.load(lens_before + b), max_model_len, ADVANCE))
        row = b.to(tl.int64) * hidden_size
        for first in range(0, hidden_size, CHUNK):
            h = first + tl.arange(0, CHUNK)
            values = tl.load(hidden_before + row + h, mask=h < hidden_size)
            tl.store(hidden + row + h, values, mask=h < hidden_size)


@variant("draft_inputs")
def unfused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The engine's way: one launch per pass, a program per row; one more clears all tails."""
    rows, capacity, k, most = len(x.seq_lens), point.max_num_seqs, point.next_n - 1, point.max_model_len
    advance = point.advance == "yes"
    if point.draft_pass == "first":

        def launch() -> None:
            draft_inputs_first_rows_kernel[(rows + 1,)](
                x.query_start_loc,
                x.seq_lens,
                x.num_rejected,
                x.target_ids,
                x.target_pos,
                x.idx_mapping,
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
                CHUNK=CHUNK,
            )

    elif point.draft_pass == "second":

        def launch() -> None:
            draft_inputs_second_rows_kernel[(rows + 1,)](
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
                CHUNK=CHUNK,
            )

    else:

        def launch() -> None:
            draft_inputs_later_rows_kernel[(rows,)](
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
                CHUNK=CHUNK,
            )

    return launch
