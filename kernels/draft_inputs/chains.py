"""draft_inputs as an engine launches it: one program per row, and one for the tails."""

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl

from spec_decode_bench.baselines.draft_inputs.operator import Inputs, Outputs
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.kernels.draft_inputs.triton import advanced

CHUNK = 1024


@triton.jit(do_not_specialize=["num_reqs", "max_num_seqs"])
def draft_inputs_first_rows_kernel(
    query_start_loc,
    seq_lens,
    num_rejected,
    target_input_ids,
    target_positions,
    idx_mapping,
    num_sampled,
    last_sampled_tokens,
    next_prefill_tokens,
    input_ids,
    positions,
    lens,
    starts,
    last_token_indices,
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
            tl.store(last_token_indices + i, tl.zeros((CHUNK,), tl.int64), mask=i < max_num_seqs)
            tl.store(starts + i, tl.zeros((CHUNK,), tl.int32) + start, mask=i <= max_num_seqs)
    else:
        kept = tl.load(query_start_loc + b + 1) - start - tl.load(num_rejected + b)
        s = tl.load(idx_mapping + b)
        end = start + kept - 1
        for first in range(0, kept, CHUNK):
            j = first + lanes
            shifted = tl.load(target_input_ids + start + j + 1, mask=j < kept - 1, other=0)
            tl.store(input_ids + start + j, shifted, mask=j < kept - 1)
            position = tl.load(target_positions + start + j, mask=j < kept, other=0)
            tl.store(positions + start + j, position, mask=j < kept)
        if tl.load(num_sampled + b) > 0:
            tl.store(input_ids + end, tl.load(last_sampled_tokens + s).to(tl.int32))
        else:
            tl.store(input_ids + end, tl.load(next_prefill_tokens + s))
        tl.store(last_token_indices + b, end.to(tl.int64))
        tl.store(lens + b, tl.load(seq_lens + b))
        tl.store(starts + b, start)


@triton.jit(do_not_specialize=["num_reqs", "max_num_seqs", "k", "max_model_len"])
def draft_inputs_second_rows_kernel(
    seq_lens,
    num_rejected,
    positions_before,
    draft_tokens,
    input_ids,
    positions,
    lens,
    starts,
    sample_src_positions,
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
        p = tl.load(positions_before + b)
        tl.store(input_ids + b, tl.load(draft_tokens + b.to(tl.int64) * k).to(tl.int32))
        tl.store(sample_src_positions + b, p + 2)
        tl.store(positions + b, advanced(p, max_model_len - 1, ADVANCE))
        tl.store(lens + b, advanced(tl.load(seq_lens + b) - tl.load(num_rejected + b), max_model_len, ADVANCE))
        tl.store(starts + b, b)


@triton.jit(do_not_specialize=["k", "max_model_len", "hidden_size"])
def draft_inputs_later_rows_kernel(
    step,
    sampled,
    positions_before,
    sample_src_positions_before,
    seq_lens_before,
    hidden_states_before,
    input_ids,
    positions,
    lens,
    sample_src_positions,
    draft_tokens,
    hidden_states,
    k,
    max_model_len,
    hidden_size,
    ADVANCE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    b = tl.program_id(0)
    done, token = tl.load(step), tl.load(sampled + b)
    tl.store(draft_tokens + b.to(tl.int64) * k + done, token)
    if done < k - 1:
        tl.store(input_ids + b, token.to(tl.int32))
        tl.store(sample_src_positions + b, tl.load(sample_src_positions_before + b) + 1)
        tl.store(positions + b, advanced(tl.load(positions_before + b), max_model_len - 1, ADVANCE))
        tl.store(lens + b, advanced(tl.load(seq_lens_before + b), max_model_len, ADVANCE))
        row = b.to(tl.int64) * hidden_size
        for first in range(0, hidden_size, CHUNK):
            h = first + tl.arange(0, CHUNK)
            values = tl.load(hidden_states_before + row + h, mask=h < hidden_size)
            tl.store(hidden_states + row + h, values, mask=h < hidden_size)


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
                x.target_input_ids,
                x.target_positions,
                x.idx_mapping,
                x.num_sampled,
                x.last_sampled_tokens,
                x.next_prefill_tokens,
                out.input_ids,
                out.positions,
                out.seq_lens,
                out.query_start_loc,
                out.last_token_indices,
                out.current_draft_step,
                rows,
                capacity,
                CHUNK=CHUNK,
            )

    elif point.draft_pass == "second":

        def launch() -> None:
            draft_inputs_second_rows_kernel[(rows + 1,)](
                x.seq_lens,
                x.num_rejected,
                x.positions_before,
                x.draft_tokens,
                out.input_ids,
                out.positions,
                out.seq_lens,
                out.query_start_loc,
                out.sample_src_positions,
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
                x.current_draft_step,
                x.sampled,
                x.positions_before,
                x.sample_src_positions_before,
                x.seq_lens_before,
                x.hidden_states_before,
                out.input_ids,
                out.positions,
                out.seq_lens,
                out.sample_src_positions,
                out.draft_tokens,
                out.hidden_states,
                k,
                most,
                point.hidden_size,
                ADVANCE=advance,
                CHUNK=CHUNK,
            )

    return launch
