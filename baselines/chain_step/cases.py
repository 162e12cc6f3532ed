"""Edge cases of chain_step, and sequences of steps through the same buffers.

An edit changes the contents of the inputs (CPU tensors) in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec_decode_bench.baselines.workloads.request_slots import UNUSED
from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.chain_step.operator import Inputs


def share_prefixes(x: Inputs) -> None:
    """Every second row has the slots of the one before it where both have tokens, as prefix caching makes them."""
    for before, behind in zip(range(0, len(x.seq_lens) - 1, 2), range(1, len(x.seq_lens), 2), strict=False):
        common = int(min(x.seq_lens[before], x.seq_lens[behind]))
        x.req_to_token[x.req_pool_indices[behind], :common] = x.req_to_token[x.req_pool_indices[before], :common]


def large_slots(x: Inputs) -> None:
    """Slots past 2^24, which fp32 does not hold."""
    x.req_to_token[x.req_to_token < UNUSED] += 2**24


def one_long(x: Inputs) -> None:
    """All requests but the last one have a single token."""
    x.seq_lens[:-1] = 1


def counting(x: Inputs) -> None:
    """Lengths 1, 2, 3 ... up to the request's own."""
    x.seq_lens.copy_(torch.minimum(x.seq_lens, 1 + torch.arange(len(x.seq_lens))))


#: What the covering array changes in generated inputs.
CONTENTS = {"share_prefixes": share_prefixes, "large_slots": large_slots, "one_long": one_long, "counting": counting}

_RAGGED = {"batch_size": 9, "context_len": {"uniform": [5, 3000]}, "max_model_len": 4096, "max_num_seqs": 20}
_NO = {"kv_indices": "no"}

# fmt: off
EDGE_CASES = [
    EdgeCase("B = 1", _RAGGED | {"batch_size": 1}),
    EdgeCase("one token per request", _RAGGED | {"context_len": 5}),
    EdgeCase("two drafts", _RAGGED | {"next_n": 3}),
    EdgeCase("fifteen drafts", _RAGGED | {"next_n": 16, "context_len": {"uniform": [17, 3000]}}),
    EdgeCase("forty drafts", _RAGGED | {"next_n": 41, "context_len": {"uniform": [42, 3000]}}),
    EdgeCase("rows of padding", _RAGGED | {"padding": 0.4}),
    EdgeCase("most rows are padding", _RAGGED | {"batch_size": 20, "padding": 0.95}),
    EdgeCase("every request slot", _RAGGED | {"batch_size": 20}),
    EdgeCase("a sequence ends at the end of its row", _RAGGED | {"context_len": 4096}),
    EdgeCase("rows of 512 tokens", _RAGGED | {"context_len": 516}),
    EdgeCase("rows of 513 tokens", _RAGGED | {"context_len": 517}),
    EdgeCase("a long request among short ones", _RAGGED, one_long),
    EdgeCase("shared prefixes", _RAGGED, share_prefixes),
    EdgeCase("large slots", _RAGGED, large_slots),
    EdgeCase("B = 300", {"batch_size": 300, "context_len": {"uniform": [5, 60]}, "max_model_len": 64}),
    EdgeCase("more rows than strips", {
        "batch_size": 530, "next_n": 3, "context_len": {"uniform": [5, 1100]}, "max_model_len": 1100,
    }),
    EdgeCase("B = 1025", {"batch_size": 1025, "context_len": {"uniform": [5, 40]}, "max_model_len": 40}),
    EdgeCase("tables of 2^20 entries", _RAGGED | {"batch_size": 3, "max_num_seqs": 4, "max_model_len": 2**20}),
    EdgeCase("a context of 2^17 tokens", {
        "batch_size": 2, "max_num_seqs": 3, "context_len": 2**17, "max_model_len": 2**17,
    }),
    EdgeCase("no packed slots", _RAGGED | _NO),
    EdgeCase("no packed slots, padding, B = 300", {
        "batch_size": 300, "context_len": {"uniform": [5, 60]}, "max_model_len": 64, "padding": 0.1,
    } | _NO),
]
# fmt: on

# Lengths differ from batch to batch, so a graph that kept the lengths of its capture is wrong in a later step.
_BIG, _SMALL = _RAGGED | {"batch_size": 20}, _RAGGED | {"batch_size": 3}
SEQUENCES = {
    "big-small-big": (_BIG, _SMALL, _BIG),
    "big-padded-big": (_BIG, _BIG | {"padding": 0.5}, _BIG),
    "no packed slots, big-padded-small": tuple(step | _NO for step in (_BIG, _BIG | {"padding": 0.5}, _SMALL)),
}
