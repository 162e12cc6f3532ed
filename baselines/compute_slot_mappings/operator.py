"""compute_slot_mappings: the KV-cache slot of every token, for all KV cache groups.

Token t of row b (query_start_loc[b] <= t < query_start_loc[b + 1]), s = idx_mapping[b], p = positions[t],
BS = block_sizes[g]:

    s < 0, or group g not enabled          slot_mappings[g, t] = -1
    one context-parallel rank, or group g not sharded:
                                           slot_mappings[g, t] = tables[g][s, p // BS] * BS + p % BS
    CP ranks and group g sharded:          V = KB * CP,  o = p % V;  -1 unless o // I % CP == rank, else as above with
                                           p' = p // V * KB + o // (I * CP) * I + o % I

I is the interleave, a divisor of KB: the tokens of a block of the KV cache manager, which kernels may see as several
blocks of BS with consecutive ids (``blocks_per_kv_block``). I may exceed BS, so BS in place of KB is wrong (vLLM
#51031). Since I divides KB, p' = p // (I * CP) * I + p % I.

A position past the table of a group has -1, too: one group may have a narrower table than another (vLLM #53982,
#54296). Entries behind the real tokens are -1 over the whole capacity: a graph captured at a larger size would write KV
through slots of an earlier step there (vLLM #36580). Slot -1 of idx_mapping is a request that owns no blocks, such as a
drafter's dummy row (vLLM #56734).

Tables are by slot and may not be read where nothing is owned (vLLM #57317). block id * BS must fit an int32.

vLLM 0.33 runs this once before the target's forward pass and once per further pass of the drafter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from spec_decode_bench.baselines.compute_slot_mappings.cases import CONTENTS, EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.decode_batch import int32
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I32, I64, Bool, Tensors


def one_rank(point: Point) -> bool:
    return point.cp_size == 1 or axes.has_no_request(point)


CP_SIZE = Axis("cp_size", axes.one_of(1, 2, 4, 8), 1, "context-parallel ranks (CP) that split the sharded groups")
CP_RANK = Axis(
    "cp_rank", axes.choice("first", "last"), "first", "which of the context-parallel ranks this is", idle=one_rank
)
CP_INTERLEAVE = Axis(
    "cp_interleave",
    axes.one_of(1, 4, 16, 64, 128),
    1,
    "consecutive tokens of a context-parallel rank (I)",
    idle=one_rank,
)

#: Of context parallelism, here and in other operators of a step; dcp_lengths has more values.
CONTEXT_PARALLEL = (CP_SIZE, CP_RANK, CP_INTERLEAVE)
INTERLEAVE_FITS = Rule(
    "block_size ({block_size}) must be a multiple of cp_interleave ({cp_interleave}) where ranks share a context",
    lambda p: p.cp_size == 1 or p.block_size % p.cp_interleave == 0,
)

AXES = slots.bounded(
    *slots.STEP,
    *slots.GROUPS,
    slots.BLOCKS_PER_KV_BLOCK,
    *CONTEXT_PARALLEL,
    axes.MAX_NUM_BATCHED_TOKENS,
    axes.contents(CONTENTS),
)
RULES = (
    *slots.STEP_RULES,
    slots.TOKENS_FIT,
    slots.SLOTS_FIT,
    Rule(
        "block_size ({block_size}) x blocks_per_kv_block ({blocks_per_kv_block}) must be a multiple of cp_interleave "
        "({cp_interleave}) where ranks share a group",
        lambda p: p.cp_size == 1 or p.block_size * p.blocks_per_kv_block % p.cp_interleave == 0,
    ),
)


def has_all_tokens(point: Point) -> str | None:
    """Why a point with one rank has the same step as another."""
    if point.cp_size == 1 and (point.cp_rank, point.cp_interleave) != (CP_RANK.default, CP_INTERLEAVE.default):
        return "one rank has all tokens"
    return None


def redundant(point: Point) -> str | None:
    return has_all_tokens(point) or slots.redundant(point)


class Inputs(Tensors):
    idx_mapping: I64["batch_size"]  # request slot; -1 = owns no blocks
    query_start_loc: I32["max_num_seqs + 1"]
    positions: I64["max_num_batched_tokens"]  # anything behind the real tokens
    tables: I32[slots.table_entries]  # by slot: group g is [R, widths[g]] from starts[g] on
    starts: I64["num_groups"]
    widths: I64["num_groups"]  # row strides
    block_sizes: I32["num_groups"]
    enabled: Bool["num_groups"]
    sharded: Bool["num_groups"]
    num_tokens: int  # A, as the host counts them


class Outputs(Tensors):
    slot_mappings: I64["num_groups", "max_num_batched_tokens"]


def rank_of(point: Point) -> int:
    """The context-parallel rank."""
    return {"first": 0, "middle": point.cp_size // 2, "last": point.cp_size - 1}[point.cp_rank]


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    step = slots.make_step(point, seed)
    groups = torch.arange(point.num_groups)
    return Inputs(
        idx_mapping=step.idx_mapping,
        query_start_loc=step.query_start_loc,
        positions=slots.positions(point, step),
        tables=slots.make_tables(point, step, seed),
        starts=torch.tensor(slots.table_starts(point)[:-1]),
        widths=torch.tensor(slots.group_widths(point)),
        block_sizes=int32(slots.group_block_sizes(point)),
        enabled=torch.ones(point.num_groups, dtype=torch.bool),
        sharded=groups % 2 == 0 if point.cp_size > 1 else torch.zeros(point.num_groups, dtype=torch.bool),
        num_tokens=slots.num_tokens(point),
    )


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    size, rank, interleave = point.cp_size, rank_of(point), point.cp_interleave
    value = torch.full((point.num_groups, point.max_num_batched_tokens), -1)
    tables = [table.numpy() for table in slots.group_tables(point, x.tables)]
    starts, idx_mapping, positions = x.query_start_loc.tolist(), x.idx_mapping.tolist(), x.positions.tolist()
    for g, block in enumerate(x.block_sizes.tolist()):
        kv_block = block * point.blocks_per_kv_block
        for b, s in enumerate(idx_mapping):
            if s < 0 or not x.enabled[g]:
                continue
            for t in range(starts[b], starts[b + 1]):
                p = positions[t]
                if x.sharded[g]:
                    o = p % (kv_block * size)
                    if o // interleave % size != rank:
                        continue
                    p = p // (kv_block * size) * kv_block + o // (interleave * size) * interleave + o % interleave
                if p // block < tables[g].shape[1]:
                    value[g, t] = int(tables[g][s, p // block]) * block + p % block
    return {"slot_mappings": Expected(value)}


def bytes_moved(point: Point, x: Inputs) -> int:
    """Slots and query starts of all rows, positions, one table entry per block that a row's tokens touch, all slots
    written (the tail too).
    """
    tokens, entries = int(x.query_start_loc[point.batch_size]), 0
    starts, positions = x.query_start_loc.tolist(), x.positions.tolist()
    for g, block in enumerate(x.block_sizes.tolist()):
        for b, s in enumerate(x.idx_mapping.tolist()):
            if s >= 0 and x.enabled[g]:
                entries += len({positions[t] // block for t in range(starts[b], starts[b + 1])})
    rows = len(x.idx_mapping)
    written = 8 * point.num_groups * point.max_num_batched_tokens
    return 8 * rows + 4 * (rows + 1) + 8 * tokens + 4 * entries + 22 * point.num_groups + written


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point) | {"contents": "others_sharded"}


operator = Operator(
    name="compute_slot_mappings",
    summary="KV-cache slot of every token in all KV cache groups, -1 past the last token",
    indices={"slot_mappings": ("g", "t")},
    axes=AXES,
    rules=RULES,
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    redundant=redundant,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
)
