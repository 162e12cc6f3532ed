"""Steps that break implementations of draft_passes, and sequences of steps through the same buffers.

Edits change the contents of the generated Inputs (CPU tensors) in place; the steps stay legal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec_decode_bench.baselines.compute_slot_mappings.cases import first_disabled, null_blocks, some_disabled
from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.draft_passes.operator import Inputs


def _second_group_disabled(x: Inputs) -> None:
    x.enabled[1] = False


_SMALL = {
    "max_model_len": 600,
    "context_len": {"uniform": [8, 590]},  # no pass reaches the end but where the name says so
    "block_size": 16,
    "max_num_batched_tokens": 128,
    "num_sms": 7,
    "acceptance": 0.5,
}
_BATCH = _SMALL | {"batch_size": 6, "max_num_seqs": 12}
_INDEXER = _BATCH | {"indexer": "native"}
_END = {"max_model_len": 40, "context_len": {"uniform": [36, 40]}, "acceptance": 0.9}


#: What the covering array changes in generated inputs.
CONTENTS = {"some_disabled": some_disabled, "first_disabled": first_disabled}

# fmt: off
EDGE_CASES = [
    EdgeCase("B = 1", _SMALL | {"batch_size": 1, "max_num_seqs": 5}),
    EdgeCase("k = 2: one further pass", _BATCH | {"next_n": 3}),
    EdgeCase("k = 7", _BATCH | {"next_n": 8}),
    EdgeCase("every slot", _BATCH | {"batch_size": 12, "decode_len": "ragged"}),
    EdgeCase("all rejected", _BATCH | {"acceptance": 0}),
    EdgeCase("padding rows", _BATCH | {"padding": 0.4}),
    EdgeCase("chunks beside decodes", _BATCH | {"prefills": 3, "prefill_len": 20}),
    EdgeCase("end of the model's range", _BATCH | _END),
    EdgeCase("end of the model's range, k = 7", _BATCH | _END | {"next_n": 8, "context_len": {"uniform": [33, 40]}}),
    EdgeCase("positions stay", _BATCH | _END | {"advance": "no"}),
    EdgeCase("a row crosses into the next block", _BATCH | {"context_len": 31, "acceptance": 1}),
    EdgeCase("block size 1", _BATCH | {"block_size": 1}),
    EdgeCase("three groups, one of them not mapped", _BATCH | {
        "num_groups": 3, "group_blocks": "mixed",
    }, _second_group_disabled),
    EdgeCase("null blocks", _BATCH, null_blocks),
    EdgeCase("R = 1500", _BATCH | {"max_num_seqs": 1500, "max_model_len": 64, "context_len": {"uniform": [8, 60]}}),
    EdgeCase("CP = 2, last rank", _BATCH | {"cp_size": 2, "cp_rank": "last"}),
    EdgeCase("CP = 4, interleave 16, first rank, padding rows", _BATCH | {
        "cp_size": 4, "cp_interleave": 16, "padding": 0.4, "context_len": {"uniform": [8, 140]},
    }),
    EdgeCase("CP = 8, interleave 4, sharded and replicated groups, k = 7", _BATCH | {
        "cp_size": 8, "cp_interleave": 4, "cp_rank": "last", "num_groups": 3, "group_blocks": "mixed", "next_n": 8,
    }),
    EdgeCase("CP = 2, end of the model's range", _BATCH | _END | {"cp_size": 2, "cp_rank": "last"}),
    EdgeCase("indexer", _INDEXER),
    EdgeCase("indexer, B = 1", _INDEXER | {"batch_size": 1}),
    EdgeCase("indexer, padding rows, two groups", _INDEXER | {"padding": 0.4, "num_groups": 2}),
    EdgeCase("indexer, lengths pass a segment", _INDEXER | {"context_len": 255, "acceptance": 1, "next_n": 6}),
    EdgeCase("indexer, remainder at the back, positions stay", _INDEXER | {"remainder": "back", "advance": "no"}),
]
# fmt: on

_CAPACITY = _SMALL | {"max_num_seqs": 12}
_BIG, _LITTLE = _CAPACITY | {"batch_size": 12, "decode_len": "ragged"}, _CAPACITY | {"batch_size": 2}
_MANY = _SMALL | {"max_num_seqs": 260, "max_num_batched_tokens": 1040, "indexer": "native", "max_model_len": 300}
SEQUENCES = {
    "big-small-padded": (_BIG, _LITTLE, _BIG | {"padding": 0.5}),
    "indexer, big-small-padded": tuple(
        step | {"indexer": "native"} for step in (_BIG, _LITTLE, _BIG | {"padding": 0.5})
    ),
    "CP = 4, big-small-padded": tuple(
        step | {"cp_size": 4, "cp_rank": "last"} for step in (_BIG, _LITTLE, _BIG | {"padding": 0.5})
    ),
    "260-2 requests": tuple(_MANY | {"batch_size": size, "context_len": {"uniform": [8, 300]}} for size in (260, 2)),
}
