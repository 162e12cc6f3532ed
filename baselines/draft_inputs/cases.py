"""Passes that break implementations of draft_inputs, and sequences of steps through the same buffers.

Edits change the contents of the generated Inputs (CPU tensors) in place; the steps stay legal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from harness.contract import HardPoint

if TYPE_CHECKING:
    from baselines.draft_inputs.operator import Inputs


def _chunks(x: Inputs) -> None:
    """Every row is the middle of a prompt: no token was sampled, none rejected."""
    x.num_sampled.zero_()
    x.num_rejected.zero_()


def _one_long_row(x: Inputs) -> None:
    """The first row has all tokens but one for each of the others: more than the host knows of."""
    rows = len(x.idx)
    tokens = int(x.query_start_loc[rows])
    x.query_start_loc[1:rows] = tokens - rows + torch.arange(1, rows, dtype=torch.int32)
    x.num_rejected.zero_()
    x.num_sampled.fill_(1)


def _after(step: int):
    """Later passes: the one that has run."""

    def edit(x: Inputs) -> None:
        x.step.fill_(step)

    return edit


_SMALL = {"max_model_len": 600, "context_len": {"uniform": [8, 600]}, "max_num_batched_tokens": 128, "hidden_size": 40}
_BATCH = _SMALL | {"batch_size": 9, "max_num_seqs": 20, "acceptance": 0.5}
_SECOND, _LATER = _BATCH | {"draft_pass": "second"}, _BATCH | {"draft_pass": "later", "next_n": 6}
_END = {"max_model_len": 40, "context_len": {"uniform": [36, 40]}}

# fmt: off
HARD_POINTS = [
    HardPoint("B = 1", _SMALL | {"batch_size": 1, "max_num_seqs": 5}),
    HardPoint("B = 1, one token", _SMALL | {"batch_size": 1, "max_num_seqs": 5, "max_decode_len": 1}),
    HardPoint("every slot", _BATCH | {"batch_size": 20}),
    HardPoint("k = 1", _BATCH | {"next_n": 2}),
    HardPoint("k = 7", _BATCH | {"next_n": 8}),
    HardPoint("all accepted", _BATCH | {"acceptance": 1}),
    HardPoint("all rejected: nothing is shifted", _BATCH | {"acceptance": 0}),
    HardPoint("all rows chunks", _BATCH | {"batch_size": 4, "prefills": 4, "prefill_len": 30}, _chunks),
    HardPoint("chunks, some the last ones, beside decodes", _BATCH | {"prefills": 4, "prefill_len": 17}),
    HardPoint("fewer drafts than k", _BATCH | {"decode_len": "ragged"}),
    HardPoint("a row of 2050 tokens", {"batch_size": 3, "max_num_seqs": 5, "prefills": 1, "prefill_len": 2050, "max_model_len": 4096, "max_num_batched_tokens": 2060}),  # noqa: E501
    HardPoint("a row of 37 tokens in a grid for 4", _BATCH | {"batch_size": 12}, _one_long_row),
    HardPoint("A = capacity", _BATCH | {"batch_size": 8, "max_num_batched_tokens": 32}),
    HardPoint("R = 1500", _BATCH | {"max_num_seqs": 1500}),
    HardPoint("B = 300", _SMALL | {"batch_size": 300, "max_decode_len": 2, "max_num_batched_tokens": 700}),
    HardPoint("second", _SECOND),
    HardPoint("second, B = 1", _SECOND | {"batch_size": 1}),
    HardPoint("second, every slot", _SECOND | {"batch_size": 20}),
    HardPoint("second, all rejected", _SECOND | {"acceptance": 0}),
    HardPoint("second, end of the model's range", _SECOND | _END | {"acceptance": 0.9}),
    HardPoint("second, positions stay", _SECOND | _END | {"advance": "no"}),
    HardPoint("second, k = 7 and a row of 600", _SECOND | {"next_n": 8, "prefills": 1, "prefill_len": 60}),
    HardPoint("second, R = 1500", _SECOND | {"max_num_seqs": 1500}),
    HardPoint("later", _LATER, _after(1)),
    HardPoint("later, before the last pass", _LATER, _after(3)),
    HardPoint("later, after the last pass: drafts only", _LATER, _after(4)),
    HardPoint("later, k = 2: the last pass", _LATER | {"next_n": 3}),
    HardPoint("later, any pass", _LATER | {"next_n": 8, "batch_size": 16}),
    HardPoint("later, end of the model's range", _LATER | _END | {"acceptance": 0.9}, _after(2)),
    HardPoint("later, positions stay", _LATER | _END | {"advance": "no"}, _after(2)),
    HardPoint("later, hidden rows of 7168", _LATER | {"batch_size": 3, "hidden_size": 7168}, _after(1)),
    HardPoint("later, odd hidden rows", _LATER | {"hidden_size": 1027}, _after(1)),
]
# fmt: on

_CAPACITY = _SMALL | {"max_num_seqs": 24}
_BIG, _LITTLE = _CAPACITY | {"batch_size": 20, "decode_len": "ragged"}, _CAPACITY | {"batch_size": 2}
SEQUENCES = {
    "big-small-big": (_BIG, _LITTLE, _BIG),
    "second, big-small-big": tuple(step | {"draft_pass": "second"} for step in (_BIG, _LITTLE, _BIG)),
    "later, big-small-big": tuple(step | {"draft_pass": "later"} for step in (_BIG, _LITTLE, _BIG)),
}
