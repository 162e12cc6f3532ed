"""Edge cases of dcp_lengths, and sequences of steps through the same buffers.

An edit changes the contents of the inputs (CPU tensors) in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.dcp_lengths.operator import Inputs


def zeros(x: Inputs) -> None:
    """Every third real row has no context, as padding rows among those that the host counts."""
    x.seq_lens[: x.num_reqs : 3] = 0


def counting(x: Inputs) -> None:
    """0, 1, 2 ... up to the longest of the batch, so that rounds of the ranks begin and end."""
    real = x.seq_lens[: x.num_reqs]
    if x.num_reqs:
        real.copy_(torch.arange(x.num_reqs) % (int(real.max()) + 1))


#: What the covering array changes in generated inputs.
CONTENTS = {"zeros": zeros, "counting": counting}

_RAGGED = {"batch_size": 9, "context_len": {"uniform": [1, 9000]}}
_COUNTING = {"batch_size": 600, "context_len": 600, "contents": "counting"}
_LAST = {"cp_rank": "last"}

# fmt: off
EDGE_CASES = [
    EdgeCase("B = 1, first rank", {"batch_size": 1}),
    EdgeCase("B = 1, last rank", {"batch_size": 1} | _LAST),
    EdgeCase("one token, first rank", {"batch_size": 5, "context_len": 1, "cp_interleave": 16}),
    EdgeCase("one token, last rank", {"batch_size": 5, "context_len": 1, "cp_interleave": 16} | _LAST),
    EdgeCase("two ranks, token by token", _COUNTING | {"cp_size": 2} | _LAST),
    EdgeCase("eight ranks, token by token, first", _COUNTING),
    EdgeCase("eight ranks, token by token, middle", _COUNTING | {"cp_rank": "middle"}),
    EdgeCase("eight ranks, token by token, last", _COUNTING | _LAST),
    EdgeCase("interleave 16, first", _COUNTING | {"cp_interleave": 16}),
    EdgeCase("interleave 16, middle", _COUNTING | {"cp_interleave": 16, "cp_rank": "middle"}),
    EdgeCase("interleave 16, last", _COUNTING | {"cp_interleave": 16} | _LAST),
    EdgeCase("interleave 64, two ranks", _COUNTING | {"cp_size": 2, "cp_interleave": 64} | _LAST),
    EdgeCase("interleave 128, four ranks", _COUNTING | {"cp_size": 4, "cp_interleave": 128, "cp_rank": "middle"}),
    EdgeCase("no powers of two", _COUNTING | {"cp_size": 6, "cp_interleave": 48, "cp_rank": "middle"}),
    EdgeCase("rounds that are full", {"batch_size": 9, "context_len": 8192, "cp_interleave": 128} | _LAST),
    EdgeCase("rows without context", _RAGGED | {"cp_interleave": 16, "contents": "zeros"}),
    EdgeCase("padding rows", _RAGGED | {"padding": 0.4, "cp_interleave": 64}),
    EdgeCase("padding rows, last rank", _RAGGED | {"padding": 0.4} | _LAST),
    EdgeCase("no request", {"batch_size": 4, "padding": 1.0}),
    EdgeCase("B = capacity", _RAGGED | {"max_num_seqs": 9, "cp_interleave": 4}),
    EdgeCase("capacity of 129 rows", _RAGGED | {"max_num_seqs": 129}),
    EdgeCase("capacity of 5000 rows", _RAGGED | {"max_num_seqs": 5000, "cp_interleave": 4}),
    EdgeCase("B = 1025", {"batch_size": 1025, "context_len": {"uniform": [1, 163840]}, "cp_rank": "middle"}),
    EdgeCase("contexts up to 2^31", {
        "batch_size": 40, "max_model_len": 2**31 - 1, "context_len": {"uniform": [2**31 - 3000, 2**31 - 1]},
        "cp_interleave": 128, "cp_rank": "middle",
    }),
]
# fmt: on

# Lengths differ from batch to batch, so a graph that kept the lengths of its capture is wrong in a later step.
_STEP = {"context_len": {"uniform": [1, 9000]}, "cp_interleave": 16}
_BIG, _SMALL = _STEP | {"batch_size": 40}, _STEP | {"batch_size": 3}
SEQUENCES = {
    "big-small-big": (_BIG, _SMALL, _BIG),
    "the target's lengths, then the drafter's": (_BIG, _BIG | {"context_len": {"uniform": [2, 9003]}}, _BIG),
    "big-padded-idle-big": (_BIG, _BIG | {"padding": 0.5}, _SMALL | {"padding": 1.0}, _BIG),
}
