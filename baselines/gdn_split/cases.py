"""Edge cases of gdn_split, and sequences of steps through the same buffers.

An edit changes the contents of the inputs (CPU tensors) in place; counts of the host stay right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.gdn_split.operator import Inputs


def decodes_first(x: Inputs) -> None:
    """Shorter requests first, as vLLM sorts them; padding stays last."""
    _reorder(x, lambda lens: lens.argsort(stable=True))


def _chunks_first(x: Inputs) -> None:
    _reorder(x, lambda lens: lens.argsort(descending=True, stable=True))


def _reorder(x: Inputs, order_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    lens, order = torch.diff(x.query_start_loc), torch.arange(len(x.seq_lens))
    real = int((lens > 0).sum())
    order[:real] = order_of(lens[:real])
    x.query_start_loc[1:] = lens[order].cumsum(0)
    for rows in (x.num_draft_tokens, x.num_accepted_tokens, x.seq_lens, x.block_table):
        rows.copy_(rows[order])


#: What the covering array changes in generated inputs.
CONTENTS = {"decodes_first": decodes_first}

_RAGGED = {"batch_size": 9, "decode_len": "ragged"}
_MIXED = {"batch_size": 20, "decode_len": "ragged", "plain": 0.3, "prefills": 3, "prefill_len": 37}

# fmt: off
EDGE_CASES = [
    EdgeCase("B = 1, speculative", {"batch_size": 1}),
    EdgeCase("B = 1, plain", {"batch_size": 1, "plain": 1.0}),
    EdgeCase("B = 1, a chunk", {"batch_size": 1, "prefills": 1, "prefill_len": 100}),
    EdgeCase("k = 0", {"batch_size": 5, "next_n": 1, "plain": 0.4}),
    EdgeCase("all speculative", _RAGGED),
    EdgeCase("all speculative, uniform", {"batch_size": 128}),
    EdgeCase("all speculative, no draft", {"batch_size": 9, "max_decode_len": 1}),
    EdgeCase("all speculative, padding", _RAGGED | {"padding": 0.4}),
    EdgeCase("no speculative request", {"batch_size": 9, "plain": 1.0}),
    EdgeCase("no speculative request, padding", {"batch_size": 9, "plain": 1.0, "padding": 0.4}),
    EdgeCase("chunks alone", {"batch_size": 4, "prefills": 4, "prefill_len": 70}),
    EdgeCase("padding alone", {"batch_size": 4, "padding": 1.0}),
    EdgeCase("plain decodes among speculative ones", {"batch_size": 40, "decode_len": "ragged", "plain": 0.4}),
    EdgeCase("one speculative request among plain decodes", {"batch_size": 20, "plain": 0.95}),
    EdgeCase("one plain decode among speculative ones", {"batch_size": 20, "plain": 0.05}),
    EdgeCase("chunks among decodes", _MIXED),
    EdgeCase("chunks behind decodes", _MIXED, decodes_first),
    EdgeCase("chunks before decodes", _MIXED, _chunks_first),
    EdgeCase("chunks, plain decodes, padding", _MIXED | {"padding": 0.2}),
    EdgeCase("chunks as long as speculative requests", {"batch_size": 9, "prefills": 3, "prefill_len": 4}),
    EdgeCase("chunks of one token", {"batch_size": 9, "prefills": 3, "prefill_len": 1}),
    EdgeCase("first chunks", _MIXED | {"fresh": 1.0}),
    EdgeCase("later chunks", _MIXED | {"fresh": 0.0}),
    EdgeCase("no draft accepted", _MIXED | {"acceptance": 0.0}),
    EdgeCase("all drafts accepted", _MIXED | {"acceptance": 1.0}),
    EdgeCase("space between rows of the table", _MIXED | {"table_padding": 3}),
    EdgeCase("A = capacity, B = R", {"batch_size": 8, "max_num_seqs": 8, "max_num_batched_tokens": 32}),
    EdgeCase("a chunk of 4 * 448 + 1 tokens among 300 requests", {
        "batch_size": 300, "plain": 0.1, "prefills": 1, "prefill_len": 1793,
    }, _chunks_first),
    EdgeCase("a chunk of 8192 tokens", {"batch_size": 1, "prefills": 1, "prefill_len": 8192}),
    EdgeCase("k = 39, L = 33", {"batch_size": 5, "next_n": 40, "max_decode_len": 33, "plain": 0.4}),
    EdgeCase("B = 1025", {"batch_size": 1025, "decode_len": "ragged", "plain": 0.5, "padding": 0.1}),
]
# fmt: on

_BIG = {"batch_size": 40, "decode_len": "ragged", "plain": 0.3, "prefills": 6, "prefill_len": 20}
_SMALL = {"batch_size": 9, "decode_len": "ragged", "plain": 0.4, "prefills": 3, "prefill_len": 5}
SEQUENCES = {
    "big-small-big": (_BIG, _SMALL, _BIG),
    "mixed-speculative-plain-mixed": (_BIG, _BIG | {"plain": 0.0, "prefills": 0}, _BIG | {"plain": 1.0}, _BIG),
    "big-padded-idle-big": (_BIG, _BIG | {"padding": 0.5}, {"batch_size": 3, "padding": 1.0}, _BIG),
}
