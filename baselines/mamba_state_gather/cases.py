"""Batches that break implementations of mamba_state_gather, and sequences of steps through the same buffers.

Edits change the contents of the generated Inputs (CPU tensors) in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.mamba_state_gather.operator import Inputs


def _fell_back(x: Inputs) -> None:
    """The previous step was scheduled into the next block, then its drafts were rejected: it wrote one column on."""
    x.block_idx_last_scheduled_token_prev_step.copy_(x.block_idx_last_computed_token + 1)


def _all_padding(x: Inputs) -> None:
    for tensor in vars(x).values():
        tensor.zero_()


def _null_slots(x: Inputs) -> None:
    x.state_indices[::2] = 0


def _one_block_on(x: Inputs) -> None:
    """The windows overlap: each request writes one column after the one it reads."""
    x.block_idx_last_scheduled_token_prev_step.copy_(x.block_idx_last_scheduled_token - 1)


_BS16 = {"batch_size": 4, "mamba_block_size": 16, "max_model_len": 256, "num_layers": 2}
_BS1 = {"batch_size": 4, "mamba_block_size": 1, "max_model_len": 64, "num_speculative_blocks": 5, "num_layers": 2}
_ANY = {"context_len": {"uniform": [4, 256]}}

# fmt: off
EDGE_CASES = [
    EdgeCase("B=1", {"batch_size": 1, "num_layers": 2}),
    EdgeCase("40 layers", {"batch_size": 2}),
    EdgeCase("the last column", _BS16 | {"context_len": 256, "acceptance": 0.3}),
    EdgeCase("one token at the last column", _BS16 | {"max_decode_len": 1, "context_len": 256, "acceptance": 0.3}),
    EdgeCase("both windows the same", _BS16 | {"context_len": 28}),
    EdgeCase("windows overlap, one block on", _BS16 | {"context_len": 100}, _one_block_on),
    EdgeCase("the previous step crossed and fell back", _BS16 | {"context_len": 36}, _fell_back),
    EdgeCase("BS = 1, k = 5", _BS1 | {"context_len": {"uniform": [6, 64]}, "acceptance": 0.5}),
    EdgeCase("k = 1", {"batch_size": 5, "num_speculative_blocks": 1, "num_layers": 2}),
    EdgeCase("k = 31", {"batch_size": 3, "num_speculative_blocks": 31, "num_layers": 2}),
    EdgeCase("short step, L < 1 + k", _BS16 | {
        "batch_size": 6, "max_decode_len": 2, "context_len": 36, "acceptance": 0.4,
    }),
    EdgeCase("ragged", _BS16 | _ANY | {"batch_size": 9, "decode_len": "ragged", "acceptance": 0.4}),
    EdgeCase("padding rows", _BS16 | _ANY | {"batch_size": 7, "padding": 0.4}),
    EdgeCase("all rows padding", _BS16 | {"padding": 0.5, "context_len": 100}, _all_padding),
    EdgeCase("rows of NULL slots", _BS16 | {"context_len": 100}, _null_slots),
    EdgeCase("row stride > W", _BS16 | {"table_padding": 3, "context_len": 256}),
    EdgeCase("B = max_num_seqs", _BS16 | _ANY | {"batch_size": 33, "max_num_seqs": 33}),
]
# fmt: on

_CAPACITY = _ANY | {"max_num_seqs": 24, "mamba_block_size": 16, "max_model_len": 256, "num_layers": 2}
_BIG, _SMALL = _CAPACITY | {"batch_size": 20}, _CAPACITY | {"batch_size": 2}
SEQUENCES = {"big-small-big": (_BIG, _SMALL, _BIG), "big-padded-big": (_BIG, _BIG | {"padding": 0.5}, _BIG)}
