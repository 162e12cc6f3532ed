"""Batches that break implementations of mamba_spec_metadata, and sequences of steps through the same buffers.

Edits change the contents of the generated Inputs (CPU tensors) in place. Lengths are those after the step: with one row
of 1 + k tokens per request, nc computed tokens are a context of nc + 1 + k.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec_decode_bench.baselines.workloads.decode_batch import UNUSED_BLOCK_ID
from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.mamba_spec_metadata.operator import Inputs


def _all_padding(x: Inputs) -> None:
    for tensor in (x.seq_lens, x.query_start_loc, x.request_slots, x.fresh, x.block_table):
        tensor.zero_()
    x.num_accepted_tokens.fill_(1)


def _padding_in_the_middle(x: Inputs) -> None:
    """Request 1 turns into a padding row among the real ones."""
    x.query_start_loc[2:] -= x.query_start_loc[2] - x.query_start_loc[1]
    for tensor in (x.seq_lens, x.request_slots, x.fresh):
        tensor[1] = 0
    x.num_accepted_tokens[1] = 1
    x.block_table[1] = 0


def _stale_padding_rows(x: Inputs) -> None:
    """Padding rows still hold what real requests of a larger step left there, lengths too; half are marked new."""
    padding = len(x.seq_lens) - x.num_decodes
    for tensor in (x.num_accepted_tokens, x.request_slots, x.block_table):
        tensor[-padding:] = tensor[:padding]
    x.seq_lens[-padding:] = x.seq_lens[1 : padding + 1]
    x.query_start_loc[-padding:] += x.query_start_loc[1 : padding + 1]
    x.fresh[-padding::2] = True


def _no_request(x: Inputs) -> None:
    """An idle rank replays a padded graph: every row is stale, with request slots beyond every array."""
    rows = len(x.seq_lens)
    x.seq_lens.fill_(2**31 - 1)  # with blocks of one token the column after it wraps
    x.query_start_loc.copy_(torch.arange(rows + 1) * 4)
    x.num_accepted_tokens.fill_(3)
    x.request_slots.fill_(UNUSED_BLOCK_ID)
    x.fresh[::2] = True
    x.block_table.copy_(torch.arange(1, x.block_table.numel() + 1).view(x.block_table.shape))


def _unknown(x: Inputs) -> None:
    x.fresh.fill_(True)


def _minus_one(x: Inputs) -> None:
    """Half of the anchors are unknown although no request is fresh."""
    x.anchors[x.request_slots[::2]] = -1


def _fell_back(x: Inputs) -> None:
    """The previous step was scheduled into the next block, but its drafts were rejected: contexts end with a block."""
    x.anchors[x.request_slots] = 2
    x.num_accepted_tokens.fill_(1)
    x.fresh.zero_()


def _in_place_slots(x: Inputs) -> None:
    """All drafts accepted, no block crossed: input and output slots are the same."""
    x.num_accepted_tokens.fill_(4)
    x.anchors[x.request_slots] = 1


def _null_tail(x: Inputs) -> None:
    """Request 0 was resumed with fewer blocks: its row ends in NULL."""
    x.block_table[0, 3:] = 0


_BS16 = {"batch_size": 4, "mamba_block_size": 16, "max_model_len": 256}
_BS1 = {"batch_size": 4, "mamba_block_size": 1, "max_model_len": 64, "num_speculative_blocks": 5}
#: More rows than one block of a fused kernel covers, so that a second block has nothing but padding.
_IDLE = {"batch_size": 65, "padding": 1.0}
_PADDED = {"batch_size": 7, "padding": 0.4, "context_len": {"uniform": [4, 9000]}}
_ANY = {"context_len": {"uniform": [4, 256]}}  # up to the max_model_len of _BS16
_ANY1 = {"context_len": {"uniform": [6, 64]}}  # up to that of _BS1
_ALIGN, _NONE = {"cache_mode": "align"}, {"cache_mode": "none"}

# fmt: off
EDGE_CASES = [
    EdgeCase("B=1", {"batch_size": 1}),
    EdgeCase("B=1, one token", {"batch_size": 1, "max_decode_len": 1, "context_len": 1}),
    EdgeCase("nc = 0", _BS16 | {"context_len": 4}),
    EdgeCase("nc = BS - 1", _BS16 | {"context_len": 19}),
    EdgeCase("nc = BS", _BS16 | {"context_len": 20}),
    EdgeCase("nc = BS + 1", _BS16 | {"context_len": 21}),
    EdgeCase("one token crosses a boundary", _BS16 | {"max_decode_len": 1, "context_len": 17}),
    EdgeCase("1 + k tokens cross a boundary", _BS16 | {"context_len": 18}),
    EdgeCase("nc + q = max_model_len: the last column", _BS16 | {"context_len": 256}),
    EdgeCase("max_model_len not a multiple of BS", _BS16 | {"max_model_len": 250, "context_len": 250}),
    EdgeCase("the previous step ran into max_model_len", _BS16 | {
        "max_decode_len": 1, "context_len": 256, "acceptance": 0.3,
    }),
    EdgeCase("the previous step crossed and fell back", _BS16 | {"context_len": 36}, _fell_back),
    EdgeCase("input and output slots coincide", _BS16 | {"context_len": 28}, _in_place_slots),
    EdgeCase("most drafts rejected", _BS16 | _ANY | {"batch_size": 12, "acceptance": 0.1}),
    EdgeCase("BS = 1, k = 5: several boundaries in a step", _BS1 | _ANY1 | {"acceptance": 0.5}),
    EdgeCase("BS = 1, nothing accepted", _BS1 | {"context_len": 40, "acceptance": 0.0}),
    EdgeCase("BS = 4, k = 5", _BS1 | _ANY1 | {"mamba_block_size": 4, "acceptance": 0.5}),
    EdgeCase("BS = 4, nothing accepted: two columns back", _BS1 | {
        "mamba_block_size": 4, "context_len": 34, "acceptance": 0.0,
    }),
    EdgeCase("BS = 128", {"batch_size": 8, "mamba_block_size": 128, "context_len": {"uniform": [4, 9000]}}),
    EdgeCase("BS = 528", {"batch_size": 8, "mamba_block_size": 528, "context_len": {"uniform": [4, 262144]}}),
    EdgeCase("BS = 1056, 1M context", {
        "batch_size": 3, "mamba_block_size": 1056, "max_model_len": 1048576, "context_len": 1048576,
    }),
    EdgeCase("BS = 1600", {
        "batch_size": 8, "mamba_block_size": 1600, "max_model_len": 21525, "context_len": {"uniform": [4, 21525]},
    }),
    EdgeCase("k = 1", {"batch_size": 5, "num_speculative_blocks": 1}),
    EdgeCase("k = 4: 5 slots", {"batch_size": 5, "num_speculative_blocks": 4}),
    EdgeCase("k = 31", {"batch_size": 3, "num_speculative_blocks": 31}),
    EdgeCase("short step, L < 1 + k", _BS16 | {
        "batch_size": 6, "max_decode_len": 2, "context_len": 36, "acceptance": 0.4,
    }),
    EdgeCase("ragged", _BS16 | _ANY | {"batch_size": 9, "decode_len": "ragged", "acceptance": 0.4}),
    EdgeCase("all anchors unknown", _BS16 | {"context_len": 36}, _unknown),
    EdgeCase("half of the anchors unknown", _BS16 | _ANY, _minus_one),
    EdgeCase("new and resumed rows between old ones", _BS16 | _ANY | {"batch_size": 12, "churn": 0.5}),
    EdgeCase("resumed with a shorter row, NULL tail", _BS16 | {
        "max_decode_len": 1, "context_len": 9, "churn": 0.9,
    }, _null_tail),
    EdgeCase("padding rows", _PADDED),
    EdgeCase("padding rows hold stale inputs", _PADDED, _stale_padding_rows),
    EdgeCase("padding row in the middle", {"batch_size": 6, "padding": 0.1}, _padding_in_the_middle),
    EdgeCase("all rows padding", {"batch_size": 4, "padding": 0.5}, _all_padding),
    EdgeCase("no real request", _IDLE),
    EdgeCase("no real request, all rows hold stale inputs", _IDLE, _no_request),
    EdgeCase("BS = 1, no real request, all rows hold stale inputs", _BS1 | _IDLE | {"context_len": 40}, _no_request),
    EdgeCase("B = max_num_seqs", _BS16 | _ANY | {"batch_size": 33, "max_num_seqs": 33}),
    EdgeCase("row stride > W", _BS16 | {"table_padding": 3, "context_len": 256}),
    EdgeCase("align", _ALIGN | _BS16 | _ANY | {"batch_size": 9}),
    EdgeCase("align, the last column", _ALIGN | _BS16 | {"context_len": 256, "table_padding": 3}),
    EdgeCase("align, context = BS", _ALIGN | _BS16 | {"context_len": 16}),
    EdgeCase("align, BS = 1", _ALIGN | _BS1 | _ANY1),
    EdgeCase("align, padding rows hold stale inputs", _ALIGN | _PADDED, _stale_padding_rows),
    EdgeCase("align, all rows padding", _ALIGN | {"batch_size": 4, "padding": 0.5}, _all_padding),
    EdgeCase("align, no real request, all rows hold stale inputs", _ALIGN | _IDLE, _no_request),
    EdgeCase("none", _NONE | {"batch_size": 9, "context_len": {"uniform": [4, 9000]}}),
    EdgeCase("none, padding rows hold stale inputs", _NONE | _PADDED, _stale_padding_rows),
    EdgeCase("none, no real request, all rows hold stale inputs", _NONE | _IDLE, _no_request),
    EdgeCase("none, k = 5", _NONE | {"batch_size": 3, "num_speculative_blocks": 5}),
]
# fmt: on

# Lengths differ from batch to batch, so a graph that kept the lengths of its capture is wrong in a later step.
_CAPACITY = _ANY | {"max_num_seqs": 24, "mamba_block_size": 16, "max_model_len": 256}
_BIG, _SMALL = _CAPACITY | {"batch_size": 20}, _CAPACITY | {"batch_size": 2}
SEQUENCES = {
    "big-small-big": (_BIG, _SMALL, _BIG),
    "big-padded-big": (_BIG, _BIG | {"padding": 0.5}, _BIG),
    "big-idle-big": (_BIG, _BIG | {"padding": 1.0}, _BIG),
    "big-churned-short-big": (_BIG, _BIG | {"churn": 0.5}, _BIG | {"max_decode_len": 2}, _BIG),
    "align, big-small-padded-big": tuple(_ALIGN | step for step in (_BIG, _SMALL, _BIG | {"padding": 0.5}, _BIG)),
    "none, big-small-padded-big": tuple(_NONE | step for step in (_BIG, _SMALL, _BIG | {"padding": 0.5}, _BIG)),
}
