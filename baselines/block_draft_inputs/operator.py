"""block_draft_inputs: inputs of a drafter that drafts a whole block in one forward pass (DFlash, DSpark).

The drafter stores keys and values of the target's tokens, the context, and runs over Q query tokens per request: the
newest token, the anchor, and masks behind it. DFlash samples k drafts from the masks, so Q = k + 1; DSpark samples the
first one from the anchor (``sample_from_anchor: yes``), so Q = k. For row b < B with q tokens from start =
query_start_loc[b] on, s = idx_mapping[b], kept = q - num_rejected[b], p = target_positions[start + kept - 1], the
position of the last kept token, M = max_model_len. ``out.``: an output that has the name of an input.

    context  context_positions[start + j] = target_positions[start + j]          j < kept, else 0 (j < q)
             context_slot_mappings[g, start + j] = slot(g, target_positions[start + j])    j < kept, else -1
    query    i = b * Q + j, 0 <= j < Q:
             input_ids[i] = last_sampled_tokens[s] where num_sampled[b] > 0, else next_prefill_tokens[s]; j = 0
             input_ids[i] = mask_token_id                                        j > 0
             positions[i] = min(p + 1 + j, M - 1)                                is_padding[i] = false
             slot_mappings[g, i] = slot(g, p + 1 + j)
    row      out.query_start_loc[b] = b * Q                                      seq_lens[b] = min(p + 1 + Q, M)
             out.temperature[s] = temperature[s]                                 out.seeds[s] = seeds[s]
    drafts   sample_indices[b, j] = b * Q + j + Q - k                            0 <= j < k
             sample_pos[b, j] = p + 2 + j                                        sample_idx_mapping[b, j] = s
    behind   input_ids = positions = 0, is_padding = true, slot_mappings = -1 from token B * Q on; from row B on
             out.query_start_loc = B * Q, seq_lens = sample_indices = sample_pos = 0, sample_idx_mapping = -1
    slot(g, t), BS = block_sizes[g], V = BS * CP, o = t % V:
             -1 where t // V >= widths[g], where block_tables[g][b, t // V] = 0, or where o // I % CP != rank;
             else block_tables[g][b, t // V] * BS + o // (I * CP) * I + o % I

All else keeps its contents. Block 0 is the null block: columns below a sliding window name it, and nobody may write
there. A captured graph reads everything up to the capacity: an index of a stale row would sample into a live request's
logits.

vLLM 0.33: ``_prepare_dflash_inputs_kernel``, launched once per KV cache group of the drafter by
``prepare_dflash_inputs`` (v1/worker/gpu/spec_decode/dflash/speculator.py), slots by ``cp_local_slot`` (cp_utils.py),
temperature and seeds in pinned host memory (``memory: uva``). It clamps the column of a position past the table, so
drafts behind the model's range get slots of the last block. Left out: the fill of context slots that a replayed graph
reads behind the batch, hidden rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.block_draft_inputs.cases import CONTENTS, EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.compute_slot_mappings import operator as compute_slot_mappings
from spec_decode_bench.baselines.compute_slot_mappings.operator import rank_of
from spec_decode_bench.baselines.draft_inputs import operator as draft_inputs
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.composition import part_point
from spec_decode_bench.baselines.workloads.decode_batch import int32
from spec_decode_bench.baselines.workloads.written import Written, as_arrays
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import F32, I32, I64, Bool, Tensors, field

#: Id of a mask. Generated tokens are below.
MASK_TOKEN_ID = 151669

SAMPLE_FROM_ANCHOR = Axis(
    "sample_from_anchor",
    axes.choice("yes", "no"),
    "yes",
    "whether the anchor predicts the first draft (DSpark), so that there is one query token less (DFlash)",
)
AXES = slots.bounded(
    *slots.REAL_STEP,
    *slots.GROUPS,
    SAMPLE_FROM_ANCHOR,
    axes.ACCEPTANCE,
    compute_slot_mappings.CP_SIZE,
    compute_slot_mappings.CP_RANK,
    compute_slot_mappings.CP_INTERLEAVE,
    slots.MEMORY,
    axes.MAX_NUM_BATCHED_TOKENS,
    axes.contents(CONTENTS),
)
RULES = (
    *slots.STEP_RULES,
    slots.TOKENS_FIT,
    slots.SLOTS_FIT,
    Rule(
        "block_size ({block_size}) must be a multiple of cp_interleave ({cp_interleave}) where ranks share a group",
        lambda p: p.cp_size == 1 or p.block_size % p.cp_interleave == 0,
    ),
    Rule("next_n ({next_n}) must be at least 2: a block has a draft", lambda p: p.next_n >= 2),
    Rule(
        "the drafter's tokens (batch_size {batch_size}, next_n {next_n}) must not exceed max_num_batched_tokens "
        "({max_num_batched_tokens})",
        lambda p: p.batch_size * query_tokens(p) <= p.max_num_batched_tokens,
    ),
)


def query_tokens(point: Point) -> int:
    """Of a request in the drafter's pass (Q)."""
    return point.next_n - 1 if point.sample_from_anchor == "yes" else point.next_n


class Inputs(Tensors):
    target_positions: I64["max_num_batched_tokens"]  # anything behind the real tokens
    query_start_loc: I32["max_num_seqs + 1"]  # of the target's step
    idx_mapping: I64["batch_size"]  # request slot of each row, distinct
    num_sampled: I32["batch_size"]  # 0: the row is the middle of a prompt
    num_rejected: I32["batch_size"]  # less than the row's tokens
    last_sampled_tokens: I64["max_num_seqs"]  # by slot
    next_prefill_tokens: I32["max_num_seqs"]  # by slot
    block_tables: I32[slots.table_entries]  # in batch order: group g is [R, widths[g]] from table_starts[g] on
    table_starts: I64["num_groups"]
    widths: I64["num_groups"]  # row strides
    block_sizes: I32["num_groups"]
    temperature_device: F32["max_num_seqs"] = field(where=slots.on_device)  # by slot
    seeds_device: I64["max_num_seqs"] = field(where=slots.on_device)  # by slot
    temperature_host: F32["max_num_seqs"] = field(uva=True, where=slots.on_host)
    seeds_host: I64["max_num_seqs"] = field(uva=True, where=slots.on_host)
    num_tokens: int  # of the target's step, as the host counts them
    mask_token_id: int

    temperature = slots.in_either_memory("temperature")
    seeds = slots.in_either_memory("seeds")


class Outputs(Tensors):
    input_ids: I32["max_num_batched_tokens"]
    positions: I64["max_num_batched_tokens"]
    is_padding: Bool["max_num_batched_tokens"]
    query_start_loc: I32["max_num_seqs + 1"]
    seq_lens: I32["max_num_seqs"]
    slot_mappings: I64["num_groups", "max_num_batched_tokens"]
    context_positions: I64["max_num_batched_tokens"] = field(read=slots.num_tokens)
    context_slot_mappings: I64["num_groups", "max_num_batched_tokens"] = field(read=("num_groups", slots.num_tokens))
    sample_indices: I64["max_num_seqs", "next_n - 1"]
    sample_pos: I64["max_num_seqs", "next_n - 1"]
    sample_idx_mapping: I64["max_num_seqs", "next_n - 1"]  # -1: nothing is sampled
    temperature: F32["max_num_seqs"]  # by slot
    seeds: I64["max_num_seqs"]  # by slot


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    """The target's step is that of draft_inputs. Requests own blocks for the drafter's tokens, too."""
    step, rng = slots.make_step(point, seed), np.random.default_rng([seed, 9])
    target = draft_inputs.make_inputs(part_point(draft_inputs.operator, point, contents="random"), seed)
    drafted = (step.seq_lens - target.num_rejected + query_tokens(point)).clamp(max=point.max_model_len)
    by_slot = slots.make_tables(point, replace(step, seq_lens=drafted), seed)
    by_row = torch.full_like(by_slot, slots.UNUSED)
    for source, table in zip(slots.group_tables(point, by_slot), slots.group_tables(point, by_row), strict=True):
        table[: point.batch_size] = source[step.idx_mapping]
    capacity = point.max_num_seqs
    return Inputs(
        target_positions=target.target_positions,
        query_start_loc=target.query_start_loc,
        idx_mapping=target.idx_mapping,
        num_sampled=target.num_sampled,
        num_rejected=target.num_rejected,
        last_sampled_tokens=target.last_sampled_tokens,
        next_prefill_tokens=target.next_prefill_tokens,
        block_tables=by_row,
        table_starts=torch.tensor(slots.table_starts(point)[:-1]),
        widths=torch.tensor(slots.group_widths(point)),
        block_sizes=int32(slots.group_block_sizes(point)),
        num_tokens=target.num_tokens,
        mask_token_id=MASK_TOKEN_ID,
        **slots.placed(
            point,
            temperature=torch.from_numpy(rng.random(capacity, dtype=np.float32)),
            seeds=torch.from_numpy(rng.integers(-(2**63), 2**63, capacity)),
        ),
    )


def _slot(point: Point, row: np.ndarray, block: int, position: int) -> int:
    """row: of a group's table."""
    size, interleave = point.cp_size, point.cp_interleave
    column, own = divmod(position, block * size)
    if column >= len(row) or row[column] == 0 or own // interleave % size != rank_of(point):
        return -1
    return int(row[column]) * block + own // (interleave * size) * interleave + own % interleave


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    rows, k, query, most = point.batch_size, point.next_n - 1, query_tokens(point), point.max_model_len
    tables = [table.numpy() for table in slots.group_tables(point, x.block_tables)]
    widths, blocks, starts = x.widths.tolist(), x.block_sizes.tolist(), x.query_start_loc.tolist()
    x, written = as_arrays(x), Written(vars(Outputs.empty(point)))
    put = written.put
    for b, s in enumerate(x.idx_mapping.tolist()):
        of_row = [table[b, :width] for table, width in zip(tables, widths, strict=True)]
        start, kept = starts[b], starts[b + 1] - starts[b] - int(x.num_rejected[b])
        for t in range(start, starts[b + 1]):
            position, is_kept = int(x.target_positions[t]), t < start + kept
            put("context_positions", t, position if is_kept else 0)
            for g, (row, block) in enumerate(zip(of_row, blocks, strict=True)):
                put("context_slot_mappings", (g, t), _slot(point, row, block, position) if is_kept else -1)
        last = int(x.target_positions[start + kept - 1])
        newest = x.last_sampled_tokens[s] if x.num_sampled[b] > 0 else x.next_prefill_tokens[s]
        for j in range(query):
            i = b * query + j
            put("input_ids", i, x.mask_token_id if j else newest)
            put("positions", i, min(last + 1 + j, most - 1))
            put("is_padding", i, False)
            for g, (row, block) in enumerate(zip(of_row, blocks, strict=True)):
                put("slot_mappings", (g, i), _slot(point, row, block, last + 1 + j))
        put("query_start_loc", b, b * query)
        put("seq_lens", b, min(last + 1 + query, most))
        put("temperature", s, x.temperature[s])
        put("seeds", s, x.seeds[s])
        for j in range(k):
            put("sample_indices", (b, j), b * query + j + query - k)
            put("sample_pos", (b, j), last + 2 + j)
            put("sample_idx_mapping", (b, j), s)
    for name, content in {"input_ids": 0, "positions": 0, "is_padding": True}.items():
        put(name, slice(rows * query, None), content)
    put("slot_mappings", (slice(None), slice(rows * query, None)), -1)
    put("query_start_loc", slice(rows, None), rows * query)
    for name, content in {"seq_lens": 0, "sample_indices": 0, "sample_pos": 0, "sample_idx_mapping": -1}.items():
        put(name, slice(rows, None), content)
    return written.expected()


def bytes_moved(point: Point, x: Inputs) -> int:
    """Positions of kept tokens, counts and tokens of the rows, an entry per block that context and query touch, and all
    that is written. What lies in pinned memory does not count.
    """
    rows, capacity, groups, query = point.batch_size, point.max_num_seqs, point.num_groups, query_tokens(point)
    starts, positions, rejected = x.query_start_loc.tolist(), x.target_positions.numpy(), x.num_rejected.tolist()
    entries = 0
    for block in x.block_sizes.tolist():
        per_column = block * point.cp_size
        for b in range(rows):
            kept = positions[starts[b] : starts[b + 1] - rejected[b]]
            ahead = kept[-1] + 1 + np.arange(query)
            entries += len(np.unique(np.concatenate([kept, ahead]) // per_column))
    state = 12 * rows if point.memory == "device" else 0
    read = 8 * (x.num_tokens - sum(rejected)) + 4 * (rows + 1) + (8 + 4 + 4 + 8) * rows + 4 * entries + 20 * groups
    by_token = (4 + 8 + 1 + 8 * groups) * point.max_num_batched_tokens + 8 * (1 + groups) * x.num_tokens
    by_row = 4 * (2 * capacity + 1) + 24 * capacity * (point.next_n - 1) + 12 * rows
    return read + state + by_token + by_row


def varied(point: Point) -> Mapping[str, Any]:
    """Lengths with room for a block: not every variant takes positions behind the model's range."""
    room = max(point.max_model_len - query_tokens(point), 1)
    return axes.other_contents(point) | {"context_len": {"uniform": [1, room]}, "contents": "evicted"}


operator = Operator(
    name="block_draft_inputs",
    summary="inputs of a drafter's only pass over a block (DFlash, DSpark): context, query tokens, slots, sample maps",
    indices={
        "slot_mappings": ("g", "i"),
        "context_slot_mappings": ("g", "t"),
        **dict.fromkeys(("sample_indices", "sample_pos", "sample_idx_mapping"), ("b", "j")),
    },
    axes=AXES,
    rules=RULES,
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    redundant=compute_slot_mappings.redundant,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
)
