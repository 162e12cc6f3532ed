"""Steps that break implementations of block_draft_inputs, and sequences of steps through the same buffers.

Edits change the contents of the generated Inputs (CPU tensors) in place; the steps stay legal.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

from spec_decode_bench.baselines.workloads.request_slots import UNUSED, share_blocks
from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.block_draft_inputs.operator import Inputs


def _zeros(x: Inputs) -> None:
    """Every newest token is id 0."""
    x.last_sampled_tokens.zero_()
    x.next_prefill_tokens.zero_()


def _large_ids(x: Inputs) -> None:
    """Token ids past 2^17, as in a vocabulary of 262,144 (Gemma), and slots past 2^31."""
    x.last_sampled_tokens.add_(2**17)
    x.next_prefill_tokens.add_(2**17)
    owned = x.block_tables < UNUSED
    x.block_tables[owned] += UNUSED - 1 - int(x.block_tables[owned].max())


def _evicted(x: Inputs) -> None:
    """Of every second row the blocks up to that of the step's first token are the null block: below a window."""
    for b in range(0, len(x.idx_mapping), 2):
        first = int(x.target_positions[x.query_start_loc[b]])
        for start, width, block in _groups(x):
            x.block_tables[start + b * width :][: min(first // block + 1, width)] = 0


def _null_blocks(x: Inputs) -> None:
    x.block_tables.zero_()


def _shared_blocks(x: Inputs) -> None:
    """Every second request has the blocks of the one before it, as prefix caching makes them."""
    rows = torch.arange(len(x.idx_mapping))
    share_blocks(SimpleNamespace(idx_mapping=rows, starts=x.table_starts, widths=x.widths, tables=x.block_tables))


def _past_the_tables(x: Inputs) -> None:
    """Every third row lies past the tables of all groups, however many ranks share them."""
    past = 8 * int((x.widths * x.block_sizes).max())
    starts = x.query_start_loc.tolist()
    for b in range(0, len(x.idx_mapping), 3) if past < 2**30 else ():
        x.target_positions[starts[b] : starts[b + 1]] = past + torch.arange(starts[b + 1] - starts[b])


def _chunks(x: Inputs) -> None:
    """Every row is the middle of a prompt: no token was sampled, none rejected."""
    x.num_sampled.zero_()
    x.num_rejected.zero_()


def _any_order(x: Inputs) -> None:
    """Positions of a row fall, as those of an image may."""
    starts = x.query_start_loc.tolist()
    for b in range(len(x.idx_mapping)):
        x.target_positions[starts[b] : starts[b + 1]] = x.target_positions[starts[b] : starts[b + 1]].flip(0)


def _one_long_row(x: Inputs) -> None:
    """The first row has all tokens but one for each of the others: more than the host knows of."""
    rows = len(x.idx_mapping)
    tokens = int(x.query_start_loc[rows])
    x.query_start_loc[1:rows] = tokens - rows + torch.arange(1, rows, dtype=torch.int32)
    x.num_rejected.zero_()
    x.num_sampled.fill_(1)


def _groups(x: Inputs) -> list[tuple[int, int, int]]:
    """(start of its table, width, block size) of each group."""
    return list(zip(x.table_starts.tolist(), x.widths.tolist(), x.block_sizes.tolist(), strict=True))


#: What the covering array changes in generated inputs.
CONTENTS = {
    "zeros": _zeros,
    "large_ids": _large_ids,
    "evicted": _evicted,
    "shared_blocks": _shared_blocks,
    "past_the_tables": _past_the_tables,
}

_SMALL = {"max_model_len": 600, "context_len": {"uniform": [8, 500]}, "block_size": 16, "max_num_batched_tokens": 128}
_BATCH = _SMALL | {"batch_size": 9, "max_num_seqs": 20, "acceptance": 0.5}
_DFLASH = _BATCH | {"sample_from_anchor": "no"}
_GROUPS = _BATCH | {"num_groups": 3, "group_blocks": "mixed"}
_CP = _BATCH | {"batch_size": 7, "block_size": 4, "max_model_len": 200, "context_len": {"uniform": [4, 190]}}
#: Positions behind the model's range that lie past the tables, and inside them.
_END = {"max_model_len": 48, "context_len": {"uniform": [44, 48]}, "acceptance": 0.9}
_INSIDE = {"max_model_len": 40, "context_len": {"uniform": [36, 40]}, "acceptance": 0.9}

# fmt: off
EDGE_CASES = [
    EdgeCase("B = 1", _SMALL | {"batch_size": 1, "max_num_seqs": 5}),
    EdgeCase("B = 1, one token, one draft", _SMALL | {
        "batch_size": 1, "max_num_seqs": 5, "next_n": 2, "max_decode_len": 1,
    }),
    EdgeCase("every slot", _BATCH | {"batch_size": 20}),
    EdgeCase("k = 7", _BATCH | {"next_n": 8}),
    EdgeCase("k = 15", _BATCH | {"batch_size": 6, "next_n": 16}),
    EdgeCase("masks alone are sampled", _DFLASH),
    EdgeCase("masks alone, k = 1", _DFLASH | {"next_n": 2}),
    EdgeCase("masks alone, k = 15", _DFLASH | {"batch_size": 6, "next_n": 16}),
    EdgeCase("all accepted", _BATCH | {"acceptance": 1}),
    EdgeCase("all rejected", _BATCH | {"acceptance": 0}),
    EdgeCase("fewer drafts than k", _BATCH | {"decode_len": "ragged"}),
    EdgeCase("all rows chunks", _BATCH | {"batch_size": 4, "prefills": 4, "prefill_len": 30}, _chunks),
    EdgeCase("chunks, some the last ones, beside decodes", _DFLASH | {"prefills": 4, "prefill_len": 17}),
    EdgeCase("a row of 2050 tokens", {
        "batch_size": 3, "max_num_seqs": 5, "prefills": 1, "prefill_len": 2050, "max_model_len": 5000,
        "max_num_batched_tokens": 2060, "num_groups": 2,
    }),
    EdgeCase("a row of 37 tokens where the host knows of 4", _BATCH | {"batch_size": 12}, _one_long_row),
    EdgeCase("positions in any order", _BATCH | {"prefills": 2, "prefill_len": 30}, _any_order),
    EdgeCase("A = capacity", _DFLASH | {"batch_size": 8, "max_num_batched_tokens": 32}),
    EdgeCase("tail of 1025", _BATCH | {"max_num_batched_tokens": 27 + 1025}),
    EdgeCase("tail of 9000", _BATCH | {"batch_size": 2, "max_num_batched_tokens": 9006}),
    EdgeCase("R = 1500, more drafts than tokens", _BATCH | {"max_num_seqs": 1500}),
    EdgeCase("B = 300", _SMALL | {"batch_size": 300, "max_decode_len": 2, "max_num_batched_tokens": 1300}),
    EdgeCase("block size 1", _BATCH | {"block_size": 1}),
    EdgeCase("a block starts behind the anchor", _BATCH | {"context_len": 31, "acceptance": 1}),
    EdgeCase("three groups of different blocks", _GROUPS),
    EdgeCase("five groups, masks alone", _DFLASH | {"num_groups": 5}),
    EdgeCase("past the model's range, inside the tables", _BATCH | _INSIDE),
    EdgeCase("past the model's range and the tables", _BATCH | _END),
    EdgeCase("past one table, inside another", _GROUPS | {
        "sample_from_anchor": "no", "next_n": 8, "max_model_len": 96, "context_len": {"uniform": [90, 96]},
    }),
    EdgeCase("contexts past the tables", _GROUPS, _past_the_tables),
    EdgeCase("blocks below a window", _GROUPS, _evicted),
    EdgeCase("a chunk that begins below a window", _BATCH | {"prefills": 2, "prefill_len": 40}, _evicted),
    EdgeCase("null blocks", _BATCH, _null_blocks),
    EdgeCase("token ids past 2^17, slots past 2^31", _BATCH, _large_ids),
    EdgeCase("CP = 2, rank 0", _CP | {"cp_size": 2}),
    EdgeCase("CP = 2, rank 1", _CP | {"cp_size": 2, "cp_rank": "last"}),
    EdgeCase("CP = 4, interleave 4", _CP | {"cp_size": 4, "cp_interleave": 4, "cp_rank": "last", "num_groups": 2}),
    EdgeCase("sampling state in pinned memory", _BATCH | {"memory": "uva"}),
]
# fmt: on

_CAPACITY = _SMALL | {"max_num_seqs": 24, "num_groups": 2}
_BIG, _LITTLE = _CAPACITY | {"batch_size": 20, "decode_len": "ragged"}, _CAPACITY | {"batch_size": 2}
_CHUNKS = _BIG | {"batch_size": 12, "prefills": 1, "prefill_len": 50}
SEQUENCES = {
    "big-small-big": (_BIG, _LITTLE, _BIG),
    "masks alone, big-small-big": tuple(step | {"sample_from_anchor": "no"} for step in (_BIG, _LITTLE, _BIG)),
    "chunk-decode-chunk": (_CHUNKS, _LITTLE, _CHUNKS),
}
