"""Edge cases of token_requests, and sequences of steps through the same buffers.

An edit changes the contents of the inputs (CPU tensors) in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.token_requests.operator import Inputs


def _reordered(x: Inputs, order: torch.Tensor) -> None:
    for start in (x.query_start_loc, x.query_start_loc_cpu):
        start[1:] = torch.diff(start)[order].cumsum(0)


def reverse(x: Inputs) -> None:
    """Requests of padding first, then prefill chunks, then decodes."""
    _reordered(x, torch.arange(len(x.query_start_loc) - 2, -1, -1))


def _padding_between(x: Inputs) -> None:
    """Half of the requests are padding: one behind each real one."""
    rows = len(x.query_start_loc) - 1
    _reordered(x, torch.arange(rows).view(2, -1).T.reshape(-1))


#: What the covering array changes in generated inputs.
CONTENTS = {"reverse": reverse}

_OWN = {"padding_request": "own"}
_RAGGED = {"batch_size": 9, "decode_len": "ragged"}


def _both(name: str, point: dict, edit: Callable[[Inputs], None] | None = None) -> list[EdgeCase]:
    """The edge case with either request of padding tokens."""
    return [EdgeCase(name, point, edit), EdgeCase(f"{name}, own", point | _OWN, edit)]


# fmt: off
EDGE_CASES = [
    *_both("B = 1, one token", {"batch_size": 1, "next_n": 1}),
    EdgeCase("one token per request", {"batch_size": 300, "max_decode_len": 1}),
    EdgeCase("uniform", {"batch_size": 128}),
    EdgeCase("uniform, stale host lengths", {"batch_size": 128, "host_lens": "stale"}),
    EdgeCase("ragged", _RAGGED),
    *_both("token padding", _RAGGED | {"token_padding": 300}),
    *_both("one padding token", _RAGGED | {"token_padding": 1}),
    *_both("no token", {"batch_size": 4, "padding": 1.0}),
    *_both("no real token", {"batch_size": 4, "padding": 1.0, "token_padding": 5}),
    *_both("padding requests last", _RAGGED | {"padding": 0.4, "token_padding": 3}),
    *_both("padding requests first", _RAGGED | {"padding": 0.4, "token_padding": 3}, reverse),
    *_both("padding requests between", {"batch_size": 10, "padding": 0.5, "token_padding": 3}, _padding_between),
    *_both("stale host lengths", _RAGGED | {"host_lens": "stale"}),
    *_both("stale host lengths, chunks, padding", _RAGGED | {
        "host_lens": "stale", "prefills": 2, "padding": 0.2, "token_padding": 7,
    }),
    EdgeCase("chunks beside decodes", {"batch_size": 9, "prefills": 3, "prefill_len": 700}),
    EdgeCase("chunks before decodes", {"batch_size": 9, "prefills": 3, "prefill_len": 700}, reverse),
    EdgeCase("a chunk of 4 * 448 + 1 tokens among 300 requests", {  # more than the strips of its row take at a time
        "batch_size": 300, "prefills": 1, "prefill_len": 1793,
    }),
    EdgeCase("a chunk alone", {"batch_size": 1, "prefills": 1, "prefill_len": 8192}),
    EdgeCase("long rows, L = 33", {"batch_size": 3, "next_n": 40, "max_decode_len": 33, "decode_len": "ragged"}),
    *_both("T = capacity", {"batch_size": 8, "token_padding": 5, "max_num_batched_tokens": 37}),
    EdgeCase("B = 1025", {"batch_size": 1025, "decode_len": "ragged"}),
]
# fmt: on

# Ragged, so that a graph that keeps the boundaries of its capture is wrong.
_BIG, _SMALL = {"batch_size": 40, "decode_len": "ragged"}, {"batch_size": 3, "decode_len": "ragged"}
SEQUENCES = {
    "big-small-big": (_BIG, _SMALL, _BIG),
    "the target's tokens, then one per request": (_BIG, _BIG | {"decode_len": "uniform", "max_decode_len": 1}, _BIG),
    "big-padded-idle-big": (
        _BIG,
        _BIG | {"padding": 0.5, "token_padding": 3},
        _SMALL | {"padding": 1.0, "token_padding": 60},
        _BIG,
    ),
}
