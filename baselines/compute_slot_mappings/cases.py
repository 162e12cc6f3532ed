"""Steps that break implementations of compute_slot_mappings, and sequences of steps through the same buffers.

Edits change the contents of the generated Inputs (CPU tensors) in place; the steps stay legal.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from spec_decode_bench.baselines.workloads.request_slots import UNUSED, share_blocks
from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.compute_slot_mappings.operator import Inputs


def _dummy_rows(x: Inputs) -> None:
    """Every second row is a drafter's dummy: it has tokens but owns no blocks."""
    x.idx_mapping[::2] = -1


def _all_dummy(x: Inputs) -> None:
    x.idx_mapping.fill_(-1)


def _empty_rows(x: Inputs) -> None:
    """Rows 1 and 3 have no token; those after them start earlier."""
    lens = torch.diff(x.query_start_loc)
    positions = list(x.positions[: x.num_tokens].split(lens[lens > 0].tolist()))
    for row in (1, 3):
        lens[row] = 0
    x.query_start_loc[1:] = lens.cumsum(0)
    kept = torch.cat([p for row, p in enumerate(positions) if row not in (1, 3)])
    x.positions[: len(kept)] = kept


def _reversed_positions(x: Inputs) -> None:
    starts = x.query_start_loc.tolist()
    for start, end in pairwise(starts):
        x.positions[start:end] = x.positions[start:end].flip(0)


def _disabled(x: Inputs) -> None:
    """The middle group is not enabled, and its positions lie beyond its table: one column, no row is owned."""
    x.enabled[1] = False
    x.widths[1] = 1


def _all_disabled(x: Inputs) -> None:
    x.enabled.zero_()


def _all_sharded(x: Inputs) -> None:
    x.sharded.fill_(True)


def null_blocks(x: Inputs) -> None:
    """Every row's blocks are the null block, as those below a sliding window are."""
    x.tables.zero_()


def _large_ids(x: Inputs) -> None:
    """Slots just below 2^31: the product of id and block size is formed in 32 bits."""
    owned = x.tables < UNUSED
    x.tables[owned] += (2**31 - 1) // int(x.block_sizes[0]) - 1 - int(x.tables[owned].max())


_TINY = {"block_size": 16, "max_model_len": 400, "context_len": {"uniform": [4, 400]}, "max_num_batched_tokens": 128}
_BATCH = _TINY | {"batch_size": 9, "max_num_seqs": 20}
_GROUPS = _BATCH | {"num_groups": 3, "group_blocks": "mixed"}
_CP = {"block_size": 4, "max_model_len": 200, "context_len": {"uniform": [4, 200]}, "max_num_batched_tokens": 128}


def some_disabled(x: Inputs) -> None:
    """Groups 1, 4, 7 are not enabled."""
    x.enabled[1::3] = False


def _past_the_tables(x: Inputs) -> None:
    """Every third token lies past the tables of all groups, however many ranks share them."""
    past = 8 * int((x.widths * x.block_sizes).max())
    if past < 2**30:
        x.positions[: x.num_tokens : 3] = past


def first_disabled(x: Inputs) -> None:
    """Groups 0, 3, 6 are not enabled."""
    x.enabled[::3] = False


def _others_sharded(x: Inputs) -> None:
    """Where ranks share some groups, they share the others; the last one is not enabled."""
    if x.sharded.any():
        x.sharded.logical_not_()
    x.enabled[-1] = False


#: What the covering array changes in generated inputs.
CONTENTS = {
    "dummies": _dummy_rows,
    "some_disabled": some_disabled,
    "first_disabled": first_disabled,
    "others_sharded": _others_sharded,
    "shared_blocks": share_blocks,
    "past_the_tables": _past_the_tables,
}

# fmt: off
EDGE_CASES = [
    EdgeCase("B = 1, one token", _TINY | {"batch_size": 1, "max_decode_len": 1}),
    EdgeCase("no token at all", _TINY | {"batch_size": 5, "padding": 1.0}),
    EdgeCase("padding rows", _BATCH | {"padding": 0.4}),
    EdgeCase("rows without tokens between others", _BATCH | {"batch_size": 6}, _empty_rows),
    EdgeCase("A = capacity", _BATCH | {"batch_size": 8, "max_num_batched_tokens": 32}),
    EdgeCase("tail of 40", _BATCH | {"batch_size": 8, "max_num_batched_tokens": 72}),
    EdgeCase("tail of 1025", _BATCH | {"batch_size": 8, "max_num_batched_tokens": 32 + 1025}),
    EdgeCase("tail of 9000", _BATCH | {"batch_size": 2, "max_num_batched_tokens": 9008}),
    EdgeCase("dummy rows between real ones", _BATCH, _dummy_rows),
    EdgeCase("every row a dummy", _BATCH, _all_dummy),
    EdgeCase("a chunk of 2050 tokens beside decodes", {
        "batch_size": 5, "max_num_seqs": 7, "prefills": 1, "prefill_len": 2050, "max_model_len": 4096,
        "max_num_batched_tokens": 3000,
    }),
    EdgeCase("chunks only", _BATCH | {"batch_size": 3, "prefills": 3, "prefill_len": 40}),
    EdgeCase("block size 1", _BATCH | {"block_size": 1}),
    EdgeCase("last block, last offset", _BATCH | {"context_len": 400}),
    EdgeCase("a row crosses into the next block", _BATCH | {"context_len": 34}),
    EdgeCase("positions in any order", _BATCH | {"prefills": 1, "prefill_len": 40}, _reversed_positions),
    EdgeCase("ragged, k = 6", _BATCH | {"next_n": 7, "decode_len": "ragged"}),
    EdgeCase("every slot in use", _BATCH | {"batch_size": 20}),
    EdgeCase("three groups of different blocks", _GROUPS),
    EdgeCase("five groups", _BATCH | {"num_groups": 5}),
    EdgeCase("a group without generic mapping has a narrower table", _GROUPS, _disabled),
    EdgeCase("no group is enabled", _GROUPS, _all_disabled),
    EdgeCase("null blocks", _BATCH, null_blocks),
    EdgeCase("slots up to 2^31", _BATCH, _large_ids),
    EdgeCase("positions past the tables", _GROUPS, _past_the_tables),
    EdgeCase("CP = 2, rank 0", _CP | {"batch_size": 7, "cp_size": 2}),
    EdgeCase("CP = 2, rank 1", _CP | {"batch_size": 7, "cp_size": 2, "cp_rank": "last"}),
    EdgeCase("CP = 4, interleave 4", _CP | {"batch_size": 7, "cp_size": 4, "cp_interleave": 4, "cp_rank": "last"}),
    EdgeCase("CP = 8, block size 3 x 4", _CP | {"batch_size": 7, "block_size": 12, "cp_size": 8, "cp_interleave": 4}),
    EdgeCase("CP = 2, interleave 128, kernel blocks of 64", {
        "batch_size": 7, "block_size": 64, "blocks_per_kv_block": 4, "cp_size": 2, "cp_interleave": 128,
        "cp_rank": "last", "max_model_len": 2000, "context_len": {"uniform": [4, 2000]}, "max_num_batched_tokens": 128,
    }),
    EdgeCase("sharded and replicated groups", _GROUPS | {"cp_size": 2, "cp_rank": "last"}),
    EdgeCase("all groups sharded", _GROUPS | {"cp_size": 4, "cp_interleave": 4}, _all_sharded),
    EdgeCase("capacity not a multiple of 4", _BATCH | {"max_num_batched_tokens": 1027, "num_groups": 2}),
    EdgeCase("B = 300", {
        "batch_size": 300, "max_decode_len": 2, "max_model_len": 2000, "context_len": {"uniform": [2, 2000]},
        "max_num_batched_tokens": 700,
    }),
]
# fmt: on

_CAPACITY = _TINY | {"max_num_seqs": 24, "num_groups": 2}
_BIG, _SMALL = _CAPACITY | {"batch_size": 20, "decode_len": "ragged"}, _CAPACITY | {"batch_size": 2}
SEQUENCES = {
    "big-small-big": (_BIG, _SMALL, _BIG),
    "chunk-decode-idle-chunk": (
        _BIG | {"prefills": 1, "prefill_len": 50},
        _SMALL,
        _SMALL | {"padding": 1.0},
        _BIG | {"prefills": 1, "prefill_len": 50},
    ),
}
