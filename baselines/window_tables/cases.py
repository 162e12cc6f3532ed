"""Edge cases of window_tables, and sequences of steps through the same buffers.

An edit changes the contents of the inputs (CPU tensors) in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.window_tables.operator import Inputs


def slotless(x: Inputs) -> None:
    """Every second request has no slot anywhere, as a drafter's dummy request."""
    for start, end in zip(x.query_start_loc[:-1:2].tolist(), x.query_start_loc[1::2].tolist(), strict=True):
        x.slot_mappings[:, start:end] = -1


def patchy(x: Inputs) -> None:
    """Of four tokens one has no slot in each group, as recomputed ones have."""
    for group in range(3):
        x.slot_mappings[group, group : x.num_tokens : 4] = -1


def full_states(x: Inputs) -> None:
    """The last token of every request that is long enough ends a state of 128 tokens."""
    query = torch.diff(x.query_start_loc)
    lens = torch.where(x.seq_lens >= 128, x.seq_lens // 128 * 128, x.seq_lens)
    shorter = torch.where(lens >= query, x.seq_lens - lens, 0)
    x.seq_lens.sub_(shorter)
    x.positions[: int(x.query_start_loc[-1])] -= torch.repeat_interleave(shorter, query)


def _large_ids(x: Inputs) -> None:
    """Blocks of a large cache: slots past 2^24, which fp32 does not hold exactly."""
    for table in (x.window_table, x.c4_table, x.c128_table):
        table += ((table > 0) & (table < 2**19)) * 2**19


#: What the covering array changes in generated inputs.
CONTENTS = {"slotless": slotless, "patchy": patchy, "full_states": full_states}

_SHORT = {"max_model_len": 1024, "max_num_batched_tokens": 64}
_RAGGED = _SHORT | {"batch_size": 9, "decode_len": "ragged", "context_len": {"uniform": [4, 1000]}}
_TINY = _RAGGED | {"window_size": 9, "window_block": 4, "c128_block": 1}

# fmt: off
EDGE_CASES = [
    EdgeCase("B = 1, one token", _SHORT | {"batch_size": 1, "next_n": 1, "context_len": 1}),
    EdgeCase("uniform", _SHORT | {"batch_size": 9, "context_len": {"uniform": [4, 1000]}}),
    EdgeCase("ragged", _RAGGED),
    EdgeCase("ragged, small window", _TINY),
    EdgeCase("stale host lengths", _RAGGED | {"host_lens": "stale"}),
    EdgeCase("stale host lengths, padding", _TINY | {"host_lens": "stale", "padding": 0.3, "token_padding": 7}),
    EdgeCase("token padding", _RAGGED | {"token_padding": 5}),
    EdgeCase("padding requests", _RAGGED | {"padding": 0.4, "token_padding": 3}),
    EdgeCase("more padding tokens than workers", _TINY | {
        "batch_size": 1, "token_padding": 300, "max_num_batched_tokens": 310,
    }),
    EdgeCase("T = capacity", _TINY | {"batch_size": 8, "token_padding": 3, "max_num_batched_tokens": 23}),
    EdgeCase("T = capacity, stale host lengths", _TINY | {"host_lens": "stale", "max_num_batched_tokens": 36}),
    EdgeCase("capacity of 5000 tokens", _TINY | {"max_num_batched_tokens": 5000}),
    EdgeCase("sequences shorter than a window", _RAGGED | {"context_len": {"uniform": [4, 100]}}),
    EdgeCase("sequences of a window", _RAGGED | {"context_len": 128}),
    EdgeCase("sequences of a window and one", _RAGGED | {"context_len": 129}),
    EdgeCase("no state of 128", _RAGGED | {"context_len": 127}),
    EdgeCase("states of 128 end", _RAGGED, full_states),
    EdgeCase("blocks of windows end", _RAGGED | {"context_len": 640, "window_block": 32}),
    EdgeCase("window of one token", _TINY | {"window_size": 1}),
    EdgeCase("window of 300 tokens", _RAGGED | {"window_size": 300}),
    EdgeCase("no powers of two", _RAGGED | {"window_size": 100, "window_block": 48, "c128_block": 3}),
    EdgeCase("tokens without slots", _RAGGED | {"token_padding": 3}, patchy),
    EdgeCase("requests without slots", _RAGGED, slotless),
    EdgeCase("slots past 2^24", _RAGGED, _large_ids),
    EdgeCase("lists of 256 columns", {  # of 384, as the host knows of no longer sequence
        "batch_size": 3, "max_model_len": 40_000, "context_len": {"uniform": [20_000, 30_000]},
        "max_num_batched_tokens": 16,
    }),
    EdgeCase("lists of 384 columns", {
        "batch_size": 3, "max_model_len": 40_000, "context_len": {"uniform": [33_000, 40_000]},
        "max_num_batched_tokens": 16,
    }),
    EdgeCase("lists of 2048 columns", {
        "batch_size": 1, "next_n": 2, "max_model_len": 262_144, "context_len": 262_144, "max_num_batched_tokens": 5,
    }),
    EdgeCase("B = 140", {"batch_size": 140, "next_n": 2, "decode_len": "ragged", "max_model_len": 2048,
                         "context_len": {"uniform": [4, 2000]}, "max_num_batched_tokens": 300}),
]
# fmt: on

# Ragged, so that a graph that keeps the boundaries of its capture is wrong, and lengths on both sides of the window.
_STEP = _TINY | {"window_size": 350, "context_len": {"uniform": [130, 400]}, "contents": "full_states"}
_BIG, _SMALL = _STEP | {"batch_size": 20}, _STEP | {"batch_size": 3}
SEQUENCES = {
    "big-small-big": (_BIG, _SMALL, _BIG),
    "big-padded-small-big": (_BIG, _BIG | {"padding": 0.5, "token_padding": 3}, _SMALL | {"token_padding": 20}, _BIG),
    "short, long, short": (_BIG, _BIG | {"context_len": {"uniform": [200, 1000]}}, _BIG),
}
