"""mamba_align_step from PyTorch operators, and compiled."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.mamba_align_step.operator import Inputs, Outputs, operator
from spec_decode_bench.baselines.workloads.request_slots import rows_of_slots
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled
from spec_decode_bench.harness.contract import COMPILER, Point, variant


def before_forward(x: Inputs, out: Outputs, none: torch.Tensor, offsets: torch.Tensor, size: int) -> None:
    """none: [3] int32, no move. offsets: [1 + k] int64."""
    rows, s, real = len(x.idx_mapping), x.idx_mapping.clamp(min=0), x.idx_mapping >= 0
    starts = x.query_start_loc[: rows + 1]
    old, count = x.state_columns_before[s], x.num_accepted_tokens_before[s]
    new = (x.num_computed_tokens[s] + torch.diff(starts) - 1) // size
    shift = (count - 1).clamp(min=0)
    crosses = real & (old >= 0) & (old != new)
    count = torch.where(crosses, 1, count)

    row, live = rows_of_slots(x.idx_mapping, len(x.num_computed_tokens))
    for target, values in (
        (out.source_columns, old),
        (out.source_offsets, shift),
        (out.state_columns, new),
        (out.num_accepted_tokens, count),
    ):
        target.copy_(torch.where(live, values[row], target))
    moves = torch.stack([old, new, shift], 1)
    out.moves[:rows].copy_(torch.where(crosses[:, None], moves, none))
    out.batch_accepted[:rows].copy_(torch.where(real, count, 1))
    first = ((x.seq_lens - 1) // size).clamp(min=0)
    columns = (first[:, None] + offsets).expand(len(x.batch_tables), -1, -1)
    out.state_slots[:, :rows].copy_(x.batch_tables.gather(2, columns))
    out.mask[:rows].copy_(real)
    out.starts[: rows + 1].copy_(starts)


def after_sampling(x: Inputs, out: Outputs, none: torch.Tensor, size: int) -> None:
    """none: [3] int32, no move."""
    rows, s, real = len(x.idx_mapping), x.idx_mapping.clamp(min=0), x.idx_mapping >= 0
    column, count, computed = x.state_columns_before[s], x.num_accepted_tokens_before[s], x.num_computed_tokens[s]
    running, aligned = computed - count + 1, computed // size * size
    to = aligned // size - 1
    frozen = real & (aligned >= running)
    row, live = rows_of_slots(x.idx_mapping, len(x.num_computed_tokens))
    counts = torch.where(frozen & (to == column), 1, count)
    out.num_accepted_tokens.copy_(torch.where(live, counts[row], out.num_accepted_tokens))
    copies = frozen & ((to != column) | (aligned > running))
    moves = torch.stack([column, to, aligned - running], 1)
    out.moves[:rows].copy_(torch.where(copies[:, None], moves, none))


def set_up_before(
    point: Point, x: Inputs, out: Outputs, fill: Callable[..., None] = before_forward
) -> Callable[[], None]:
    offsets = torch.arange(point.next_n, device=out.moves.device)
    none = torch.tensor([-1, -1, 0], dtype=torch.int32, device=out.moves.device)
    return lambda: fill(x, out, none, offsets, point.mamba_block_size)


def set_up_after(
    point: Point, x: Inputs, out: Outputs, fill: Callable[..., None] = after_sampling
) -> Callable[[], None]:
    none = torch.tensor([-1, -1, 0], dtype=torch.int32, device=out.moves.device)
    return lambda: fill(x, out, none, point.mamba_block_size)


_PHASES = {"before_forward": (set_up_before, before_forward), "after_sampling": (set_up_after, after_sampling)}


@variant("mamba_align_step", waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Gathers by slot, column arithmetic, selects back by slot; state slots of all groups by one gather."""
    return _PHASES[point.phase][0](point, x, out)


_STEP = {"batch_size": BUSY_BATCH, "max_num_seqs": 270, "next_n": 6, "max_model_len": 9000, "padding": 0.2}


@variant("mamba_align_step", requires=COMPILER, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the operator chain."""
    set_up, chain = _PHASES[point.phase]
    examples = (_STEP | {"num_groups": 5}, _STEP, {"batch_size": 1})
    examples = [example | {"phase": point.phase} for example in examples]
    return set_up(point, x, out, compiled(chain, set_up, operator, examples, out.moves.device))
