"""draft_inputs in Triton: one launch per pass, several rows per program, tails shared by all programs.

draft_inputs.cu has the versions that were tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.draft_inputs.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import row_tiling
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch

#: First pass: rows of a program, and entries of the tails that it clears.
ROWS, TAIL = 4, 256
#: Second pass: entries of a program. Later passes: hidden values of a program.
ENTRIES, HIDDEN = 128, 2048


class Sizes(NamedTuple):
    """k: drafts per request."""

    num_reqs: int
    max_num_seqs: int
    k: int
    max_model_len: int
    hidden_size: int


def sizes(point: Point, x: Inputs) -> Sizes:
    return Sizes(len(x.seq_lens), point.max_num_seqs, point.next_n - 1, point.max_model_len, point.hidden_size)


@triton.jit
def clear_tails(program, end, out, n, TAIL: tl.constexpr):
    """TAIL entries behind the last row, which ends with token ``end``."""
    past = n.num_reqs + program * TAIL + tl.arange(0, TAIL)
    tl.store(out.seq_lens + past, tl.zeros((TAIL,), tl.int32), mask=past < n.max_num_seqs)
    tl.store(out.last_token_indices + past, tl.zeros((TAIL,), tl.int64), mask=past < n.max_num_seqs)
    tl.store(out.query_start_loc + past, tl.zeros((TAIL,), tl.int32) + end, mask=past <= n.max_num_seqs)
    if program == 0:
        tl.store(out.current_draft_step, 0)


@triton.jit
def load_shifted(chunk, start, tokens, x, LANES: tl.constexpr):
    """[ROWS, LANES] ids and positions that ``shift_rows`` stores of a chunk, the ``chunk``-th LANES tokens of each row;
    tokens: of each row, or more.
    """
    j = chunk * LANES + tl.arange(0, LANES)[None, :]
    t = start[:, None] + j
    shifted = tl.load(x.target_input_ids + t + 1, mask=j < tokens[:, None] - 1, other=0)
    return shifted, tl.load(x.target_positions + t, mask=j < tokens[:, None], other=0)


@triton.jit
def _store_shifted(chunk, start, kept, shifted, position, out, LANES: tl.constexpr):
    j = chunk * LANES + tl.arange(0, LANES)[None, :]
    tl.store(out.input_ids + start[:, None] + j, shifted, mask=j < kept[:, None] - 1)
    tl.store(out.positions + start[:, None] + j, position, mask=j < kept[:, None])


@triton.jit
def shift_rows(b, strip, strips, start, kept, token, length, shifted, position, x, out, LANES: tl.constexpr):
    """Rows of the first pass: kept tokens shifted by one, ``token`` behind them. kept is 0 behind the last row.

    Long rows are shared by ``strips`` programs, which take chunks of LANES tokens in turn; the first one writes what a
    row has once. shifted, position: of ``load_shifted`` for the first chunk, perhaps from before the kept tokens were
    known.
    """
    end = start + kept - 1
    once = tl.where(strip == 0, kept, 0) > 0  # a row keeps a token at least
    tl.store(out.input_ids + end, token, mask=once)
    tl.store(out.seq_lens + b, length, mask=once)
    tl.store(out.last_token_indices + b, end.to(tl.int64), mask=once)
    tl.store(out.query_start_loc + b, start, mask=once)
    _store_shifted(strip, start, kept, shifted, position, out, LANES)
    for chunk in range(strip + strips, tl.cdiv(tl.max(kept, 0), LANES), strips):
        shifted, position = load_shifted(chunk, start, kept, x, LANES)
        _store_shifted(chunk, start, kept, shifted, position, out, LANES)


@triton.jit
def draft_inputs_first_kernel(n, x, out, ROWS: tl.constexpr, LANES: tl.constexpr, TAIL: tl.constexpr):
    program, strip = tl.program_id(0), tl.program_id(1)
    last_end = tl.load(x.query_start_loc + n.num_reqs)
    b = program * ROWS + tl.arange(0, ROWS)
    inside = b < n.num_reqs
    start = tl.load(x.query_start_loc + b, mask=inside, other=0)
    query = tl.load(x.query_start_loc + b + 1, mask=inside, other=0) - start
    kept = query - tl.load(x.num_rejected + b, mask=inside, other=0)
    s = tl.load(x.idx_mapping + b, mask=inside, other=0)
    newest = tl.load(x.last_sampled_tokens + s, mask=inside, other=0).to(tl.int32)
    prompt = tl.load(x.next_prefill_tokens + s, mask=inside, other=0)
    token = tl.where(tl.load(x.num_sampled + b, mask=inside, other=0) > 0, newest, prompt)
    length = tl.load(x.seq_lens + b, mask=inside, other=0)
    shifted, position = load_shifted(strip, start, kept, x, LANES)
    shift_rows(b, strip, tl.num_programs(1), start, kept, token, length, shifted, position, x, out, LANES)
    # After the rows, whose chain of loads is longer.
    if strip == 0:
        clear_tails(program, last_end, out, n, TAIL)


@triton.jit
def advanced(value, most, ADVANCE: tl.constexpr):
    """The next position or length."""
    if ADVANCE:
        value = tl.minimum(value, most - 1) + 1
    return value


@triton.jit
def draft_inputs_second_kernel(n, x, out, ADVANCE: tl.constexpr, ENTRIES: tl.constexpr):
    b = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    inside = b < n.num_reqs
    p = tl.load(x.positions_before + b, mask=inside, other=0)
    length = tl.load(x.seq_lens + b, mask=inside, other=0) - tl.load(x.num_rejected + b, mask=inside, other=0)
    tl.store(
        out.input_ids + b,
        tl.load(x.draft_tokens + b.to(tl.int64) * n.k, mask=inside, other=0).to(tl.int32),
        mask=inside,
    )
    tl.store(out.sample_src_positions + b, p + 2, mask=inside)
    tl.store(out.positions + b, advanced(p, n.max_model_len - 1, ADVANCE), mask=inside)
    tl.store(out.seq_lens + b, tl.where(inside, advanced(length, n.max_model_len, ADVANCE), 0), mask=b < n.max_num_seqs)
    tl.store(out.query_start_loc + b, tl.minimum(b, n.num_reqs), mask=b <= n.max_num_seqs)


@triton.jit
def draft_inputs_later_kernel(n, x, out, ADVANCE: tl.constexpr, HIDDEN: tl.constexpr):
    b, strip = tl.program_id(0), tl.program_id(1)
    done = tl.load(x.current_draft_step)
    if strip == 0:
        token = tl.load(x.sampled + b)
        tl.store(out.draft_tokens + b.to(tl.int64) * n.k + done, token)
        if done < n.k - 1:
            tl.store(out.input_ids + b, token.to(tl.int32))
            tl.store(out.sample_src_positions + b, tl.load(x.sample_src_positions_before + b) + 1)
            tl.store(out.positions + b, advanced(tl.load(x.positions_before + b), n.max_model_len - 1, ADVANCE))
            tl.store(out.seq_lens + b, advanced(tl.load(x.seq_lens_before + b), n.max_model_len, ADVANCE))
    if done < n.k - 1:
        h = strip * HIDDEN + tl.arange(0, HIDDEN)
        row, inside = b.to(tl.int64) * n.hidden_size, h < n.hidden_size
        tl.store(out.hidden_states + row + h, tl.load(x.hidden_states_before + row + h, mask=inside), mask=inside)


@variant("draft_inputs")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch per pass."""
    arguments, advance = (sizes(point, x), bundle(x), bundle(out)), point.advance == "yes"
    rows, capacity = len(x.seq_lens), point.max_num_seqs
    if point.draft_pass == "first":
        lanes, strips = row_tiling(point)
        grid = (max(cdiv(rows, ROWS), cdiv(capacity + 1 - rows, TAIL)), strips)
        return fixed_launch(draft_inputs_first_kernel, grid, *arguments, ROWS=ROWS, LANES=lanes, TAIL=TAIL)
    if point.draft_pass == "second":
        grid = (cdiv(capacity + 1, ENTRIES),)
        return fixed_launch(draft_inputs_second_kernel, grid, *arguments, ADVANCE=advance, ENTRIES=ENTRIES)
    grid = (rows, cdiv(point.hidden_size, HIDDEN))
    return fixed_launch(draft_inputs_later_kernel, grid, *arguments, ADVANCE=advance, HIDDEN=HIDDEN)
