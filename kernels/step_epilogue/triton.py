"""step_epilogue in Triton: one launch, in which a program does all parts of its rows.

    cuda_sequence               the fused kernels of the parts one after another (chains.py): two or three launches
    triton_fused, cuda_fused    one launch

The drafter's first pass needs the counts and the newest token of its row, the states its count by slot: both are in
registers where the row was updated. Programs do not specialise as in step_prologue, because state may be one array as
input and output: a program that read a slot for itself could read what another one has written. Further programs of a
long row (strip > 0) only shift its tokens; what they read is by row or never written.

step_epilogue.cu has the versions with their times.
"""

from __future__ import annotations

from collections.abc import Callable

import triton
import triton.language as tl

from baselines.step_epilogue.operator import Inputs, Outputs, with_states
from baselines.workloads.integers import cdiv
from baselines.workloads.request_slots import num_real, row_tiling
from harness.contract import Point, variant
from harness.launch import fixed_launch
from kernels.draft_inputs.triton import clear_tails, load_shifted, shift_rows
from kernels.mamba_align_step.triton import freeze, store_move
from kernels.post_update.triton import counts_of, update_rows

#: Rows of a program, and entries of the tails that it clears.
ROWS, TAIL = 4, 256


@triton.jit(
    do_not_specialize=["rows", "real", "capacity", "tokens_stride", "history_len", "vocab_size", "mamba_block_size"]
)
def _epilogue(
    idx,
    cu_num_logits,
    query_start_loc,
    seq_lens,
    sampled_before,
    tokens,
    computed_before,
    total_before,
    bins_before,
    prompt_lens,
    next_prefill,
    target_ids,
    target_pos,
    columns_before,
    num_sampled,
    num_rejected,
    num_computed,
    total,
    last,
    accepted,
    bins,
    all_ids,
    ids,
    pos,
    lens,
    starts,
    last_index,
    step,
    moves,
    rows,
    real,
    capacity,
    tokens_stride,
    history_len,
    vocab_size,
    mamba_block_size,
    ROWS: tl.constexpr,
    SAMPLED: tl.constexpr,
    LANES: tl.constexpr,
    TAIL: tl.constexpr,
    BINS: tl.constexpr,
    STATES: tl.constexpr,
):
    program, strip = tl.program_id(0), tl.program_id(1)
    b = program * ROWS + tl.arange(0, ROWS)
    start = tl.load(query_start_loc + b, mask=b < rows, other=0)
    query = tl.load(query_start_loc + b + 1, mask=b < rows, other=0) - start
    # Before the rejected tokens are known: one memory latency instead of two.
    shifted, position = load_shifted(strip, start, tl.where(b < real, query, 0), target_ids, target_pos, LANES)
    if strip > 0:
        long = (b < real) & (query > strip * LANES)
        logits = tl.load(cu_num_logits + b + 1, mask=long, other=0) - tl.load(cu_num_logits + b, mask=long, other=0)
        # prompt_lens may be read over the bus.
        unequal = long & (logits != tl.load(sampled_before + b, mask=long, other=0))
        _, _, _, nr = counts_of(b, unequal, idx, cu_num_logits, seq_lens, sampled_before, prompt_lens)
        shift_rows(
            b,
            strip,
            tl.num_programs(1),
            start,
            tl.where(long, query - nr, 0),
            start,
            start,
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
        return
    last_end = tl.load(query_start_loc + real)
    inside = b < rows
    length = tl.load(seq_lens + b, mask=inside, other=0)
    prompt_token = tl.load(next_prefill + tl.load(idx + b, mask=b < real, other=0), mask=b < real, other=0)
    s, ns, nr, computed, newest = update_rows(
        b,
        inside,
        idx,
        cu_num_logits,
        query_start_loc,
        seq_lens,
        sampled_before,
        tokens,
        computed_before,
        total_before,
        None,
        bins_before,
        prompt_lens,
        num_sampled,
        num_rejected,
        num_computed,
        total,
        last,
        None,
        bins,
        all_ids,
        tokens_stride,
        0,
        history_len,
        vocab_size,
        LANES=SAMPLED,
        BINS=BINS,
        DRAFTS=False,
    )
    count = tl.maximum(ns, 1)
    if STATES:
        column = tl.load(columns_before + s, mask=s >= 0, other=0)
        frozen, to, shift = freeze(computed, column, count, mamba_block_size)
        store_move(moves, b, column, to, shift, (s >= 0) & frozen & ((to != column) | (shift > 0)), inside)
        count = tl.where(frozen & (to == column), 1, count)
    tl.store(accepted + s, count, mask=s >= 0)
    shift_rows(
        b,
        0,
        tl.num_programs(1),
        start,
        tl.where(b < real, query - nr, 0),
        tl.where(ns > 0, newest.to(tl.int32), prompt_token),
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
    clear_tails(program, real, capacity, last_end, lens, starts, last_index, step, TAIL)


@variant("step_epilogue")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch for every part of a row."""
    rows, real, capacity = point.batch_size, num_real(point), point.max_num_seqs
    lanes, strips = row_tiling(point)
    grid = (max(cdiv(rows, ROWS), cdiv(capacity + 1 - real, TAIL)), strips)
    prompt_lens = x.prompt_lens_device if x.prompt_lens_host is None else x.prompt_lens_host
    all_ids = out.all_ids_device if out.all_ids_host is None else out.all_ids_host
    sampled = triton.next_power_of_2(point.next_n)

    return fixed_launch(
        _epilogue,
        grid,
        x.idx,
        x.cu_num_logits,
        x.query_start_loc,
        x.seq_lens,
        x.num_sampled,
        x.tokens,
        x.num_computed,
        x.total,
        x.bins,
        prompt_lens,
        x.next_prefill,
        x.target_ids,
        x.target_pos,
        x.columns_before,
        out.num_sampled,
        out.num_rejected,
        out.num_computed,
        out.total,
        out.last,
        out.accepted,
        out.bins,
        all_ids,
        out.ids,
        out.pos,
        out.lens,
        out.starts,
        out.last_index,
        out.step,
        out.moves,
        rows,
        real,
        capacity,
        x.tokens.stride(0),
        point.history_len,
        point.vocab_size,
        point.mamba_block_size,
        ROWS=ROWS,
        SAMPLED=sampled,
        LANES=lanes,
        TAIL=TAIL,
        BINS=x.bins is not None,
        STATES=with_states(point),
        num_warps=2,
    )
