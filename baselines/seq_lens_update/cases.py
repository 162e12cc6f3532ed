"""Steps that break implementations of seq_lens_update, and sequences of steps through the same buffers.

Edits change the contents of the generated Inputs (CPU tensors) in place; the steps stay legal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.seq_lens_update.operator import Inputs


def _rotate(x: Inputs, by: int) -> None:
    """Every request was ``by`` rows further down in the previous step, cyclically."""
    rows = len(x.prev_pos)
    for tensor in (x.prev_num_computed_tokens[:rows], x.valid[:rows], x.prev_drafts):
        tensor.copy_(tensor.roll(by))
    x.prev_pos.copy_((torch.arange(rows) + by) % rows)


def _new_between_swapped(x: Inputs) -> None:
    """prev_pos [1, -1, 0]: two requests changed places around a new one; the third old row is finished."""
    x.prev_pos.copy_(torch.tensor([1, -1, 0]))
    for tensor in (x.prev_num_computed_tokens[:3], x.valid[:3], x.prev_drafts):
        tensor.copy_(tensor[[2, 0, 1]])


def _no_drafts_before(x: Inputs) -> None:
    """All previous rows were prefills or single-token decodes: the CPU's counts are exact and must be used."""
    x.prev_drafts.zero_()
    x.valid[: len(x.prev_drafts)] = torch.arange(len(x.prev_drafts)) % 2


def _stale_rows_of_the_finished(x: Inputs) -> None:
    """Rows of finished requests hold drafts and huge counts, which must not be read."""
    finished = torch.ones(len(x.prev_drafts), dtype=torch.bool)
    finished[x.prev_pos[x.prev_pos >= 0].long()] = False
    x.prev_num_computed_tokens[: len(finished)][finished] = 0x7FFFFF00
    x.valid[: len(finished)][finished] = 0x7FFFFF00


def _reversed_slots(x: Inputs) -> None:
    """Row 0 has the last slot."""
    before, valid, old = x.prev_num_computed_tokens.clone(), x.valid.clone(), x.prev_pos.long()
    slots = len(before) - 1 - torch.arange(len(old))
    x.prev_num_computed_tokens[slots], x.valid[slots] = before[old], valid[old]
    x.prev_pos.copy_(slots)


def _left_by_former_owners(x: Inputs) -> None:
    """Slots of new requests hold counts and drafts that were legal for someone else."""
    new = x.prev_pos[x.prev_drafts == 0].long()
    x.prev_num_computed_tokens[new], x.valid[new] = 77, 2


def _no_drafts_by_slot(x: Inputs) -> None:
    x.prev_drafts.zero_()


_PERMUTED, _SOME_REJECTED = {"row_order": "permuted"}, {"acceptance": 0.4}
_NINE = _SOME_REJECTED | {"batch_size": 9}
_SLOTS = {"state": "slots", "max_num_seqs": 40, "acceptance": 0.4}

# fmt: off
EDGE_CASES = [
    EdgeCase("B = 1", _SOME_REJECTED | {"batch_size": 1}),
    EdgeCase("rows rotated by one, each reads its predecessor", _NINE, lambda x: _rotate(x, -1)),
    EdgeCase("rows rotated by one, each reads its successor", _NINE, lambda x: _rotate(x, 1)),
    EdgeCase("rows permuted", _PERMUTED | {"batch_size": 65, "context_len": {"uniform": [8, 5000]}}),
    EdgeCase("a new request between two that changed places", _SOME_REJECTED | {"batch_size": 3}, _new_between_swapped),
    EdgeCase("all rejected", {"batch_size": 5, "acceptance": 0}),
    EdgeCase("all accepted", {"batch_size": 5, "acceptance": 1}),
    EdgeCase("B = 1, new", {"batch_size": 1, "churn": 1}),
    EdgeCase("all requests are new", {"batch_size": 5, "churn": 1}),
    EdgeCase("first step, P = 0", {"batch_size": 5, "num_prev_reqs": 0}),
    EdgeCase("idle rank, B = P = 0", {"batch_size": 0}),
    EdgeCase("all finished, B = 0", {"batch_size": 0, "num_prev_reqs": 4}),
    EdgeCase("requests join and finish", _PERMUTED | {"batch_size": 9, "churn": 0.3}, _stale_rows_of_the_finished),
    EdgeCase("the batch grows", _PERMUTED | {"batch_size": 17, "num_prev_reqs": 5}),
    EdgeCase("the batch shrinks", _PERMUTED | {"batch_size": 5, "num_prev_reqs": 40}, _stale_rows_of_the_finished),
    EdgeCase("ragged: 0 to k drafts before, 1 to L tokens now", {
        "batch_size": 9, "decode_len": "ragged", "acceptance": 0.5,
    }),
    EdgeCase("10 % without drafts", _PERMUTED | {"batch_size": 20, "decode_len": "mixed", "acceptance": 0.5}),
    EdgeCase("no drafts before", {"batch_size": 6, "scheduling": "sync"}, _no_drafts_before),
    EdgeCase("no speculation, next_n = 1", {"batch_size": 6, "next_n": 1}),
    EdgeCase("L < next_n", {"batch_size": 6, "max_decode_len": 2, "acceptance": 0.5}),
    EdgeCase("k = 5", {"batch_size": 6, "next_n": 6, "decode_len": "ragged", "acceptance": 0.5}),
    EdgeCase("k = 39, rows longer than a warp", {"batch_size": 3, "next_n": 40, "acceptance": 0.9}),
    EdgeCase("synchronous: the CPU knows the counts", _NINE | _PERMUTED | {"scheduling": "sync"}),
    EdgeCase("prefill chunks beside decodes", _NINE | _PERMUTED | {"prefills": 2}),
    EdgeCase("prefill chunk of 1 + k tokens", {"batch_size": 5, "prefills": 3, "prefill_len": 4, "churn": 0.3}),
    EdgeCase("prompts from their first token", {
        "batch_size": 4, "prefills": 4, "prefill_len": 77, "context_len": 77, "churn": 1,
    }),
    EdgeCase("one prompt fills the step", {
        "batch_size": 1, "prefills": 1, "prefill_len": 1024, "max_num_batched_tokens": 1024,
    }),
    EdgeCase("bound reaches max_model_len", {
        "batch_size": 6, "max_model_len": 900, "context_len": 900, "acceptance": 0.3,
    }),
    EdgeCase("shortest contexts", {"batch_size": 6, "context_len": 1, "acceptance": 0.3}),
    EdgeCase("B = capacity, no tail", _PERMUTED | {"batch_size": 24, "max_num_seqs": 24}),
    EdgeCase("capacity not a multiple of 4", {"batch_size": 3, "max_num_seqs": 261, "max_num_batched_tokens": 1027}),
    EdgeCase("A = capacity", {"batch_size": 8, "max_num_batched_tokens": 32}),
    EdgeCase("by slot", _SLOTS | {"batch_size": 9}),
    EdgeCase("by slot, B = 1", _SLOTS | {"batch_size": 1}),
    EdgeCase("by slot, rows reversed", _SLOTS | {"batch_size": 9}, _reversed_slots),
    EdgeCase("by slot, idle rank", _SLOTS | {"batch_size": 0}),
    EdgeCase("by slot, slots of others are taken over", _SLOTS | {
        "batch_size": 9, "churn": 0.4,
    }, _left_by_former_owners),
    EdgeCase("by slot, all slots used", _SLOTS | {"batch_size": 40, "decode_len": "ragged"}),
    EdgeCase("by slot, no drafts before, rows of no multiple of a block", _SLOTS | {
        "batch_size": 33, "scheduling": "sync",
    }, _no_drafts_by_slot),
    EdgeCase("by slot, chunks beside decodes", _SLOTS | {"batch_size": 9, "prefills": 2, "churn": 0.2}),
]
# fmt: on

# Lengths differ from batch to batch, so a graph that kept the lengths of its capture is wrong in a later step.
_RANDOM = {"context_len": {"uniform": [600, 9000]}}
_BIG = _RANDOM | _PERMUTED | {"batch_size": 17, "decode_len": "ragged"}
_SMALL = _RANDOM | {"batch_size": 2}
_IDLE, _FIRST = _RANDOM | {"batch_size": 0, "num_prev_reqs": 17}, _RANDOM | {"batch_size": 17, "num_prev_reqs": 0}
SEQUENCES = {
    "big-small-big": (_BIG, _SMALL, _BIG),
    "big-idle-big": (_BIG, _IDLE, _FIRST),
    "by slot, big-small-big": tuple(_SLOTS | _RANDOM | {"batch_size": b, "decode_len": "ragged"} for b in (17, 3, 17)),
    "prefill-decode-prefill": (_BIG | {"prefills": 3}, _BIG, _RANDOM | {"batch_size": 5, "prefills": 1, "churn": 0.4}),
}
