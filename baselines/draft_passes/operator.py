"""draft_passes: metadata of a drafter's passes 2 .. k at once, where its closed form holds.

After the first pass each pass runs over one token per request, one position further on, whatever token was drafted. For
pass i + 1 (1 <= i < k) and row b of the B real rows, with s = idx_mapping[b], p = seq_lens[b] - num_rejected[b] - 1,
the position of the last kept token, and M = max_model_len:

    sample_src_positions[i - 1, b] = p + i + 1           sampling key
    positions[i - 1, b] = min(p + i, M - 1)              p where positions do not advance (``advance: no``)
    out.seq_lens[i - 1, b] = min(p + i + 1, M)           p + 1 where they do not; 0 from row B on
    slot_mappings[i - 1, g, b] = slot of positions[i - 1, b] in group g (compute_slot_mappings); -1 from row B on
    query_start_loc[j] = min(j, B)                       the same for all passes
    local_seq_lens[i - 1, b] = of out.seq_lens[i - 1, b] what lies on this rank (dcp_lengths)      where ``cp_size`` > 1
    schedule[i - 1] = paged_mqa_schedule over out.seq_lens[i - 1] of all rows with their padding, one atom each
                                                         where the model has a sparse indexer

That equals what the passes of draft_inputs make one after another, because min(min(x, M) + 1, M) = min(x + 1, M). Left
to a pass are the token of the pass before and its hidden row.

vLLM 0.33 takes two launches per pass, three with a sparse indexer. Under decode context parallelism it takes one more
for the local lengths, maps slots of shared groups to tokens of the rank, and makes no schedules between passes
(v1/attention/backends/mla/indexer.py: supports_draft_decode_metadata_update).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.compute_slot_mappings import operator as compute_slot_mappings
from spec_decode_bench.baselines.compute_slot_mappings.operator import CONTEXT_PARALLEL, INTERLEAVE_FITS, has_all_tokens
from spec_decode_bench.baselines.dcp_lengths.operator import held_of
from spec_decode_bench.baselines.draft_inputs import operator as draft_inputs
from spec_decode_bench.baselines.draft_passes.cases import CONTENTS, EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.paged_mqa_schedule import operator as paged_mqa_schedule
from spec_decode_bench.baselines.paged_mqa_schedule.operator import MAX_UNITS, SEGMENT
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.composition import part_point
from spec_decode_bench.baselines.workloads.decode_batch import accepted_drafts, int32
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I32, I64, Bool, Tensors, field

INDEXER = Axis(
    "indexer",
    axes.choice("none", "native", "flatten"),
    "none",
    "whether the drafter has a sparse indexer, which needs schedules; one token per request is the same on both paths",
)
NUM_SMS = replace(
    axes.num_sms("SMs that the indexer's schedules distribute work over", maximum=512),
    idle=lambda p: p.indexer == "none",
)
AXES = slots.composed(
    *slots.BUSY_STEP,
    *slots.GROUPS,
    axes.ACCEPTANCE,
    draft_inputs.ADVANCE,
    INDEXER,
    NUM_SMS,
    replace(paged_mqa_schedule.REMAINDER, idle=lambda p: p.indexer == "none"),
    *CONTEXT_PARALLEL,
    axes.MAX_NUM_BATCHED_TOKENS,
    axes.contents(CONTENTS),
)
RULES = (
    *slots.STEP_RULES,
    slots.TOKENS_FIT,
    slots.SLOTS_FIT,
    INTERLEAVE_FITS,
    Rule(
        "indexer ({indexer}) must be none where cp_size ({cp_size}) ranks share a context: no schedules between passes",
        lambda p: p.cp_size == 1 or p.indexer == "none",
    ),
    Rule("next_n ({next_n}) must be at least 3: one draft takes no further pass", lambda p: p.next_n >= 3),
    Rule(
        "the indexer takes batch_size ({batch_size}) rows of max_model_len ({max_model_len}) only where they make "
        f"fewer than {MAX_UNITS} segments of {SEGMENT} tokens",
        lambda p: p.indexer == "none" or p.batch_size * cdiv(p.max_model_len, SEGMENT) < MAX_UNITS,
    ),
)


def passes(point: Point) -> int:
    """Passes after the first one: k - 1."""
    return point.next_n - 2


def with_indexer(point: Point) -> bool:
    return point.indexer != "none"


def with_ranks(point: Point) -> bool:
    return point.cp_size > 1


class Inputs(Tensors):
    idx_mapping: I64["batch_size"]  # request slot; -1 = padding, behind all others
    seq_lens: I32["batch_size"]  # of the target's step, rejected drafts included; 0 in padding rows
    num_rejected: I32["batch_size"]
    tables: I32[slots.table_entries]  # by slot: group g is [R, widths[g]] from starts[g] on
    table_starts: I64["num_groups"]
    widths: I64["num_groups"]
    block_sizes: I32["num_groups"]
    enabled: Bool["num_groups"]
    sharded: Bool["num_groups"]  # all false on one context-parallel rank


class Outputs(Tensors):
    positions: I64[passes, "max_num_seqs"]
    seq_lens: I32[passes, "max_num_seqs"]
    sample_src_positions: I64[passes, "max_num_seqs"]
    slot_mappings: I64[passes, "num_groups", "max_num_seqs"]
    query_start_loc: I32["max_num_seqs + 1"]
    schedule: I32[passes, "num_sms + 1", 2] = field(where=with_indexer)
    local_seq_lens: I32[passes, "max_num_seqs"] = field(where=with_ranks)


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    """Requests own blocks for the tokens that are drafted, too."""
    step, rng = slots.make_step(point, seed), np.random.default_rng([seed, 8])
    real, k = slots.num_real(point), point.next_n - 1
    query = torch.diff(step.query_start_loc[: real + 1]).numpy()
    accepted = accepted_drafts(rng, point.acceptance, real, k)
    rejected = np.zeros(point.batch_size, dtype=np.int64)
    decodes = real - point.prefills
    rejected[:decodes] = (query - 1 - np.minimum(accepted, query - 1))[:decodes]
    drafted = (step.seq_lens - int32(rejected) + k).clamp(max=point.max_model_len) * (step.idx_mapping >= 0)
    groups = torch.zeros(point.num_groups, dtype=torch.bool)
    return Inputs(
        idx_mapping=step.idx_mapping,
        seq_lens=step.seq_lens,
        num_rejected=int32(rejected),
        tables=slots.make_tables(point, replace(step, seq_lens=drafted.int()), seed),
        table_starts=torch.tensor(slots.table_starts(point)[:-1]),
        widths=torch.tensor(slots.group_widths(point)),
        block_sizes=int32(slots.group_block_sizes(point)),
        enabled=~groups,
        sharded=torch.arange(point.num_groups) % 2 == 0 if with_ranks(point) else groups,
    )


# --- point, inputs and outputs for the variants of the parts, pass i of 1 .. k - 1 ------------------------------------


def slots_part(
    point: Point, x: Inputs, out: Outputs, i: int
) -> tuple[Point, compute_slot_mappings.Inputs, compute_slot_mappings.Outputs]:
    """Over the positions of the pass."""
    inputs = compute_slot_mappings.Inputs(
        idx_mapping=x.idx_mapping,
        query_start_loc=out.query_start_loc,
        positions=out.positions[i - 1],
        tables=x.tables,
        starts=x.table_starts,
        widths=x.widths,
        block_sizes=x.block_sizes,
        enabled=x.enabled,
        sharded=x.sharded,
        num_tokens=slots.num_real(point),
    )
    at = part_point(compute_slot_mappings.operator, point, max_num_batched_tokens=point.max_num_seqs)
    return at, inputs, compute_slot_mappings.Outputs(out.slot_mappings[i - 1])


def schedule_part(
    point: Point, x: Inputs, out: Outputs, i: int
) -> tuple[Point, paged_mqa_schedule.Inputs, paged_mqa_schedule.Outputs]:
    """Over the lengths of the pass: one query per request."""
    at = part_point(paged_mqa_schedule.operator, point, lens_layout="1d")
    inputs = paged_mqa_schedule.Inputs(out.seq_lens[i - 1, : point.batch_size])
    return at, inputs, paged_mqa_schedule.Outputs(out.schedule[i - 1])


def _pass_inputs(
    point: Point, x: Inputs, i: int, before: Mapping[str, torch.Tensor]
) -> tuple[Point, draft_inputs.Inputs]:
    """Of draft_inputs; ``before``: what it wrote for the pass before this one."""
    real = slots.num_real(point)
    which = "second" if i == 1 else "later"
    at = part_point(draft_inputs.operator, point, batch_size=real, draft_pass=which, hidden_size=1)
    seq_lens, num_rejected = x.seq_lens[:real], x.num_rejected[:real]
    nowhere = torch.zeros(point.max_num_seqs + 1, dtype=torch.int32)
    row = {"seq_lens": seq_lens, "num_rejected": num_rejected, "query_start_loc": nowhere}
    tokens = torch.zeros(real, dtype=torch.int64)
    if i == 1:
        last = seq_lens.long() - num_rejected - 1
        return at, draft_inputs.Inputs(
            **row,
            current_draft_step=torch.tensor([1]),
            positions_before=last,
            draft_tokens=tokens[:, None].expand(-1, point.next_n - 1),
        )
    return at, draft_inputs.Inputs(
        **row,
        current_draft_step=torch.tensor([i - 1]),
        sampled=tokens,
        positions_before=before["positions"],
        sample_src_positions_before=before["sample_src_positions"],
        seq_lens_before=before["seq_lens"],
        hidden_states_before=torch.zeros(real, 1, dtype=torch.int16),
    )


# Not a Composition: its parts run once per pass, on slices, and a pass reads what the one before it has written.
def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    """The references of the parts, pass after pass: nothing of the closed form."""
    out, real = Outputs.empty(point), slots.num_real(point)
    value = {name: torch.zeros_like(buffer) for name, buffer in out.views(point).items()}
    written, before, held = Outputs(**value), {}, held_of(point)
    value["query_start_loc"].copy_(torch.arange(point.max_num_seqs + 1).clamp(max=real))
    for i in range(1, passes(point) + 1):
        got = draft_inputs.reference(*_pass_inputs(point, x, i, before))
        before = {name: got[name].value[:real] for name in ("positions", "seq_lens", "sample_src_positions")}
        for name, content in before.items():
            value[name][i - 1, :real] = content
        value["slot_mappings"][i - 1] = compute_slot_mappings.reference(*slots_part(point, x, written, i)[:2])[
            "slot_mappings"
        ].value
        if with_indexer(point):
            made = paged_mqa_schedule.reference(*schedule_part(point, x, written, i)[:2])
            value["schedule"][i - 1] = made["schedule"].value
        if with_ranks(point):
            value["local_seq_lens"][i - 1] = int32([held(length) for length in value["seq_lens"][i - 1].tolist()])
    behind = (torch.arange(point.max_num_seqs) >= real).expand(passes(point), -1)
    kept = {"positions": behind, "sample_src_positions": behind}
    return {name: Expected(value[name], kept.get(name)) for name in value}


def bytes_moved(point: Point, x: Inputs) -> int:
    """Slots, lengths and rejected counts once; a table entry per block that the passes touch; all that is written."""
    real, capacity, count = slots.num_real(point), point.max_num_seqs, passes(point)
    entries = 0
    for size in x.block_sizes.tolist():
        for length, rejected in zip(x.seq_lens[:real].tolist(), x.num_rejected[:real].tolist(), strict=True):
            last = length - rejected - 1
            ahead = range(1, count + 1) if point.advance == "yes" else (0,)
            entries += len({min(last + i, point.max_model_len - 1) // size for i in ahead})
    written = count * (16 * real + 4 * capacity + 8 * point.num_groups * capacity) + 4 * (capacity + 1)
    schedules = 8 * count * (point.num_sms + 1) if with_indexer(point) else 0
    schedules += 4 * count * capacity if with_ranks(point) else 0
    return real * (8 + 4 + 4) + 4 * entries + 21 * point.num_groups + written + schedules


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point) | {"contents": "some_disabled"}


operator = Operator(
    name="draft_passes",
    summary="metadata of a drafter's passes 2 .. k at once: positions, lengths, keys, slots, the indexer's schedules",
    indices={"slot_mappings": ("i", "g", "b")},
    axes=AXES,
    rules=RULES,
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
    redundant=lambda p: has_all_tokens(p) or slots.redundant(p),
)
