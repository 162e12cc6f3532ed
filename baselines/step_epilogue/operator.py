"""step_epilogue: what a step leaves behind once tokens are sampled, and the inputs of the drafter's first pass.

    post_update         counts, history and last tokens of the request slots                  rows with their padding
    draft_inputs        first pass: tokens shifted by one, the newest token behind them       real rows
    mamba_align_step    after sampling: states to freeze, counts they start from              where states = yes

Each part is the operator of that name, over what those before it wrote: the drafter's first pass takes the counts and
last tokens of post_update, the states its counts by slot. ``num_accepted_tokens`` is max(num_sampled, 1), but 1 where a
state was frozen in its own column.

A row of the batch depends on no other row, so all parts of a row can be one program. State is read from the inputs and
written to the outputs; an engine passes one array as both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from spec_decode_bench.baselines.draft_inputs import operator as draft_inputs
from spec_decode_bench.baselines.mamba_align_step import operator as mamba_align_step
from spec_decode_bench.baselines.post_update import operator as post_update
from spec_decode_bench.baselines.step_epilogue.cases import EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.composition import Composition, Part, part_point
from spec_decode_bench.baselines.workloads.mamba_steps import MAMBA_BLOCK_SIZE
from spec_decode_bench.harness.contract import Axis, Operator, Point
from spec_decode_bench.harness.tensors import I32, I64, Tensors, field

STATES = Axis("states", axes.choice("no", "yes"), "no", "whether the model has recurrent states")
AXES = slots.composed(
    *slots.BUSY_STEP,
    axes.ACCEPTANCE,
    post_update.PENALTIES,
    post_update.VOCAB_SIZE,
    post_update.HISTORY_LEN,
    slots.MEMORY,
    STATES,
    replace(MAMBA_BLOCK_SIZE, idle=lambda p: not with_states(p) or MAMBA_BLOCK_SIZE.idle(p)),
    axes.MAX_NUM_BATCHED_TOKENS,
    axes.contents({name: edit for name, edit in post_update.CONTENTS.items() if name != "no_token"}),
)
RULES = (
    *post_update.RULES,
    slots.TOKENS_FIT,
)


def with_states(point: Point) -> bool:
    return point.states == "yes"


def update_point(point: Point) -> Point:
    return part_point(post_update.operator, point, new_drafts="no")


def drafter_point(point: Point) -> Point:
    """draft_inputs has no padding rows."""
    return part_point(draft_inputs.operator, point, batch_size=slots.num_real(point), draft_pass="first")


def states_point(point: Point) -> Point:
    return part_point(mamba_align_step.operator, point, phase="after_sampling")


update_part = Part(post_update.operator, update_point)
#: Over the counts and last tokens that post_update has written. Slot, start, length, counts and last token of a row are
#: known.
drafter_part = Part(
    draft_inputs.operator,
    drafter_point,
    reads={"num_rejected": "num_rejected", "num_sampled": "num_sampled"},
    shared=dict.fromkeys(
        ("idx_mapping", "query_start_loc", "seq_lens", "num_sampled", "num_rejected", "last_sampled_tokens"),
        slots.num_real,
    ),
)
#: Over the counts by slot that post_update has written; ``num_accepted_tokens`` in place. Columns are read and moves
#: written.
states_part = Part(
    mamba_align_step.operator,
    states_point,
    with_states,
    reads={"num_computed_tokens": "num_computed_tokens", "num_accepted_tokens_before": "num_accepted_tokens"},
    writes=dict.fromkeys(mamba_align_step.BEFORE_FORWARD),
    shared=dict.fromkeys(
        ("idx_mapping", "num_computed_tokens", "num_accepted_tokens_before", "num_accepted_tokens"), "batch_size"
    ),
)
PARTS = Composition(update_part, drafter_part, states_part)
Outputs = PARTS.Outputs


class Inputs(Tensors):
    idx_mapping: I64["batch_size"]  # request slot; -1 = padding, behind all others
    cu_num_logits: I32["batch_size + 1"]
    query_start_loc: I32["max_num_seqs + 1"]
    seq_lens: I32["batch_size"]  # after the step, rejected drafts included
    num_sampled: I32["batch_size"]  # tokens the sampler produced
    # packed left
    sampled_tokens: I64["batch_size", "next_n"] = field(strided=post_update.tokens_stride)
    num_computed_tokens: I32["max_num_seqs"]  # by slot, as all state
    total_len: I32["max_num_seqs"]
    output_bin_counts: I32["max_num_seqs", "vocab_size"] = field(where=post_update.with_penalties)
    next_prefill_tokens: I32["max_num_seqs"]
    state_columns_before: I32["max_num_seqs"] = field(where=with_states)
    prompt_lens_device: I32["max_num_seqs"] = field(where=slots.on_device)
    prompt_lens_host: I32["max_num_seqs"] = field(uva=True, where=slots.on_host)
    target_input_ids: I32["max_num_batched_tokens"]  # the step's tokens
    target_positions: I64["max_num_batched_tokens"]
    num_tokens: int  # A

    prompt_lens = slots.in_either_memory("prompt_lens")


def make_inputs(point: Point, seed: int) -> Inputs:
    x, rng = post_update.make_inputs(update_point(point), seed), np.random.default_rng([seed, 7])
    real, capacity, tokens = slots.num_real(point), point.max_num_seqs, slots.num_tokens(point)
    ids, following = (slots.token_ids(rng, point.vocab_size, count).int() for count in (tokens, capacity))
    columns = (x.seq_lens[:real].numpy().astype(np.int64) - 1) // point.mamba_block_size
    shared = {name: getattr(x, name) for name in Inputs.__dataclass_fields__ if hasattr(x, name)}
    return Inputs(
        **shared,
        next_prefill_tokens=following,
        state_columns_before=slots.by_slot(x.idx_mapping[:real].numpy(), columns, capacity)
        if with_states(point)
        else None,
        target_input_ids=slots.by_token(point, ids),
        target_positions=slots.positions(point, x),
        num_tokens=tokens,
    )


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point)


operator = Operator(
    name="step_epilogue",
    summary="what a sampled step leaves behind: counts, state of the slots, the drafter's first inputs, states to move",
    axes=AXES,
    rules=RULES,
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=PARTS.reference,
    bytes_moved=PARTS.bytes_moved,
    in_place=post_update.in_place,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
    redundant=slots.redundant,
)
