"""Edge cases of staged_writes, and sequences of steps through the same buffers.

An edit changes the contents of the inputs (CPU tensors) in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.staged_writes.operator import Inputs


def _lens(x: Inputs) -> torch.Tensor:
    return torch.diff(x.cu_lens, prepend=x.cu_lens.new_zeros(1))


def last_columns(x: Inputs) -> None:
    """Every write ends at the last column of its row."""
    x.write_starts.copy_(x.widths[x.group_ids.long()] - _lens(x))


def _first_columns(x: Inputs) -> None:
    x.write_starts.zero_()


def null_blocks(x: Inputs) -> None:
    """All ids are 0, as vLLM writes them while it warms up beside running requests."""
    x.contents.zero_()


def large_ids(x: Inputs) -> None:
    """Block ids past 2^24, which fp32 does not hold."""
    x.contents.add_(2**24)


#: What the covering array changes in generated inputs.
CONTENTS = {"last_columns": last_columns, "null_blocks": null_blocks, "large_ids": large_ids}

_TINY = {"block_size": 16, "max_model_len": 400, "context_len": {"uniform": [4, 400]}, "max_num_seqs": 20}
_BATCH = _TINY | {"batch_size": 9, "growth": 0.5}
_CHUNKS = _BATCH | {"prefills": 3, "prefill_len": 100}
_GROUPS = {"num_groups": 4, "group_blocks": "mixed"}

# fmt: off
EDGE_CASES = [
    EdgeCase("one block", _TINY | {"batch_size": 1}),
    EdgeCase("every request of every slot", _TINY | {"batch_size": 20, "growth": 1.0}),
    EdgeCase("some requests", _BATCH),
    EdgeCase("300 writes of a block", {"batch_size": 300, "growth": 1.0, "max_model_len": 4096}),
    EdgeCase("first columns", _BATCH, _first_columns),
    EdgeCase("last columns", _BATCH, last_columns),
    EdgeCase("chunks beside decodes", _CHUNKS),
    EdgeCase("chunks up to the last column", _CHUNKS, last_columns),
    EdgeCase("chunks alone", _CHUNKS | {"growth": 0.0}),
    EdgeCase("chunks of a block", _CHUNKS | {"prefill_len": 16}),
    EdgeCase("whole rows", _CHUNKS | {"prefill_len": 400}),
    EdgeCase("a row of 64 blocks and one more", _BATCH | {
        "block_size": 1, "prefills": 1, "prefill_len": 65,
    }),
    EdgeCase("a row of 2048 blocks and one more", {
        "batch_size": 3, "max_num_seqs": 5, "block_size": 1, "max_model_len": 2051, "prefills": 1, "prefill_len": 2049,
        "context_len": 2000,
    }),
    EdgeCase("a long row among 300", {  # more than the strips of its row take at a time
        "batch_size": 300, "growth": 1.0, "block_size": 1, "max_model_len": 8300, "prefills": 1, "prefill_len": 8192,
    }),
    EdgeCase("one column", _BATCH | {"block_size": 400}),
    EdgeCase("groups of one width", _CHUNKS | {"num_groups": 3}),
    EdgeCase("groups of different widths", _CHUNKS | _GROUPS),
    EdgeCase("groups, up to the last column", _CHUNKS | _GROUPS, last_columns),
    EdgeCase("null blocks", _CHUNKS | {"num_groups": 2}, null_blocks),
    EdgeCase("writes in host memory", _CHUNKS | _GROUPS | {"memory": "uva"}),
]
# fmt: on

_CAPACITY = _TINY | {"max_num_seqs": 24, "num_groups": 2}
_BIG, _SMALL = _CAPACITY | {"batch_size": 20, "growth": 1.0}, _CAPACITY | {"batch_size": 3}
SEQUENCES = {
    "big-small-big": (_BIG, _SMALL, _BIG),
    "prompts, then their decodes": (
        _CAPACITY | {"batch_size": 12, "growth": 0.3, "prefills": 4, "prefill_len": 200},
        _CAPACITY | {"batch_size": 12, "growth": 0.3},
        _CAPACITY | {"batch_size": 12, "growth": 0.3, "prefills": 4, "prefill_len": 200},
    ),
}
