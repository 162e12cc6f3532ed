"""Steps that break implementations of gather_block_tables, and sequences of steps through the same buffers.

Edits change the contents of the generated Inputs (CPU tensors) in place; the steps stay legal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.baselines.workloads.request_slots import UNUSED, share_blocks
from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.gather_block_tables.operator import Inputs


def _some_own_nothing(x: Inputs) -> None:
    x.num_blocks[:, x.idx_mapping[::2]] = 0


def _none_owns_anything(x: Inputs) -> None:
    x.num_blocks[:, x.idx_mapping] = 0


def _whole_rows_owned(x: Inputs) -> None:
    for g, width in enumerate(x.widths.tolist()):
        x.num_blocks[g, x.idx_mapping] = width


def _computed(tokens: int):
    """Every request has this many computed tokens."""

    def edit(x: Inputs) -> None:
        x.num_computed_tokens[x.idx_mapping] = tokens

    return edit


def _window_above_all_blocks(x: Inputs) -> None:
    """The window starts behind the blocks that are owned: all of those are below it, and no other is touched."""
    x.num_blocks[:, x.idx_mapping] = 2
    x.num_computed_tokens[x.idx_mapping] = 390


_TINY = {"block_size": 16, "max_model_len": 400, "context_len": {"uniform": [4, 400]}}
_BATCH = _TINY | {"batch_size": 9, "max_num_seqs": 20}
_WINDOW = _BATCH | {"window": 31}
_TOKENS = _BATCH | {"entries": "token"}


def _entries_per_block(x: Inputs) -> int:
    """In a row of the tables by slot."""
    return len(x.tables) // (len(x.num_computed_tokens) * int(x.widths.sum()))


def _share_blocks(x: Inputs) -> None:
    share_blocks(x, _entries_per_block(x))


def _large_ids(x: Inputs) -> None:
    """Block ids, or slots of tokens, past 2^24, which fp32 does not hold."""
    x.tables[x.tables < UNUSED] += cdiv(2**24, _entries_per_block(x)) * _entries_per_block(x)


#: Blocks that a warp or a program hides or copies at a time.
STRIP = 32


def _windows_at_strips(x: Inputs) -> None:
    """The window of every request that is long enough for it begins behind whole strips of blocks."""
    for reach, strip in zip(x.reach.tolist(), (STRIP * x.block_sizes.long()).tolist(), strict=True):
        if reach > 0:
            computed = x.num_computed_tokens[x.idx_mapping].long()
            whole = (computed - reach) // strip * strip + reach
            x.num_computed_tokens[x.idx_mapping] = torch.where(whole > reach, whole, computed).int()
            return  # of the first group that has one


#: What the covering array changes in generated inputs.
CONTENTS = {"shared_blocks": _share_blocks, "large_ids": _large_ids, "windows_at_strips": _windows_at_strips}

# fmt: off
EDGE_CASES = [
    EdgeCase("B = 1", _TINY | {"batch_size": 1}),
    EdgeCase("every slot, no padding", _BATCH | {"batch_size": 20}),
    EdgeCase("one padding row", _BATCH | {"padding": 0.1}),
    EdgeCase("padded up to the last slot", _BATCH | {"batch_size": 20, "padding": 0.9}),
    EdgeCase("no real request", _BATCH | {"padding": 1.0, "dirty": 12}),
    EdgeCase("the previous step had more rows", _BATCH | {"dirty": 17}),
    EdgeCase("the previous step had all rows", _BATCH | {"dirty": 20, "padding": 0.5}),
    EdgeCase("the previous step had fewer rows", _BATCH | {"dirty": 2, "padding": 0.5}),
    EdgeCase("no previous step", _BATCH | {"dirty": 0}),
    EdgeCase("some requests own no block", _BATCH, _some_own_nothing),
    EdgeCase("no request owns a block", _BATCH, _none_owns_anything),
    EdgeCase("whole rows", _BATCH, _whole_rows_owned),
    EdgeCase("one column", _BATCH | {"block_size": 400}),
    EdgeCase("1025 columns", {
        "batch_size": 3, "max_num_seqs": 5, "block_size": 4, "max_model_len": 4100, "context_len": 4100,
    }),
    EdgeCase("2051 columns cleared", {
        "batch_size": 2, "max_num_seqs": 5, "block_size": 1, "max_model_len": 2051, "context_len": 1500, "dirty": 4,
    }),
    EdgeCase("5 groups of one width", _BATCH | {"num_groups": 5}),
    EdgeCase("4 groups of different widths", _BATCH | {"num_groups": 4, "group_blocks": "mixed", "padding": 0.3}),
    EdgeCase("window", _WINDOW),
    EdgeCase("window in every second group", _WINDOW | {"num_groups": 4, "group_blocks": "mixed", "padding": 0.2}),
    EdgeCase("window, nothing computed", _WINDOW, _computed(0)),
    EdgeCase("window, computed = reach", _WINDOW, _computed(31)),
    EdgeCase("window, computed = reach + block", _WINDOW, _computed(47)),
    EdgeCase("window, one less", _WINDOW, _computed(46)),
    EdgeCase("window behind 32 blocks", _WINDOW | {"max_model_len": 1200, "context_len": 1200}, _computed(543)),
    EdgeCase("window above all owned blocks", _WINDOW, _window_above_all_blocks),
    EdgeCase("window of one token", _WINDOW | {"window": 1}),
    EdgeCase("window of 128 tokens", _WINDOW | {"window": 128, "context_len": 400}),
    EdgeCase("window of 1498 blocks", {
        "batch_size": 3, "max_num_seqs": 4, "block_size": 1, "max_model_len": 3000, "context_len": 3000,
        "window": 1498,
    }),
    EdgeCase("block size 1", _WINDOW | {"block_size": 1}),
    EdgeCase("width a multiple of 4", _WINDOW | {"max_model_len": 320, "context_len": {"uniform": [4, 320]}}),
    EdgeCase("counts in host memory", _WINDOW | {"memory": "uva", "num_groups": 3}),
    EdgeCase("counts in host memory, 1500 columns", {
        "batch_size": 2, "max_num_seqs": 5, "block_size": 1, "max_model_len": 2051, "context_len": 1500, "dirty": 4,
        "memory": "uva",
    }),
    EdgeCase("an entry per token", _TOKENS),
    EdgeCase("an entry per token, 100 blocks of 32", _TOKENS | {
        "block_size": 32, "max_model_len": 4200, "context_len": 3200,
    }),
    EdgeCase("an entry per token, every slot", _TOKENS | {"batch_size": 20}),
    EdgeCase("an entry per token, one block", _TOKENS | {"block_size": 512}),
    EdgeCase("an entry per token, blocks of one token", _TOKENS | {"block_size": 1}),
    EdgeCase("an entry per token, lengths of whole blocks", _TOKENS | {"context_len": 384}),
    EdgeCase("an entry per token, the last block begins", _TOKENS | {"context_len": 385}),
    EdgeCase("an entry per token, some requests own no block", _TOKENS, _some_own_nothing),
    EdgeCase("an entry per token, 1040 blocks", _TOKENS | {
        "batch_size": 3, "max_num_seqs": 5, "block_size": 4, "max_model_len": 4160, "context_len": 4157,
    }),
    EdgeCase("an entry per token, padding", _TOKENS | {"padding": 0.3, "dirty": 12}),
    EdgeCase("an entry per token, window", _TOKENS | {
        "window": 31, "max_model_len": 320, "context_len": {"uniform": [4, 320]},
    }),
    EdgeCase("an entry per token, counts in host memory", _TOKENS | {"memory": "uva"}),
    EdgeCase("an entry per token, counts in host memory, 1040 blocks", _TOKENS | {
        "batch_size": 3, "max_num_seqs": 5, "block_size": 4, "max_model_len": 4160, "context_len": 4157,
        "memory": "uva",
    }),
]
# fmt: on

_CAPACITY = _TINY | {"max_num_seqs": 24, "num_groups": 2, "window": 31}
_BIG, _SMALL = _CAPACITY | {"batch_size": 20, "dirty": 0}, _CAPACITY | {"batch_size": 3, "dirty": 20}
_BY_TOKEN = {"num_groups": 1, "window": 0, "entries": "token"}
SEQUENCES = {
    "big-small-big": (_BIG, _SMALL, _BIG | {"dirty": 3}),
    "shrinking": (_BIG, *(_CAPACITY | {"batch_size": b, "dirty": d} for b, d in ((14, 20), (9, 14), (1, 9)))),
    "big-padded-idle-big": (
        _BIG,
        _BIG | {"padding": 0.6, "dirty": 20},
        _SMALL | {"padding": 1.0, "dirty": 8},
        _BIG,
    ),
    "big-small-big of tokens": tuple(step | _BY_TOKEN for step in (_BIG, _SMALL, _BIG | {"dirty": 3})),
}
