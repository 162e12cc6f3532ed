"""Passes that break implementations of draft_inputs, and sequences of steps through the same buffers.

Edits change the contents of the generated Inputs (CPU tensors) in place; the steps stay legal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.draft_inputs.operator import Inputs


def _chunks(x: Inputs) -> None:
    """Every row is the middle of a prompt: no token was sampled, none rejected."""
    x.num_sampled.zero_()
    x.num_rejected.zero_()


def _one_long_row(x: Inputs) -> None:
    """The first row has all tokens but one for each of the others: more than the host knows of."""
    rows = len(x.idx_mapping)
    tokens = int(x.query_start_loc[rows])
    x.query_start_loc[1:rows] = tokens - rows + torch.arange(1, rows, dtype=torch.int32)
    x.num_rejected.zero_()
    x.num_sampled.fill_(1)


def _after(step: int):
    """Later passes: the one that has run."""

    def edit(x: Inputs) -> None:
        x.current_draft_step.fill_(step)

    return edit


_SMALL = {"max_model_len": 600, "context_len": {"uniform": [8, 600]}, "max_num_batched_tokens": 128, "hidden_size": 40}
_BATCH = _SMALL | {"batch_size": 9, "max_num_seqs": 20, "acceptance": 0.5}
_SECOND, _LATER = _BATCH | {"draft_pass": "second"}, _BATCH | {"draft_pass": "later", "next_n": 6}
_END = {"max_model_len": 40, "context_len": {"uniform": [36, 40]}}


def _zeros(x: Inputs) -> None:
    """Every token is id 0."""
    for tokens in (x.last_sampled_tokens, x.draft_tokens, x.sampled):
        if tokens is not None:
            tokens.zero_()


def _large_ids(x: Inputs) -> None:
    """Token ids past 2^17, as in a vocabulary of 262,144 (Gemma)."""
    for name in ("target_input_ids", "last_sampled_tokens", "next_prefill_tokens", "draft_tokens", "sampled"):
        if (tokens := getattr(x, name)) is not None:
            tokens += 2**17


#: What the covering array changes in generated inputs.
CONTENTS = {"zeros": _zeros, "large_ids": _large_ids}

# fmt: off
EDGE_CASES = [
    EdgeCase("B = 1", _SMALL | {"batch_size": 1, "max_num_seqs": 5}),
    EdgeCase("B = 1, one token", _SMALL | {"batch_size": 1, "max_num_seqs": 5, "max_decode_len": 1}),
    EdgeCase("every slot", _BATCH | {"batch_size": 20}),
    EdgeCase("k = 1", _BATCH | {"next_n": 2}),
    EdgeCase("k = 7", _BATCH | {"next_n": 8}),
    EdgeCase("all accepted", _BATCH | {"acceptance": 1}),
    EdgeCase("all rejected: nothing is shifted", _BATCH | {"acceptance": 0}),
    EdgeCase("all rows chunks", _BATCH | {"batch_size": 4, "prefills": 4, "prefill_len": 30}, _chunks),
    EdgeCase("chunks, some the last ones, beside decodes", _BATCH | {"prefills": 4, "prefill_len": 17}),
    EdgeCase("fewer drafts than k", _BATCH | {"decode_len": "ragged"}),
    EdgeCase("a row of 2050 tokens", {
        "batch_size": 3, "max_num_seqs": 5, "prefills": 1, "prefill_len": 2050, "max_model_len": 4096,
        "max_num_batched_tokens": 2060,
    }),
    EdgeCase("a row of 37 tokens in a grid for 4", _BATCH | {"batch_size": 12}, _one_long_row),
    EdgeCase("A = capacity", _BATCH | {"batch_size": 8, "max_num_batched_tokens": 32}),
    EdgeCase("R = 1500", _BATCH | {"max_num_seqs": 1500}),
    EdgeCase("B = 300", _SMALL | {"batch_size": 300, "max_decode_len": 2, "max_num_batched_tokens": 700}),
    EdgeCase("second", _SECOND),
    EdgeCase("second, B = 1", _SECOND | {"batch_size": 1}),
    EdgeCase("second, every slot", _SECOND | {"batch_size": 20}),
    EdgeCase("second, all rejected", _SECOND | {"acceptance": 0}),
    EdgeCase("second, end of the model's range", _SECOND | _END | {"acceptance": 0.9}),
    EdgeCase("second, positions stay", _SECOND | _END | {"advance": "no"}),
    EdgeCase("second, k = 7 and a row of 600", _SECOND | {"next_n": 8, "prefills": 1, "prefill_len": 60}),
    EdgeCase("second, R = 1500", _SECOND | {"max_num_seqs": 1500}),
    EdgeCase("later", _LATER, _after(1)),
    EdgeCase("later, before the last pass", _LATER, _after(3)),
    EdgeCase("later, after the last pass: drafts only", _LATER, _after(4)),
    EdgeCase("later, k = 2: the last pass", _LATER | {"next_n": 3}),
    EdgeCase("later, any pass", _LATER | {"next_n": 8, "batch_size": 16}),
    EdgeCase("later, end of the model's range", _LATER | _END | {"acceptance": 0.9}, _after(2)),
    EdgeCase("later, positions stay", _LATER | _END | {"advance": "no"}, _after(2)),
    EdgeCase("later, hidden rows of 7168", _LATER | {"batch_size": 3, "hidden_size": 7168}, _after(1)),
    EdgeCase("later, odd hidden rows", _LATER | {"hidden_size": 1027}, _after(1)),
]
# fmt: on

_CAPACITY = _SMALL | {"max_num_seqs": 24}
_BIG, _LITTLE = _CAPACITY | {"batch_size": 20, "decode_len": "ragged"}, _CAPACITY | {"batch_size": 2}
SEQUENCES = {
    "big-small-big": (_BIG, _LITTLE, _BIG),
    "second, big-small-big": tuple(step | {"draft_pass": "second"} for step in (_BIG, _LITTLE, _BIG)),
    "later, big-small-big": tuple(step | {"draft_pass": "later"} for step in (_BIG, _LITTLE, _BIG)),
}
