"""step_epilogue: what a step leaves behind once tokens are sampled, and the inputs of the drafter's first pass.

    post_update         counts, history and last tokens of the request slots                  rows with their padding
    draft_inputs        first pass: tokens shifted by one, the newest token behind them       real rows
    mamba_align_step    after sampling: states to freeze, counts they start from              where states = yes

Each part is the operator of that name, over what those before it wrote: the drafter's first pass takes the counts and
last tokens of post_update, the states its counts by slot. ``accepted`` is max(num_sampled, 1), but 1 where a state was
frozen in its own column.

A row of the batch depends on no other row, so all parts of a row can be one program: nothing is read back. State is
read from the inputs and written to the outputs; an engine passes one array as both.

vLLM 0.33 takes 5 launches, 8 with recurrent states, and 4 copies of arrays that are not needed any more then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from baselines.draft_inputs import operator as draft_inputs
from baselines.mamba_align_step import operator as mamba_align_step
from baselines.post_update import operator as post_update
from baselines.step_epilogue.cases import EDGE_CASES, SEQUENCES
from baselines.workloads import axes
from baselines.workloads import request_slots as slots
from baselines.workloads.mamba_steps import MAMBA_BLOCK_SIZE
from harness.contract import HOST, Axis, Expected, Operator, Point

STATES = Axis("states", axes.choice("no", "yes"), "no", "whether the model has recurrent states")
AXES = slots.composed(
    *slots.BUSY_STEP,
    axes.ACCEPTANCE,
    post_update.PENALTIES,
    post_update.VOCAB_SIZE,
    post_update.HISTORY_LEN,
    slots.MEMORY,
    STATES,
    MAMBA_BLOCK_SIZE,
    axes.MAX_NUM_BATCHED_TOKENS,
)
RULES = (
    *post_update.RULES,
    slots.TOKENS_FIT,
)


def with_states(point: Point) -> bool:
    return point.states == "yes"


def part(operator: Operator, point: Point, **changes: Any) -> Point:
    """The step's point as one of a part."""
    own = {axis.name: point[axis.name] for axis in operator.axes if axis.name in point}
    return operator.complete({**own, **changes})


def update_point(point: Point) -> Point:
    return part(post_update.operator, point, new_drafts="no")


def drafter_point(point: Point) -> Point:
    """draft_inputs has no padding rows."""
    return part(draft_inputs.operator, point, batch_size=slots.num_real(point), draft_pass="first")


def states_point(point: Point) -> Point:
    return part(mamba_align_step.operator, point, phase="after_sampling")


@dataclass(frozen=True)
class Inputs:
    idx: torch.Tensor  # [B] int64, request slot; -1 = padding, behind all others
    cu_num_logits: torch.Tensor  # [B + 1] int32
    query_start_loc: torch.Tensor  # [R + 1] int32
    seq_lens: torch.Tensor  # [B] int32, after the step, rejected drafts included
    num_sampled: torch.Tensor  # [B] int32, tokens the sampler produced
    tokens: torch.Tensor  # [B, next_n] int64, strided rows, packed left
    num_computed: torch.Tensor  # [R] int32, by slot, as all state
    total: torch.Tensor  # [R] int32
    bins: torch.Tensor | None  # [R, vocab_size] int32
    next_prefill: torch.Tensor  # [R] int32
    columns_before: torch.Tensor | None  # [R] int32
    prompt_lens_device: torch.Tensor | None  # [R] int32
    prompt_lens_host: torch.Tensor | None = field(metadata=HOST)  # in pinned memory, where memory = uva
    target_ids: torch.Tensor  # [max_num_batched_tokens] int32, the step's tokens
    target_pos: torch.Tensor  # [max_num_batched_tokens] int64
    num_tokens: int  # A


@dataclass(frozen=True)
class Outputs:
    num_sampled: torch.Tensor  # [R] int32, by row, as all of post_update
    num_rejected: torch.Tensor
    num_computed: torch.Tensor
    total: torch.Tensor
    last: torch.Tensor
    accepted: torch.Tensor
    bins: torch.Tensor | None
    all_ids_device: torch.Tensor | None
    all_ids_host: torch.Tensor | None = field(metadata=HOST)
    ids: torch.Tensor  # [max_num_batched_tokens] int32, as all of draft_inputs
    pos: torch.Tensor
    lens: torch.Tensor
    starts: torch.Tensor
    last_index: torch.Tensor
    step: torch.Tensor
    moves: torch.Tensor | None  # [R, 3] int32, where the model has states


def make_inputs(point: Point, seed: int) -> Inputs:
    x, rng = post_update.make_inputs(update_point(point), seed), np.random.default_rng([seed, 7])
    real, capacity, tokens = slots.num_real(point), point.max_num_seqs, slots.num_tokens(point)
    lens = x.seq_lens[:real].numpy().astype(np.int64)
    query = torch.diff(x.query_start_loc[: real + 1]).tolist()
    ids = torch.full((point.max_num_batched_tokens,), slots.UNUSED, dtype=torch.int32)
    pos = torch.full((point.max_num_batched_tokens,), slots.UNUSED)
    token = lambda count: torch.from_numpy(rng.integers(0, point.vocab_size, count)).int()  # noqa: E731
    ids[:tokens] = token(tokens)
    pos[:tokens] = torch.cat([torch.arange(n - q, n) for n, q in zip(lens.tolist(), query, strict=True)])
    columns = (lens - 1) // point.mamba_block_size
    shared = {name: getattr(x, name) for name in Inputs.__dataclass_fields__ if hasattr(x, name)}
    return Inputs(
        **shared,
        next_prefill=token(capacity),
        columns_before=slots.by_slot(x.idx[:real].numpy(), columns, capacity) if with_states(point) else None,
        target_ids=ids,
        target_pos=pos,
        num_tokens=tokens,
    )


def make_outputs(point: Point) -> Outputs:
    made = vars(post_update.make_outputs(update_point(point))) | vars(draft_inputs.make_outputs(drafter_point(point)))
    made["moves"] = torch.empty(point.max_num_seqs, 3, dtype=torch.int32) if with_states(point) else None
    return Outputs(**{name: made[name] for name in Outputs.__dataclass_fields__})


# --- point, inputs and outputs for the variants of the parts ----------------------------------------------------------


def update_part(point: Point, x: Inputs, out: Outputs) -> tuple[Point, post_update.Inputs, post_update.Outputs]:
    inputs = {name: getattr(x, name, None) for name in post_update.Inputs.__dataclass_fields__}
    outputs = {name: getattr(out, name, None) for name in post_update.Outputs.__dataclass_fields__}
    return update_point(point), post_update.Inputs(**inputs), post_update.Outputs(**outputs)


def drafter_part(point: Point, x: Inputs, out: Outputs) -> tuple[Point, draft_inputs.Inputs, draft_inputs.Outputs]:
    """Over the counts and last tokens that post_update has written before."""
    real = slots.num_real(point)
    inputs = draft_inputs.Inputs(
        query_start_loc=x.query_start_loc,
        seq_lens=x.seq_lens[:real],
        num_rejected=out.num_rejected[:real],
        step=out.step,
        target_ids=x.target_ids,
        target_pos=x.target_pos,
        idx=x.idx[:real],
        num_sampled=out.num_sampled[:real],
        last=out.last,
        next_prefill=x.next_prefill,
        num_tokens=x.num_tokens,
    )
    names = ("ids", "pos", "lens", "starts", "last_index", "step")
    return drafter_point(point), inputs, draft_inputs.Outputs(**{name: getattr(out, name) for name in names})


def states_part(
    point: Point, x: Inputs, out: Outputs
) -> tuple[Point, mamba_align_step.Inputs, mamba_align_step.Outputs]:
    """Over the counts by slot that post_update has written before; ``accepted`` in place."""
    inputs = mamba_align_step.Inputs(
        idx=x.idx, num_computed=out.num_computed, columns_before=x.columns_before, accepted_before=out.accepted
    )
    return states_point(point), inputs, mamba_align_step.Outputs(accepted=out.accepted, moves=out.moves)


def views(point: Point, out: Outputs) -> dict[str, torch.Tensor]:
    found = post_update.views(update_point(point), update_part(point, None, out)[2])
    names = ("ids", "pos", "lens", "starts", "last_index", "step")
    return found | {name: getattr(out, name) for name in names} | _moves(point, out)


def _moves(point: Point, out: Outputs) -> dict[str, torch.Tensor]:
    return {"moves": out.moves[: point.batch_size]} if with_states(point) else {}


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    """The references of the parts, each over what those before it wrote."""
    written, found = make_outputs(point), {}

    def of(module: Any, cut: Any) -> None:
        for name, e in module.reference(*cut(point, x, written)[:2]).items():
            getattr(written, name).copy_(e.value)
            found[name] = e

    of(post_update, update_part)
    of(draft_inputs, drafter_part)
    if with_states(point):
        of(mamba_align_step, states_part)
    return found


def bytes_moved(point: Point, x: Inputs) -> int:
    """That of the parts, without what one writes and another one reads, and row data once."""
    written = {name: e.value for name, e in reference(point, x).items()}
    out = Outputs(**(dict.fromkeys(Outputs.__dataclass_fields__) | written))
    real = slots.num_real(point)
    total = post_update.bytes_moved(*update_part(point, x, out)[:2])
    # Of the drafter's rows: idx, starts, length, counts and last token are known.
    total += draft_inputs.bytes_moved(*drafter_part(point, x, out)[:2]) - real * (8 + 4 + 4 + 4 + 4 + 8)
    if with_states(point):
        total += point.batch_size * (4 + 12)
    return total


operator = Operator(
    name="step_epilogue",
    summary="what a sampled step leaves behind: counts, state of the slots, the drafter's first inputs, states to move",
    axes=AXES,
    make_inputs=make_inputs,
    make_outputs=make_outputs,
    views=views,
    reference=reference,
    bytes_moved=bytes_moved,
    baseline="op_chain",
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    rules=RULES,
    redundant=slots.redundant,
)
