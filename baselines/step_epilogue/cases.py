"""Steps that break implementations of step_epilogue, and sequences of steps through the same buffers.

Parts have edge cases of their own; these are for what happens where parts meet. Edits change the contents of the
generated Inputs (CPU tensors) in place; the steps stay legal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec_decode_bench.baselines.post_update.cases import chunks, last_chunks
from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.step_epilogue.operator import Inputs


def _block_ends(x: Inputs) -> None:
    """Row by row the newest token is one further behind a block of 16: frozen before, at and behind its end."""
    real = x.idx_mapping >= 0
    idx_mapping = x.idx_mapping[real]
    query = torch.diff(x.query_start_loc[: len(idx_mapping) + 1])
    rejected = torch.diff(x.cu_num_logits)[real] - x.num_sampled[real]
    x.num_computed_tokens[idx_mapping] = (30 + torch.arange(len(idx_mapping)) - query + rejected).int()
    x.state_columns_before[idx_mapping] = torch.arange(len(idx_mapping), dtype=torch.int32) % 3


_SMALL = {
    "max_model_len": 200,
    "context_len": {"uniform": [8, 200]},
    "history_len": 40,
    "vocab_size": 50,
    "max_num_batched_tokens": 96,
    "prefill_len": 20,
    "acceptance": 0.5,
}
_BATCH = _SMALL | {"batch_size": 7, "max_num_seqs": 12}
_STATES = _BATCH | {"states": "yes", "mamba_block_size": 16}

# fmt: off
EDGE_CASES = [
    EdgeCase("B = 1, one token", _SMALL | {"batch_size": 1, "max_num_seqs": 5, "max_decode_len": 1}),
    EdgeCase("every slot, ragged", _BATCH | {"batch_size": 12, "decode_len": "ragged"}),
    EdgeCase("no drafts", _BATCH | {"next_n": 1}),
    EdgeCase("k = 7", _BATCH | {"next_n": 8, "acceptance": 0.8}),
    EdgeCase("all rejected", _BATCH | {"acceptance": 0}),
    EdgeCase("padding rows", _BATCH | {"padding": 0.4}),
    EdgeCase("chunks beside decodes", _BATCH | {"prefills": 3}),
    EdgeCase("all rows chunks", _STATES | {"batch_size": 3, "prefills": 3}, chunks),
    EdgeCase("all rows last chunks", _BATCH | {"batch_size": 3, "prefills": 3}, last_chunks),
    EdgeCase("a row of 1100 tokens", {
        "batch_size": 2, "max_num_seqs": 3, "prefills": 1, "prefill_len": 1100, "max_model_len": 1200,
        "context_len": 1150, "max_num_batched_tokens": 1110, "history_len": 8,
    }),
    EdgeCase("R = B + 1536", _BATCH | {"batch_size": 3, "max_num_seqs": 1539}),
    EdgeCase("penalties, host memory", _STATES | {"penalties": "on", "memory": "uva", "prefills": 2}),
    EdgeCase("states", _STATES),
    EdgeCase("states, all accepted, padding rows", _STATES | {"acceptance": 1, "padding": 0.4}),
    EdgeCase("states around a block's end", _STATES | {"batch_size": 12}, _block_ends),
    EdgeCase("states, a block's end with every token, k = 5", _STATES | {"mamba_block_size": 1, "next_n": 6}),
]
# fmt: on

_CAPACITY = _SMALL | {"max_num_seqs": 12}
_BIG, _LITTLE = _CAPACITY | {"batch_size": 12, "decode_len": "ragged"}, _CAPACITY | {"batch_size": 2}
_MANY = _SMALL | {"max_num_seqs": 260, "next_n": 2, "max_num_batched_tokens": 520}
SEQUENCES = {
    "big-small-padded": (_BIG, _LITTLE, _BIG | {"padding": 0.5}),
    "states, big-small-padded": tuple(
        step | {"states": "yes", "mamba_block_size": 16} for step in (_BIG, _LITTLE, _BIG | {"padding": 0.5})
    ),
    # A large batch as a sequence, whose steps are launched once: interpreting so many rows takes seconds.
    "260-2 requests": tuple(_MANY | {"batch_size": size} for size in (260, 2)),
}
