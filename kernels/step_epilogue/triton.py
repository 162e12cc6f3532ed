"""step_epilogue in Triton: one launch, in which a program does all parts of its rows.

    cuda_sequence               the fused kernels of the parts one after another (sequence.py): two or three launches
    triton_fused, cuda_fused    one launch

The drafter's first pass needs the counts and the newest token of its row, the states its count by slot: both are in
registers where the row was updated. Programs do not specialise as in step_prologue, because state may be one array as
input and output: a program that read a slot for itself could read what another one has written. Further programs of a
long row (strip > 0) only shift its tokens; what they read is by row or never written.

step_epilogue.cu has the versions that were tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import triton
import triton.language as tl

from spec_decode_bench.baselines.step_epilogue.operator import Inputs, Outputs, with_states
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import num_real, row_tiling
from spec_decode_bench.harness.bundle import bundle
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.harness.launch import fixed_launch
from spec_decode_bench.kernels.draft_inputs.triton import clear_tails, load_shifted, shift_rows
from spec_decode_bench.kernels.mamba_align_step.triton import freeze, store_move
from spec_decode_bench.kernels.post_update.triton import counts_of, update_rows

#: Rows of a program, and entries of the tails that it clears.
ROWS, TAIL = 4, 256


#: Fields of the inputs and outputs that the kernels read, in the order of their first use.
INPUTS = (
    "query_start_loc",
    "idx_mapping",
    "target_input_ids",
    "target_positions",
    "next_prefill_tokens",
    "seq_lens",
    "cu_num_logits",
    "num_sampled",
    "sampled_tokens",
    "prompt_lens",
    "total_len",
    "num_computed_tokens",
    "output_bin_counts",
    "state_columns_before",
)
OUTPUTS = (
    "num_sampled",
    "num_rejected",
    "num_computed_tokens",
    "total_len",
    "last_sampled_tokens",
    "all_token_ids",
    "output_bin_counts",
    "num_accepted_tokens",
    "input_ids",
    "positions",
    "seq_lens",
    "last_token_indices",
    "query_start_loc",
    "current_draft_step",
    "moves",
)


class Sizes(NamedTuple):
    """tokens_stride: elements between two rows of the sampled tokens. mamba_block_size: tokens of a state."""

    num_reqs: int
    num_reqs_padded: int
    max_num_seqs: int
    tokens_stride: int
    history_len: int
    mamba_block_size: int
    vocab_size: int


def sizes(point: Point, x: Inputs) -> Sizes:
    rows = num_real(point), point.batch_size, point.max_num_seqs
    return Sizes(*rows, x.sampled_tokens.stride(0), point.history_len, point.mamba_block_size, point.vocab_size)


@triton.jit
def step_epilogue_kernel(
    n,
    x,
    out,
    STATES: tl.constexpr,
    ROWS: tl.constexpr,
    SAMPLED: tl.constexpr,
    LANES: tl.constexpr,
    TAIL: tl.constexpr,
):
    """SAMPLED, LANES: lanes of a row's sampled tokens, and of those that the drafter's first pass shifts."""
    program, strip = tl.program_id(0), tl.program_id(1)
    b = program * ROWS + tl.arange(0, ROWS)
    inside = b < n.num_reqs_padded
    start = tl.load(x.query_start_loc + b, mask=inside, other=0)
    query = tl.load(x.query_start_loc + b + 1, mask=inside, other=0) - start
    # Computed before the loads, this mask makes ptxas spread those of idx_mapping below; that version took a tenth
    # longer with states.
    is_real = b < n.num_reqs
    # Before the rejected tokens are known: one memory latency instead of two.
    shifted, position = load_shifted(strip, start, tl.where(is_real, query, 0), x, LANES)
    if strip > 0:
        is_long = is_real & (query > strip * LANES)
        logits = tl.load(x.cu_num_logits + b + 1, mask=is_long, other=0)
        logits -= tl.load(x.cu_num_logits + b, mask=is_long, other=0)
        # prompt_lens may be read over the bus.
        unequal = is_long & (logits != tl.load(x.num_sampled + b, mask=is_long, other=0))
        _, _, _, nr = counts_of(b, unequal, x)
        kept, strips = tl.where(is_long, query - nr, 0), tl.num_programs(1)
        shift_rows(b, strip, strips, start, kept, start, start, shifted, position, x, out, LANES)
        return
    last_end = tl.load(x.query_start_loc + n.num_reqs)
    length = tl.load(x.seq_lens + b, mask=inside, other=0)
    slot = tl.load(x.idx_mapping + b, mask=is_real, other=0)
    prompt_token = tl.load(x.next_prefill_tokens + slot, mask=is_real, other=0)
    s, ns, nr, computed, newest = update_rows(b, inside, x, out, n, False, SAMPLED)
    count = tl.maximum(ns, 1)
    if STATES:
        column = tl.load(x.state_columns_before + s, mask=s >= 0, other=0)
        frozen, to, shift = freeze(computed, column, count, n.mamba_block_size)
        is_moved = (s >= 0) & frozen & ((to != column) | (shift > 0))
        store_move(out.moves, b, column, to, shift, is_moved, inside)
        count = tl.where(frozen & (to == column), 1, count)
    tl.store(out.num_accepted_tokens + s, count, mask=s >= 0)
    kept, token = tl.where(is_real, query - nr, 0), tl.where(ns > 0, newest.to(tl.int32), prompt_token)
    strips = tl.num_programs(1)
    shift_rows(b, 0, strips, start, kept, token, length, shifted, position, x, out, LANES)
    # After the rows, whose chain of loads is longer.
    clear_tails(program, last_end, out, n, TAIL)


@variant("step_epilogue")
def triton_fused(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """One launch for every part of a row."""
    num_reqs, (lanes, strips) = num_real(point), row_tiling(point)
    grid = (max(cdiv(point.batch_size, ROWS), cdiv(point.max_num_seqs + 1 - num_reqs, TAIL)), strips)
    tile = {
        "STATES": with_states(point),
        "ROWS": ROWS,
        "SAMPLED": triton.next_power_of_2(point.next_n),
        "LANES": lanes,
        "TAIL": TAIL,
    }
    arguments = sizes(point, x), bundle(x, *INPUTS), bundle(out, *OUTPUTS)
    return fixed_launch(step_epilogue_kernel, grid, *arguments, **tile, num_warps=2)
