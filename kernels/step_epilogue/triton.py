"""step_epilogue in Triton: one launch, in which a program does all parts of its rows.

    cuda_sequence               the fused kernels of the parts one after another (chains.py): two or three launches
    triton_fused, cuda_fused    one launch

The drafter's first pass needs the counts and the newest token of its row, the states its count by slot: both are in
registers where the row was updated. Programs do not specialise as in step_prologue, because state may be one array as
input and output: a program that read a slot for itself could read what another one has written. Further programs of a
long row (strip > 0) only shift its tokens; what they read is by row or never written.

step_epilogue.cu has the versions that were tried.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import triton
import triton.language as tl

from baselines.step_epilogue.operator import Inputs, Outputs, drafter_part, states_part, update_part, with_states
from baselines.workloads.integers import cdiv
from baselines.workloads.request_slots import num_real, row_tiling
from harness.bundle import Arguments, bundle
from harness.contract import Point, variant
from harness.launch import fixed_launch
from kernels.draft_inputs import triton as draft_inputs
from kernels.draft_inputs.triton import clear_tails, load_shifted, shift_rows
from kernels.mamba_align_step import triton as mamba_align_step
from kernels.mamba_align_step.triton import freeze, store_move
from kernels.post_update import triton as post_update
from kernels.post_update.triton import counts_of, update_rows

#: Rows of a program, and entries of the tails that it clears.
ROWS, TAIL = 4, 256


@triton.jit
def step_epilogue_kernel(
    update,
    drafter,
    states,
    STATES: tl.constexpr,
    ROWS: tl.constexpr,
    SAMPLED: tl.constexpr,
    LANES: tl.constexpr,
    TAIL: tl.constexpr,
):
    """update, drafter, states: Arguments of post_update, draft_inputs and, if STATES, mamba_align_step.

    SAMPLED, LANES: lanes of a row's sampled tokens, and of those that the drafter's first pass shifts.
    """
    program, strip = tl.program_id(0), tl.program_id(1)
    b = program * ROWS + tl.arange(0, ROWS)
    x, inside, is_real = update.x, b < update.n.num_reqs_padded, b < drafter.n.num_reqs
    start = tl.load(x.query_start_loc + b, mask=inside, other=0)
    query = tl.load(x.query_start_loc + b + 1, mask=inside, other=0) - start
    # Before the rejected tokens are known: one memory latency instead of two.
    shifted, position = load_shifted(strip, start, tl.where(is_real, query, 0), drafter.x, LANES)
    if strip > 0:
        is_long = is_real & (query > strip * LANES)
        logits = tl.load(x.cu_num_logits + b + 1, mask=is_long, other=0)
        logits -= tl.load(x.cu_num_logits + b, mask=is_long, other=0)
        # prompt_lens may be read over the bus.
        unequal = is_long & (logits != tl.load(x.num_sampled + b, mask=is_long, other=0))
        _, _, _, nr = counts_of(b, unequal, x)
        kept, strips = tl.where(is_long, query - nr, 0), tl.num_programs(1)
        shift_rows(b, strip, strips, start, kept, start, start, shifted, position, drafter.x, drafter.out, LANES)
        return
    last_end = tl.load(x.query_start_loc + drafter.n.num_reqs)
    length = tl.load(x.seq_lens + b, mask=inside, other=0)
    slot = tl.load(x.idx_mapping + b, mask=is_real, other=0)
    prompt_token = tl.load(drafter.x.next_prefill_tokens + slot, mask=is_real, other=0)
    s, ns, nr, computed, newest = update_rows(b, inside, x, update.out, update.n, SAMPLED)
    count = tl.maximum(ns, 1)
    if STATES:  # not `states is not None`: Triton 3.6 cannot compare a bundle that has a None
        column = tl.load(states.x.state_columns_before + s, mask=s >= 0, other=0)
        frozen, to, shift = freeze(computed, column, count, states.n.block_size)
        is_moved = (s >= 0) & frozen & ((to != column) | (shift > 0))
        store_move(states.out.moves, b, column, to, shift, is_moved, inside)
        count = tl.where(frozen & (to == column), 1, count)
    tl.store(update.out.num_accepted_tokens + s, count, mask=s >= 0)
    kept, token = tl.where(is_real, query - nr, 0), tl.where(ns > 0, newest.to(tl.int32), prompt_token)
    strips = tl.num_programs(1)
    shift_rows(b, 0, strips, start, kept, token, length, shifted, position, drafter.x, drafter.out, LANES)
    # After the rows, whose chain of loads is longer.
    clear_tails(program, last_end, drafter.out, drafter.n, TAIL)


def arguments(point: Point, x: Inputs, out: Outputs) -> tuple[Arguments, Arguments, Arguments | None]:
    """Of the parts: post_update, draft_inputs and, where there are states, mamba_align_step."""

    def of_part(module: ModuleType, at: Point, inputs: Any, outputs: Any) -> Arguments:
        return Arguments(bundle(inputs), bundle(outputs), module.sizes(at, inputs))

    update = of_part(post_update, *update_part(point, x, out))
    drafter = of_part(draft_inputs, *drafter_part(point, x, out))
    return update, drafter, of_part(mamba_align_step, *states_part(point, x, out)) if with_states(point) else None


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
    return fixed_launch(step_epilogue_kernel, grid, *arguments(point, x, out), **tile, num_warps=2)
