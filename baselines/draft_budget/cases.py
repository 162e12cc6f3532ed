"""Steps that break implementations of draft_budget, and sequences of steps through the same buffers.

Edits change the confidences of the generated Inputs (CPU tensors) in place; products stay exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.draft_budget.operator import Inputs


def _put(x: Inputs, rows: torch.Tensor) -> None:
    """The confidences of the batch's rows [B', k]."""
    if x.idx_mapping is None:
        x.confidence.copy_(rows)
    else:
        x.confidence[x.idx_mapping] = rows


def _shape(x: Inputs) -> tuple[int, int]:
    return len(x.confidence if x.idx_mapping is None else x.idx_mapping), x.confidence.shape[1]


def _all(value: float):
    def edit(x: Inputs) -> None:
        _put(x, torch.full(_shape(x), value))

    return edit


def ties_across_drafts(x: Inputs) -> None:
    """Every third row survives its first draft as seldom as the others their second: ties of different drafts."""
    rows = torch.ones(_shape(x))
    rows[:, :2] = 0.5
    rows[::3, :1] = 0.25
    rows[::3, 1:2] = 1.0
    _put(x, rows)


def last_bits(x: Inputs) -> None:
    """First confidences differ in the last bit of fp32; the other drafts are certain."""
    rows = torch.ones(_shape(x))
    rows[:, :1] -= (torch.arange(len(rows)) * 7 % 11)[:, None] * 2.0**-24
    _put(x, rows)


def seldom(x: Inputs) -> None:
    """Drafts around the least survival that SGLang verifies, and down to 2^-100: half of the rows survive seldom."""
    rows = torch.ones(_shape(x))
    rows[::2, :1] = 2.0**-20
    rows[1::2, :1] = 2.0**-19
    rows[::4, 1:2] = 2.0**-80
    _put(x, rows)


def rejected_later(x: Inputs) -> None:
    """Row by row, drafts from the second, third ... on never survive: p = 0, among them all of some rows."""
    rows, k = _shape(x)
    _put(x, torch.where(torch.arange(k) < (torch.arange(rows) % (k + 1))[:, None], 1.0, 0.0))


def _alike(x: Inputs) -> None:
    """Every row survives its first draft, and seldom another one."""
    rows = torch.full(_shape(x), 0.25)
    rows[:, :1] = 1.0
    _put(x, rows)


def _rising(x: Inputs) -> None:
    """The last row is the most certain one: the order of the rows is not that of the scores."""
    rows, k = _shape(x)
    confidence = torch.ones(rows, k)
    confidence[:, :1] = ((torch.arange(rows) + 1) / 2.0 ** max(rows, 2).bit_length())[:, None]
    _put(x, confidence)


def _slots_in_order(x: Inputs) -> None:
    """The requests have the first slots, in the order of the rows."""
    if x.idx_mapping is not None:
        rows = x.confidence[x.idx_mapping].clone()
        x.idx_mapping.copy_(torch.arange(len(rows)))
        x.confidence[x.idx_mapping] = rows


#: What the covering array changes in generated inputs.
CONTENTS = {
    "certain": _all(1.0),
    "hopeless": _all(0.0),
    "ties_across_drafts": ties_across_drafts,
    "last_bits": last_bits,
    "seldom": seldom,
    "rejected_later": rejected_later,
    "slots_in_order": _slots_in_order,
}

_SMALL = {"batch_size": 9, "max_num_seqs": 20, "next_n": 4}
_SGLANG = _SMALL | {"rule": "sglang"}

# fmt: off
EDGE_CASES = [
    EdgeCase("B = 1", _SMALL | {"batch_size": 1}),
    EdgeCase("B = 1, one draft", _SMALL | {"batch_size": 1, "next_n": 2, "budget": 1.0}),
    EdgeCase("no drafts at all", _SMALL | {"next_n": 1}),
    EdgeCase("every slot", _SMALL | {"batch_size": 20}),
    EdgeCase("budget 0", _SMALL | {"budget": 0.0}),
    EdgeCase("budget 1", _SMALL | {"budget": 0.04}),
    EdgeCase("all drafts but one", _SMALL | {"budget": 0.97}),
    EdgeCase("all drafts", _SMALL | {"budget": 1.0}),
    EdgeCase("new requests: all survive alike", _SMALL, _all(1.0)),
    EdgeCase("no draft survives", _SMALL, _all(0.0)),
    EdgeCase("one draft for each request", _SMALL | {"budget": 0.334}, _alike),
    EdgeCase("ties of different drafts", _SMALL | {"batch_size": 20, "budget": 0.4}, ties_across_drafts),
    EdgeCase("ties of different drafts, budget 0.2", _SMALL | {"batch_size": 20, "budget": 0.2}, ties_across_drafts),
    EdgeCase("scores differ in the last bit", _SMALL | {"batch_size": 20}, last_bits),
    EdgeCase("down to 2^-100", _SMALL | {"batch_size": 20, "budget": 0.9}, seldom),
    EdgeCase("some drafts never survive", _SMALL | {"batch_size": 20, "budget": 0.9}, rejected_later),
    EdgeCase("the last row is the most certain", _SMALL, _rising),
    EdgeCase("requests without drafts", _SMALL | {"decode_len": "ragged", "budget": 0.7}),
    EdgeCase("10 % without drafts, most of the rest", _SMALL | {
        "batch_size": 20, "decode_len": "mixed", "budget": 0.9,
    }),
    EdgeCase("fewer drafts than configured", _SMALL | {"max_decode_len": 3, "budget": 0.9}, _all(1.0)),
    EdgeCase("chunks beside decodes", _SMALL | {"prefills": 4, "prefill_len": 50}),
    EdgeCase("chunks only", _SMALL | {"prefills": 9}),
    EdgeCase("host memory", _SMALL | {"memory": "uva", "decode_len": "ragged", "prefills": 2}),
    EdgeCase("R = 1500", _SMALL | {"max_num_seqs": 1500}),
    EdgeCase("B = 300, k = 15", {"batch_size": 300, "next_n": 16, "decode_len": "ragged"}),
    EdgeCase("B = 1030, all alike", {"batch_size": 1030, "next_n": 3, "budget": 0.7}, _all(1.0)),
    EdgeCase("B = 1100, k = 9, chunks", {
        "batch_size": 1100, "next_n": 10, "budget": 0.3, "prefills": 3, "prefill_len": 40,
    }),
    EdgeCase("SGLang, B = 1", _SGLANG | {"batch_size": 1, "token_padding": 2}),
    EdgeCase("SGLang, no drafts at all", _SGLANG | {"next_n": 1, "padding": 0.2, "token_padding": 5}),
    EdgeCase("SGLang, budget 0", _SGLANG | {"budget": 0.0, "padding": 0.3, "token_padding": 4}),
    EdgeCase("SGLang, more than all drafts", _SGLANG | {"budget": 1.5, "padding": 0.3, "token_padding": 4}),
    EdgeCase("SGLang, a captured size hit exactly", _SGLANG | {"batch_size": 16, "padding": 0.4}),
    EdgeCase("SGLang, padding rows of two lengths", _SGLANG | {"batch_size": 16, "padding": 0.4, "token_padding": 23}),
    EdgeCase("SGLang, long padding rows, capped", _SGLANG | {
        "batch_size": 16, "padding": 0.4, "token_padding": 29, "capped": "yes",
    }),
    EdgeCase("SGLang, padding rows of k + 1 and k + 2 tokens, capped", _SGLANG | {
        "batch_size": 16, "padding": 0.25, "token_padding": 17, "capped": "yes",
    }),
    EdgeCase("SGLang, the last row has the padding", _SGLANG | {"token_padding": 30}),
    EdgeCase("SGLang, the last row has the padding, capped", _SGLANG | {"token_padding": 30, "capped": "yes"}),
    EdgeCase("SGLang, all survive alike", _SGLANG | {"batch_size": 20, "padding": 0.1, "budget": 0.4}, _all(1.0)),
    EdgeCase("SGLang, no draft survives", _SGLANG | {"batch_size": 16, "padding": 0.4}, _all(0.0)),
    EdgeCase("SGLang, ties of different drafts", _SGLANG | {"batch_size": 20, "budget": 0.4}, ties_across_drafts),
    EdgeCase("SGLang, ties of different drafts, budget 0.2", _SGLANG | {
        "batch_size": 20, "budget": 0.2,
    }, ties_across_drafts),
    EdgeCase("SGLang, most drafts survive too seldom", _SGLANG | {"batch_size": 20, "budget": 0.9}, seldom),
    EdgeCase("SGLang, some drafts never survive", _SGLANG | {"batch_size": 20, "budget": 0.9}, rejected_later),
    EdgeCase("SGLang, scores differ in the last bit", _SGLANG | {"batch_size": 20}, last_bits),
    EdgeCase("SGLang, B = 1100, k = 9, all alike", {
        "rule": "sglang", "batch_size": 1100, "next_n": 10, "budget": 0.3, "padding": 0.02, "token_padding": 77,
    }, _all(1.0)),
    EdgeCase("SGLang, B = 1030", {"rule": "sglang", "batch_size": 1030, "next_n": 3, "token_padding": 77}),
]
# fmt: on

_CAPACITY = {"max_num_seqs": 24, "next_n": 6}
_BIG, _LITTLE = _CAPACITY | {"batch_size": 20, "decode_len": "ragged"}, _CAPACITY | {"batch_size": 2}
_PADDED = _CAPACITY | {"rule": "sglang", "padding": 0.2, "token_padding": 9}
SEQUENCES = {
    "big-small-big": (_BIG, _LITTLE, _BIG),
    "all-none-some": (_BIG | {"budget": 1.0}, _LITTLE | {"budget": 0.0}, _BIG | {"budget": 0.3, "prefills": 2}),
    "SGLang, big-small-big": (_PADDED | {"batch_size": 20}, _PADDED | {"batch_size": 3}, _PADDED | {"batch_size": 20}),
}
