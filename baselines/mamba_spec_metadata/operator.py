"""mamba_spec_metadata: which state slots each request of a decode step reads and writes, in Mamba layers with draft tokens.

With q the request's tokens of this step, nc = seq_lens - q the computed ones, BS the Mamba block size, k the drafts:

    last_computed  = max(ceil(nc / BS) - 1, 0)              last_scheduled = max(ceil(seq_lens / BS) - 1, 0)
    prev_step      = last_scheduled of the request's step before; last_computed where that step is unknown
    input_slots[b, j]  = table[b, prev_step + j]            output_slots[b, j] = table[b, last_scheduled + j]    j = 0 .. k
    conv_input_slot    = input_slots[b, 0]                  conv_output_slot   = output_slots[b, 0]

An SSM layer starts from input_slots[b, num_accepted - 1] and writes the state after its j-th token to output_slots[b,
j]; a convolution keeps all states of a step in one slot. The table is cdiv(max_model_len, BS) + k wide: its last column
is read.

That is cache mode ``all``. In ``align`` one table (B, 1 + k) serves both ways, input_slots[b, j] = table[b, s + j] with
s = last_scheduled, and in ``none`` the table has 1 + k columns, all of them wanted.

The anchor prev_step lives on the device, in an array over stable request slots: a request that moves to another batch
row keeps it, the mask ``fresh`` hides what an earlier owner of the slot left. ``anchors`` and ``next_anchors`` may be
one array. vLLM 0.22 keeps it in a dictionary on the host, and every layer does the gathers anew.

Requests num_decodes .. B - 1 are padding up to a captured batch size: slots NULL, indices 0, accepted 1, whatever their
inputs hold; num_decodes is 0 where an idle data-parallel rank runs along. Rows from B on keep what they held.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from baselines.mamba_spec_metadata._batches import AXES, Inputs, first_columns, make_inputs
from baselines.mamba_spec_metadata._chain import chain, compiled_chain_of
from baselines.mamba_spec_metadata._points import HARD_POINTS, SEQUENCES
from baselines.workloads import axes
from baselines.workloads import mamba_steps as mamba
from baselines.workloads.decode_batch import NULL_BLOCK_ID
from harness.contract import COMPILER, Expected, Operator, Point, variant


@dataclass(frozen=True)
class Outputs:
    """int32, per request unless said. Modes align and none have no indices and one set of slots."""

    input_slots: Tensor  # [max_num_seqs, 1 + k]
    num_accepted_tokens: Tensor
    output_slots: Tensor | None = None  # [max_num_seqs, 1 + k]
    conv_input_slot: Tensor | None = None
    conv_output_slot: Tensor | None = None
    block_idx_last_scheduled_token: Tensor | None = None
    block_idx_last_computed_token: Tensor | None = None
    block_idx_last_scheduled_token_prev_step: Tensor | None = None
    next_anchors: Tensor | None = None  # [max_num_seqs + 1] by request slot


#: The fields of mode ``all`` that hold one number per request.
PER_REQUEST = (
    "conv_input_slot",
    "conv_output_slot",
    "block_idx_last_scheduled_token",
    "block_idx_last_computed_token",
    "block_idx_last_scheduled_token_prev_step",
)


def make_outputs(point: Point) -> Outputs:
    per_request = lambda *more: torch.empty(point.max_num_seqs, *more, dtype=torch.int32)  # noqa: E731
    slots = 1 + point.num_speculative_blocks
    if point.cache_mode != "all":
        return Outputs(per_request(slots), per_request())
    return Outputs(
        input_slots=per_request(slots),
        num_accepted_tokens=per_request(),
        output_slots=per_request(slots),
        next_anchors=torch.empty(point.max_num_seqs + 1, dtype=torch.int32),
        **{name: per_request() for name in PER_REQUEST},
    )


def views(point: Point, out: Outputs) -> Mapping[str, Tensor]:
    """What the layers are handed: the rows of the step's B requests, padding included; not of its tokens."""
    rows = {"input_slots": out.input_slots, "num_accepted_tokens": out.num_accepted_tokens}
    rows["output_slots"] = out.output_slots if point.cache_mode == "all" else out.input_slots
    if point.cache_mode == "all":
        rows |= {name: getattr(out, name) for name in PER_REQUEST}
    return {name: buffer[: point.batch_size] for name, buffer in rows.items()}


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    k, size, capacity = point.num_speculative_blocks, point.mamba_block_size, point.max_num_seqs
    start, table = x.query_start_loc.tolist(), x.block_table.tolist()
    value = {"input_slots": [[NULL_BLOCK_ID] * (1 + k) for _ in range(capacity)], "num_accepted_tokens": [1] * capacity}
    if point.cache_mode == "all":
        value["output_slots"] = [[NULL_BLOCK_ID] * (1 + k) for _ in range(capacity)]
        value |= {name: [0] * capacity for name in PER_REQUEST}
    anchors, kept = [0] * (capacity + 1), [True] * (capacity + 1)
    for b in range(x.num_decodes):
        seq_len, slot = int(x.seq_lens[b]), int(x.request_slots[b])
        computed = seq_len - (start[b + 1] - start[b])
        value["num_accepted_tokens"][b] = int(x.num_accepted_tokens[b])
        scheduled = mamba.last_block(seq_len, size)
        if point.cache_mode != "all":
            first = scheduled if point.cache_mode == "align" else 0
            value["input_slots"][b] = table[b][first : first + 1 + k]
            continue
        anchor = -1 if bool(x.fresh[b]) else int(x.anchors[slot])
        previous = anchor if anchor >= 0 else max((computed - 1) // size, 0)
        assert max(previous, scheduled) + k < len(table[b]), "a step addresses a column that the table does not have"
        value["input_slots"][b] = table[b][previous : previous + 1 + k]
        value["output_slots"][b] = table[b][scheduled : scheduled + 1 + k]
        value["conv_input_slot"][b], value["conv_output_slot"][b] = table[b][previous], table[b][scheduled]
        value["block_idx_last_scheduled_token"][b] = scheduled
        value["block_idx_last_computed_token"][b] = mamba.last_block(computed, size)
        value["block_idx_last_scheduled_token_prev_step"][b] = previous
        if slot != 0:
            anchors[slot], kept[slot] = scheduled, False
    spare = torch.arange(capacity) >= point.batch_size
    expected = {}
    for name, rows in value.items():
        tensor = torch.tensor(rows, dtype=torch.int32)
        expected[name] = Expected(tensor, untouched=spare.view(-1, *[1] * (tensor.dim() - 1)).expand(tensor.shape))
    if point.cache_mode == "all":
        nobody = torch.arange(capacity + 1) == 0
        expected["next_anchors"] = Expected(mamba.int32(anchors), untouched=torch.tensor(kept) & ~nobody, slack=nobody)
    return expected


def bytes_moved(point: Point, x: Inputs) -> int:
    """Of each real request: accepted count and the table entries of its slots; its length too, except in mode none; in
    mode all also start, request slot, mask, and its anchor unless that is somebody else's. Of each request: all that
    it gets.
    """
    real, slots = x.num_decodes, 1 + point.num_speculative_blocks
    if point.cache_mode != "all":
        return 4 * (real * (1 + slots + (point.cache_mode == "align")) + point.batch_size * (1 + slots))
    read = 4 * real + 1 + int((~x.fresh[:real]).sum()) + mamba.entries_of_windows(*first_columns(point, x), slots)
    return 4 * (read + point.batch_size * (2 * slots + len(PER_REQUEST) + 1) + real) + real


# --- PyTorch-op variants ----------------------------------------------------------------------------------------------


@variant("mamba_spec_metadata", waives="no_alloc")
def op_chain(point, x, out):
    """The operator chain of vLLM 0.22: 19 element-wise launches, 5 persistent copies, 5 fills where there is padding;
    and 11 for what it does elsewhere: 3 read the anchors and 2 store them (a host dictionary there), 6 gather the
    slots (4 there, in every layer).
    """
    return chain(point, x, out)


@variant("mamba_spec_metadata", requires=COMPILER, waives="no_alloc")
def compiled_chain(point, x, out):
    """torch.compile (Inductor, dynamic shapes) of the operator chain."""
    return compiled_chain_of(operator, point, x, out)


# --- historic defects -------------------------------------------------------------------------------------------------


def _mode_all(point: Point) -> str | None:
    return "mode all only" if point.cache_mode != "all" else None


@variant(
    "mamba_spec_metadata",
    defect="the table lacks + num_speculative_blocks (vLLM #39809)",
    skip=_mode_all,
    waives="no_alloc",
)
def table_without_speculative_blocks(point, x, out):
    """Columns that the persistent copy does not have stay zero here; on a GPU the gather left the row."""
    return chain(point, x, out, narrower=point.num_speculative_blocks)


@variant(
    "mamba_spec_metadata", defect="views and pads are sized by tokens, not by requests (vLLM #39809)", waives="no_alloc"
)
def padded_by_tokens(point, x, out):
    fill = chain(point, x, out)
    rows = min(point.batch_size * (1 + point.num_speculative_blocks), point.max_num_seqs)

    def launch():
        fill()
        out.input_slots[x.num_decodes : rows].fill_(NULL_BLOCK_ID)
        out.num_accepted_tokens[x.num_decodes : rows].fill_(1)

    return launch


@variant(
    "mamba_spec_metadata",
    defect="the anchor is guessed from the computed tokens (vLLM #43955)",
    skip=_mode_all,
    waives="no_alloc",
)
def fallback_anchor(point, x, out):
    return chain(point, x, out, anchor=lambda x: torch.full_like(x.request_slots[: x.num_decodes], -1))


@variant(
    "mamba_spec_metadata",
    defect="a resumed request takes the anchor left in its slot",
    skip=_mode_all,
    waives="no_alloc",
)
def anchor_outlives_its_request(point, x, out):
    return chain(point, x, out, anchor=lambda x: x.anchors.index_select(0, x.request_slots[: x.num_decodes]))


@variant(
    "mamba_spec_metadata", defect="conv reads the last computed column (vLLM 0.22)", skip=_mode_all, waives="no_alloc"
)
def conv_reads_computed_column(point, x, out):
    fill = chain(point, x, out)

    def launch():
        fill()
        columns = out.block_idx_last_computed_token[: x.num_decodes, None].long()
        out.conv_input_slot[: x.num_decodes] = torch.gather(x.block_table[: x.num_decodes], 1, columns)[:, 0]

    return launch


@variant(
    "mamba_spec_metadata",
    defect="conv reads the current column (review of vLLM #42792)",
    skip=_mode_all,
    waives="no_alloc",
)
def conv_reads_current_column(point, x, out):
    """The step before wrote another block's slot where this one crosses a boundary."""
    fill = chain(point, x, out)

    def launch():
        fill()
        out.conv_input_slot[: x.num_decodes].copy_(out.conv_output_slot[: x.num_decodes])

    return launch


@variant("mamba_spec_metadata", defect="padding rows keep the slots of a larger step (xllm #1939)", waives="no_alloc")
def padding_rows_kept(point, x, out):
    return chain(point, x, out, padded=False)


@variant(
    "mamba_spec_metadata",
    defect="the anchor of the step is never stored (review of vLLM #43955)",
    skip=_mode_all,
    waives="no_alloc",
)
def anchor_never_stored(point, x, out):
    fill = chain(point, x, out)

    def launch():
        before = out.next_anchors.clone()
        fill()
        out.next_anchors.copy_(before)

    return launch


@variant(
    "mamba_spec_metadata",
    defect="an unknown anchor is counted in the scheduler's blocks, not in Mamba's (vLLM #53142, #55507)",
    skip=_mode_all,
    waives="no_alloc",
)
def anchor_in_scheduler_blocks(point, x, out):
    """The scheduler's blocks are twice as long here: the column is too low, but inside of the row."""
    size = 2 * point.mamba_block_size

    def anchor(x):
        rows = slice(x.num_decodes)
        known = x.anchors.index_select(0, x.request_slots[rows]).masked_fill(x.fresh[rows], -1)
        computed = x.seq_lens[rows] - torch.diff(x.query_start_loc)[rows]
        return torch.where(known >= 0, known, ((computed - 1) // size).clamp(min=0))

    return chain(point, x, out, anchor=anchor)


operator = Operator(
    name="mamba_spec_metadata",
    summary="state slots that a speculative decode step of Mamba layers reads and writes, and the anchor of the next step",
    axes=AXES,
    make_inputs=make_inputs,
    make_outputs=make_outputs,
    views=views,
    reference=reference,
    bytes_moved=bytes_moved,
    baseline="op_chain",
    hard_points=HARD_POINTS,
    sequences=SEQUENCES,
    rules=(*mamba.RULES, mamba.SEQS_FIT),
    redundant=lambda p: (
        "anchors matter in mode all alone" if p.churn and p.cache_mode != "all" else axes.same_batch_elsewhere(p)
    ),
)
