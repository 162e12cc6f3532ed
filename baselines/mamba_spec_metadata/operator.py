"""mamba_spec_metadata: the state slots that each request of a speculative decode step reads and writes in Mamba layers.

With q the request's tokens of this step, nc = seq_lens - q its computed tokens, BS the Mamba block size, k the drafts:

    last_computed      = max(ceil(nc / BS) - 1, 0)
    last_scheduled     = max(ceil(seq_lens / BS) - 1, 0)
    prev_step          = last_scheduled of the request's previous step; last_computed where that is unknown
    input_slots[b, j]  = table[b, prev_step + j]              j = 0 .. k
    output_slots[b, j] = table[b, last_scheduled + j]         j = 0 .. k
    conv_input_slot    = input_slots[b, 0]
    conv_output_slot   = output_slots[b, 0]

An SSM layer starts from input_slots[b, num_accepted - 1] and writes the state after its j-th token to output_slots[b,
j]; a convolution keeps all states of a step in one slot. The table has cdiv(max_model_len, BS) + k columns.

That is cache mode ``all``. In ``align`` one table (B, 1 + k) serves both ways, input_slots[b, j] = table[b,
last_scheduled + j]. In ``none`` the table has 1 + k columns, which are the slots.

The anchor (prev_step) lives on the device, in an array indexed by stable request slots: a request that moves to another
batch row keeps it, and the mask ``fresh`` hides what an earlier owner of the slot left. ``anchors`` and
``next_anchors`` may be one array. vLLM 0.22 keeps anchors in a dictionary on the host.

Requests num_decodes .. B - 1 are padding up to a captured batch size and get NULL slots, indices 0 and accepted 1,
whatever their inputs hold. num_decodes is 0 on an idle data-parallel rank. Rows from B on keep their contents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.mamba_spec_metadata.cases import EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import mamba_steps as mamba
from spec_decode_bench.baselines.workloads.decode_batch import NULL_BLOCK_ID, int32
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point
from spec_decode_bench.harness.tensors import I32, Bool, Tensors, field

PADDING = replace(
    axes.PADDING,
    parse=axes.probability,
    doc="share of the batch that is padding requests (rounded up; one real request stays, unless it is 1: "
    "an idle data-parallel rank)",
)
CACHE_MODE = Axis(
    "cache_mode",
    axes.choice("all", "align", "none"),
    "all",
    "which states are kept: all (one per block), align (the running one, at block boundaries), none (1 + k slots)",
)


def _reads_no_length(point: Point) -> bool:
    return point.cache_mode == "none" or axes.has_no_request(point)


#: Axes of a decode step, of which more is known here.
OWN = {
    "padding": PADDING,
    "context_len": replace(axes.CONTEXT_LEN, idle=_reads_no_length),
    "mamba_block_size": replace(
        mamba.MAMBA_BLOCK_SIZE, idle=lambda p: p.cache_mode == "none" or mamba.MAMBA_BLOCK_SIZE.idle(p)
    ),
}
AXES = (
    *(OWN.get(axis.name, axis) for axis in mamba.DECODE_STEP),
    mamba.CHURN,
    CACHE_MODE,
    mamba.MAX_NUM_SEQS,
    axes.TABLE_PADDING,
)


def redundant(point: Point) -> str | None:
    if point.churn and point.cache_mode != "all":
        return "anchors matter in mode all only"
    return axes.same_batch_elsewhere(point)


def _keeps_all(point: Point) -> bool:
    return point.cache_mode == "all"


def _table_columns(point: Point) -> int:
    return mamba.slots_per_step(point) if point.cache_mode == "none" else mamba.table_columns(point)


def _table_stride(point: Point) -> int:
    return mamba.slots_per_step(point) if point.cache_mode == "none" else mamba.table_stride(point)


class Inputs(Tensors):
    seq_lens: I32["batch_size"]  # including this step's tokens; 0 = padding request
    query_start_loc: I32["batch_size + 1"]
    num_accepted_tokens: I32["batch_size"]  # accepted drafts + 1 of the previous step
    request_slots: I32["batch_size"]  # stable while a request lives; 0 = padding request
    fresh: Bool["batch_size"]  # new or resumed: the anchor in its slot belongs to another request
    anchors: I32["max_num_seqs + 1"]  # by request slot, -1 = unknown
    block_table: I32["batch_size", _table_columns] = field(strided=_table_stride)
    num_decodes: int  # requests before padding


class Outputs(Tensors):
    """Modes align and none have only the first two, and one table of slots, which serves both ways."""

    input_slots: I32["max_num_seqs", "num_speculative_blocks + 1"] = field(read="batch_size")
    num_accepted_tokens: I32["max_num_seqs"] = field(read="batch_size")
    output_slots: I32["max_num_seqs", "num_speculative_blocks + 1"] = field(read="batch_size", where=_keeps_all)
    conv_input_slot: I32["max_num_seqs"] = field(read="batch_size", where=_keeps_all)
    conv_output_slot: I32["max_num_seqs"] = field(read="batch_size", where=_keeps_all)
    block_idx_last_scheduled_token: I32["max_num_seqs"] = field(read="batch_size", where=_keeps_all)
    block_idx_last_computed_token: I32["max_num_seqs"] = field(read="batch_size", where=_keeps_all)
    block_idx_last_scheduled_token_prev_step: I32["max_num_seqs"] = field(read="batch_size", where=_keeps_all)
    next_anchors: I32["max_num_seqs + 1"] = field(read=0, where=_keeps_all)  # by request slot; slot 0 is unused

    def views(self, point: Point) -> dict[str, torch.Tensor]:
        seen = super().views(point)
        return seen if _keeps_all(point) else seen | {"output_slots": seen["input_slots"]}


#: Outputs of mode ``all`` only, with one number per request.
PER_REQUEST = (
    "conv_input_slot",
    "conv_output_slot",
    "block_idx_last_scheduled_token",
    "block_idx_last_computed_token",
    "block_idx_last_scheduled_token_prev_step",
)


def make_inputs(point: Point, seed: int) -> Inputs:
    step, rng = mamba.make_step(point, seed), np.random.default_rng([seed, 4])
    read = mamba.slots_per_step(point) if point.cache_mode == "none" else None
    table = mamba.make_state_table(point, step, seed, read)
    if point.cache_mode == "none":
        table = table[:, : mamba.slots_per_step(point)].clone()
    live = (step.seq_lens > 0).numpy()
    slots = np.where(live, 1 + rng.permutation(point.max_num_seqs)[: point.batch_size], 0)
    # Free slots, and those of fresh requests, hold a legal column too: the anchor of an earlier owner.
    anchors = rng.integers(-1, table.shape[1] - point.num_speculative_blocks, point.max_num_seqs + 1)
    known = step.anchors.numpy() >= 0
    anchors[slots[known]] = step.anchors.numpy()[known]
    anchors[0] = -1
    return Inputs(
        seq_lens=step.seq_lens,
        query_start_loc=step.query_start_loc,
        num_accepted_tokens=step.num_accepted,
        request_slots=int32(slots),
        fresh=torch.from_numpy(live & ~known),
        anchors=int32(anchors),
        block_table=table,
        num_decodes=point.batch_size - axes.num_padding_requests(point),
    )


def block_columns(point: Point, x: Inputs, b: int) -> tuple[int, int, int]:
    """(last_computed, prev_step, last_scheduled) of the real request b in mode all."""
    seq_len, size = int(x.seq_lens[b]), point.mamba_block_size
    last_computed = mamba.last_block(seq_len - int(x.query_start_loc[b + 1] - x.query_start_loc[b]), size)
    anchor = -1 if bool(x.fresh[b]) else int(x.anchors[x.request_slots[b]])
    return last_computed, anchor if anchor >= 0 else last_computed, mamba.last_block(seq_len, size)


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    slots, capacity, table = mamba.slots_per_step(point), point.max_num_seqs, x.block_table.tolist()
    value = {"input_slots": [[NULL_BLOCK_ID] * slots for _ in range(capacity)], "num_accepted_tokens": [1] * capacity}
    if point.cache_mode == "all":
        value["output_slots"] = [[NULL_BLOCK_ID] * slots for _ in range(capacity)]
        value |= {name: [0] * capacity for name in PER_REQUEST}
    anchors, kept = [0] * (capacity + 1), [True] * (capacity + 1)
    for b in range(x.num_decodes):
        value["num_accepted_tokens"][b] = int(x.num_accepted_tokens[b])
        if point.cache_mode != "all":
            align = point.cache_mode == "align"
            first = mamba.last_block(int(x.seq_lens[b]), point.mamba_block_size) if align else 0
            value["input_slots"][b] = table[b][first : first + slots]
            continue
        computed, previous, scheduled = block_columns(point, x, b)
        assert max(previous, scheduled) + slots <= len(table[b]), "the table lacks a column that the step addresses"
        value["input_slots"][b] = table[b][previous : previous + slots]
        value["output_slots"][b] = table[b][scheduled : scheduled + slots]
        value["conv_input_slot"][b], value["conv_output_slot"][b] = table[b][previous], table[b][scheduled]
        value["block_idx_last_scheduled_token"][b] = scheduled
        value["block_idx_last_computed_token"][b] = computed
        value["block_idx_last_scheduled_token_prev_step"][b] = previous
        if (slot := int(x.request_slots[b])) != 0:
            anchors[slot], kept[slot] = scheduled, False
    spare = torch.arange(capacity) >= point.batch_size
    expected = {}
    for name, rows in value.items():
        tensor = int32(rows)
        expected[name] = Expected(tensor, untouched=spare.view(-1, *[1] * (tensor.dim() - 1)).expand(tensor.shape))
    if point.cache_mode == "all":
        unused = torch.arange(capacity + 1) == 0
        expected["next_anchors"] = Expected(int32(anchors), untouched=torch.tensor(kept) & ~unused, may_keep=unused)
    return expected


def bytes_moved(point: Point, x: Inputs) -> int:
    """All modes: accepted count and table entries of each real request read, slots and counts of all B written.

    Mode align also reads each real length. Mode all also reads starts, lengths, request slots, the mask (1 byte each)
    and the anchors of requests that are not fresh, and writes the other outputs and one anchor per real request.
    """
    real, slots = x.num_decodes, mamba.slots_per_step(point)
    if point.cache_mode != "all":
        return 4 * (real * (1 + slots + (point.cache_mode == "align")) + point.batch_size * (1 + slots))
    windows = (block_columns(point, x, b)[1:] for b in range(real))
    entries = sum(mamba.distinct_entries(first, second, slots) for first, second in windows)
    read = 4 * real + 1 + int((~x.fresh[:real]).sum()) + entries
    return 4 * (read + point.batch_size * (2 * slots + len(PER_REQUEST) + 1) + real) + real


def in_place(point: Point) -> Mapping[str, str]:
    return {"next_anchors": "anchors"}


def varied(point: Point) -> Mapping[str, Any]:
    return axes.other_contents(point)


operator = Operator(
    name="mamba_spec_metadata",
    summary="state slots that a speculative decode step of Mamba layers reads and writes, "
    "and the anchor of the next step",
    indices={"input_slots": ("b", "j"), "output_slots": ("b", "j")},
    axes=AXES,
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    in_place=in_place,
    redundant=redundant,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
    rules=(*mamba.RULES, axes.SEQS_FIT),
)
