"""step_prologue: all metadata of a step that is built before the target's forward pass, from the request slots.

vLLM's runner V2 launches it at the start of execute_model (v1/worker/gpu/model_runner.py), its attention backends
included:

    step_inputs               positions, lengths, input tokens, logit rows                 B real rows
    gather_block_tables       block tables of all groups in batch order                    cleared behind the real rows
    compute_slot_mappings     KV-cache slot of every token; none in groups of states       rows with their padding
    mamba_align_step          columns, state slots, accepted counts, moves                 where state_groups > 0
    decode_step               the indexer's lengths and tables, and the attention's tiles  where indexer is not none

Each part is the operator of that name; lengths and tables in batch order that one part writes are inputs of the next.
All of it is a function of a row's slot s = idx_mapping[b], its query start and the state of that slot:

    length of row b = num_computed_tokens[s] + query_start_loc[b + 1] - query_start_loc[b], 0 where s < 0
    position of its token j = num_computed_tokens[s] + j
    row b of a table in batch order = row s of the table by slot

The last ``state_groups`` groups hold recurrent states: their blocks have mamba_block_size tokens, their tables k
scratch columns, and no generic slot mapping. The indexer reads the first group, which has no window then, and decodes
only: prefill chunks have metadata of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.compute_slot_mappings import operator as compute_slot_mappings
from spec_decode_bench.baselines.decode_step import operator as decode_step
from spec_decode_bench.baselines.gather_block_tables import operator as gather_block_tables
from spec_decode_bench.baselines.mamba_align_step import operator as mamba_align_step
from spec_decode_bench.baselines.step_inputs import operator as step_inputs
from spec_decode_bench.baselines.step_prologue.cases import EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.composition import Composition, Part, part_point
from spec_decode_bench.baselines.workloads.decode_batch import accepted_drafts, int32
from spec_decode_bench.baselines.workloads.mamba_steps import MAMBA_BLOCK_SIZE
from spec_decode_bench.harness.contract import Axis, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I32, I64, Bool, Tensors, field

INDEXER = Axis(
    "indexer",
    axes.choice("none", "flatten", "native"),
    "none",
    "whether the model has a sparse indexer, and its decode path",
)
AXES = slots.composed(
    *slots.BUSY_STEP,
    INDEXER,
    *slots.GROUPS,
    slots.STATE_GROUPS,
    *(
        replace(axis, idle=lambda p, own=axis.idle: not p.state_groups or own(p))
        for axis in (MAMBA_BLOCK_SIZE, axes.ACCEPTANCE, mamba_align_step.FRESH)
    ),
    gather_block_tables.WINDOW,
    gather_block_tables.DIRTY,
    step_inputs.LOOK_AHEAD,
    step_inputs.PROMPT_ROWS,
    step_inputs.HISTORY_LEN,
    slots.MEMORY,
    axes.MAX_NUM_BATCHED_TOKENS,
    axes.TOKEN_PADDING,
    *(
        replace(axis, idle=lambda p: p.indexer == "none")
        for axis in decode_step.operator.axes
        if axis.name in ("num_heads_q", "num_sms", "num_sm_parts", "remainder")
    ),
    axes.contents(step_inputs.CONTENTS),
)


def with_indexer(point: Point) -> bool:
    return point.indexer != "none"


def _at(operator: Operator, point: Point, **changes: Any) -> Point:
    """The step's point as one of a part, with what the groups of several parts depend on."""
    groups = {name: point[name] for name in ("next_n", "mamba_block_size", "state_groups")}
    return Point({**groups, **part_point(operator, point, **changes)})


def indexer_point(point: Point) -> Point:
    return _at(decode_step.operator, point, decode_path="flatten" if point.indexer == "none" else point.indexer)


def inputs_point(point: Point) -> Point:
    """step_inputs has no padding rows."""
    return _at(step_inputs.operator, point, batch_size=slots.num_real(point))


def tables_point(point: Point) -> Point:
    return _at(gather_block_tables.operator, point)


def slots_point(point: Point) -> Point:
    return _at(compute_slot_mappings.operator, point)


def states_point(point: Point) -> Point:
    return _at(mamba_align_step.operator, point, num_groups=point.state_groups, phase="before_forward")


def _whole(single: Operator, point: Point) -> bool:
    return single.broken_rule(point) is None


RULES = (
    *slots.STEP_RULES,
    slots.TOKENS_FIT,
    slots.SLOTS_FIT,
    Rule(
        "state_groups ({state_groups}) must be less than num_groups ({num_groups}): the first group is attention's",
        lambda p: p.state_groups < p.num_groups,
    ),
    Rule("dirty ({dirty}) must not exceed max_num_seqs ({max_num_seqs})", lambda p: p.dirty <= p.max_num_seqs),
    *(rule for rule in step_inputs.RULES if rule not in (*slots.STEP_RULES, slots.TOKENS_FIT)),
    Rule(
        "indexer ({indexer}) takes decodes only: prefills ({prefills}) must be 0",
        lambda p: not (with_indexer(p) and p.prefills),
    ),
    Rule(
        "indexer ({indexer}) reads the first group, which has a window ({window}) where num_groups is {num_groups}",
        lambda p: not (with_indexer(p) and p.window) or p.num_groups > 1,
    ),
    Rule("num_sm_parts ({num_sm_parts}) must not exceed num_sms ({num_sms})", lambda p: p.num_sm_parts <= p.num_sms),
    Rule(
        "the indexer's tables of batch_size {batch_size}, max_decode_len {max_decode_len}, token_padding "
        "{token_padding} and max_model_len {max_model_len} must fit: python bench.py list decode_step has the limits",
        lambda p: not with_indexer(p) or _whole(decode_step.operator, indexer_point(p)),
    ),
)


def _with_states(point: Point) -> bool:
    return point.state_groups > 0


class Inputs(Tensors):
    idx_mapping: I64["batch_size"]  # request slot; -1 = padding, behind all others
    query_start_loc: I32["max_num_seqs + 1"]
    query_start_loc_cpu: I32["batch_size + 1"] = field(host=True)
    cu_num_logits: I32["batch_size + 1"]
    num_computed_tokens: I32["max_num_seqs"]  # by slot, as all state
    last_sampled_tokens: I64["max_num_seqs"]
    draft_tokens: I64["max_num_seqs", "next_n - 1"]
    prompt_lens_device: I32["max_num_seqs"] = field(where=slots.on_device)
    all_token_ids_device: I32["max_num_seqs", "history_len"] = field(where=slots.on_device)
    state_columns_before: I32["max_num_seqs"] = field(where=_with_states)
    num_accepted_tokens_before: I32["max_num_seqs"] = field(where=_with_states)
    tables: I32[slots.table_entries]  # by slot: group g is [R, widths[g]] from starts[g] on
    starts: I64["num_groups"]
    widths: I64["num_groups"]
    block_sizes: I32["num_groups"]
    reach: I32["num_groups"]  # 0 = no window
    enabled: Bool["num_groups"]  # whether the group has generic slot mapping
    sharded: Bool["num_groups"]  # all false: one context-parallel rank
    num_blocks_device: I32["num_groups", "max_num_seqs"] = field(where=slots.on_device)
    num_tokens: int  # A
    num_logits: int  # N
    prompt_lens_host: I32["max_num_seqs"] = field(uva=True, where=slots.on_host)
    all_token_ids_host: I32["max_num_seqs", "history_len"] = field(uva=True, where=slots.on_host)
    num_blocks_host: I32["num_groups", "max_num_seqs"] = field(uva=True, where=slots.on_host)

    prompt_lens = slots.in_either_memory("prompt_lens")


def _state_tables(point: Point, flat: torch.Tensor) -> torch.Tensor:
    """[state_groups, R, W]: the tables of the groups that hold states, which have one width and lie side by side."""
    first = slots.table_starts(point)[point.num_groups - point.state_groups]
    return flat[first:].view(point.state_groups, point.max_num_seqs, slots.group_widths(point)[-1])


def _slot_tables(point: Point, x: Inputs, out: Outputs) -> torch.Tensor:
    return _state_tables(point, x.tables)


def _batch_tables(point: Point, x: Inputs, out: Outputs) -> torch.Tensor:
    return _state_tables(point, out.block_tables)


def _first_group(point: Point, x: Inputs, out: Outputs) -> torch.Tensor:
    return slots.group_tables(point, out.block_tables)[0]


def _num_decode_tokens(point: Point, x: Inputs, out: Outputs) -> int:
    return x.num_tokens + point.token_padding


inputs_part = Part(step_inputs.operator, inputs_point)
tables_part = Part(gather_block_tables.operator, tables_point, shared={"idx_mapping": slots.num_real})
#: Over the positions that step_inputs has written.
slots_part = Part(
    compute_slot_mappings.operator,
    slots_point,
    shared={"idx_mapping": "batch_size", "query_start_loc": "batch_size + 1", "positions": slots.num_tokens},
)
#: Over the lengths and tables in batch order that step_inputs and gather_block_tables have written.
states_part = Part(
    mamba_align_step.operator,
    states_point,
    _with_states,
    reads={"seq_lens": "seq_lens", "slot_tables": _slot_tables, "batch_tables": _batch_tables},
    shared={"idx_mapping": "batch_size"},
)
#: Over the lengths and the first group's table in batch order.
indexer_part = Part(
    decode_step.operator,
    indexer_point,
    with_indexer,
    reads={"seq_lens": "seq_lens", "block_table": _first_group, "num_decode_tokens": _num_decode_tokens},
    writes={"block_table": "expanded_block_table"},
    shared={"seq_lens": "batch_size", "query_start_loc": "batch_size + 1"},
)
PARTS = Composition(inputs_part, tables_part, slots_part, states_part, indexer_part)
Outputs = PARTS.Outputs


def make_inputs(point: Point, seed: int) -> Inputs:
    rows, real, capacity = point.batch_size, slots.num_real(point), point.max_num_seqs
    x = step_inputs.make_inputs(inputs_point(point), seed)
    idx_mapping = torch.full((rows,), -1)
    idx_mapping[:real] = x.idx_mapping
    of_rows = x.idx_mapping.numpy()
    computed = x.num_computed_tokens.numpy().astype(np.int64)[of_rows]
    lens = torch.zeros(rows, dtype=torch.int32)
    lens[:real] = int32(computed) + torch.diff(x.query_start_loc[: real + 1])
    step = replace(
        slots.make_step(point, seed), idx_mapping=idx_mapping, num_computed_tokens=x.num_computed_tokens, seq_lens=lens
    )
    accepted = columns = None
    if point.state_groups:
        rng = np.random.default_rng([seed, 6])
        drafts = accepted_drafts(rng, point.acceptance, real, point.next_n - 1)
        accepted, columns = mamba_align_step.running_states(point, rng, computed, 1 + drafts)
    unchanged = {name: value for name, value in vars(x).items() if name not in ("idx_mapping", "cu_num_logits")}
    return Inputs(
        **unchanged,
        **slots.placed(point, num_blocks=slots.num_blocks(point, step)),
        idx_mapping=idx_mapping,
        query_start_loc_cpu=x.query_start_loc[: rows + 1].clone(),
        cu_num_logits=torch.cat([x.cu_num_logits, x.cu_num_logits[-1:].expand(rows - real)]),
        state_columns_before=None if columns is None else slots.by_slot(of_rows, columns, capacity),
        num_accepted_tokens_before=None if accepted is None else slots.by_slot(of_rows, accepted, capacity),
        tables=slots.make_tables(point, step, seed),
        starts=torch.tensor(slots.table_starts(point)[:-1]),
        widths=torch.tensor(slots.group_widths(point)),
        block_sizes=int32(slots.group_block_sizes(point)),
        reach=int32(gather_block_tables.reaches(point)),
        enabled=torch.arange(point.num_groups) < point.num_groups - point.state_groups,
        sharded=torch.zeros(point.num_groups, dtype=torch.bool),
    )


def in_place(point: Point) -> Mapping[str, str]:
    return {"reset_accepted": "num_accepted_tokens_before", "state_columns": "state_columns_before"}


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point, rows=False)


operator = Operator(
    name="step_prologue",
    summary="all metadata before the forward pass, from the request slots: inputs, tables, slots, states, indexer",
    indices={"slot_mappings": ("g", "t")},
    axes=AXES,
    rules=RULES,
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=PARTS.reference,
    bytes_moved=PARTS.bytes_moved,
    in_place=in_place,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
    redundant=slots.redundant,
)
