"""Batches that break implementations of mamba_state_copy, and sequences of steps through the same pools.

Edits change the contents of the generated Inputs (CPU tensors) in place. In almost all points a
block has 16 tokens and every request crosses a block boundary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING

import torch

from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.mamba_state_copy.operator import Inputs

_BS = 16


def _synced(edit: Callable[[Inputs], None]) -> Callable[[Inputs], None]:
    """The edit, followed by an update of the host's copies."""

    @wraps(edit)
    def edit_and_sync(x: Inputs) -> None:
        edit(x)
        x.sync_host_copies()

    return edit_and_sync


@_synced
def _unknown_columns(x: Inputs) -> None:
    """New and resumed requests: nothing stored, nothing accepted."""
    x.state_columns.fill_(-1)
    x.num_accepted_tokens.fill_(1)


@_synced
def _first_step(x: Inputs) -> None:
    """nc = 0: there is no state to move."""
    x.seq_lens.copy_(x.query_start_loc[1:] - x.query_start_loc[:-1])
    _unknown_columns(x)


@_synced
def _all_accepted_at_the_end_of_a_block(x: Inputs) -> None:
    """The step ends where its block ends: source and destination are one slot, and the shift is inside it."""
    x.seq_lens.copy_(x.seq_lens // _BS * _BS)
    x.state_columns.copy_(x.seq_lens // _BS - 1)
    x.num_accepted_tokens.copy_(x.query_start_loc[1:] - x.query_start_loc[:-1])


@_synced
def _prompt_chunk(x: Inputs) -> None:
    """A prompt chunk that ends where its block ends: no drafts, and its state is in place already."""
    _all_accepted_at_the_end_of_a_block(x)
    x.num_draft_tokens.zero_()
    x.num_accepted_tokens.fill_(1)


@_synced
def _source_is_target(x: Inputs) -> None:
    """The accepted SSM state is in its destination slot already; the convolution still moves."""
    x.num_accepted_tokens.fill_(2)
    x.state_columns.copy_((x.seq_lens - 1) // _BS - 1)


@_synced
def _back_one_block(x: Inputs) -> None:
    """The previous step was scheduled into the next block, all its drafts were rejected, and this step is short."""
    x.seq_lens.copy_(x.seq_lens // _BS * _BS)
    x.state_columns.copy_(x.seq_lens // _BS)
    x.num_accepted_tokens.fill_(1)


@_synced
def _all_padding(x: Inputs) -> None:
    for tensor in (x.seq_lens, x.query_start_loc, x.num_draft_tokens, x.block_table):
        tensor.zero_()
    x.num_accepted_tokens.fill_(1)
    x.state_columns.fill_(-1)


@_synced
def stale_padding_rows(x: Inputs) -> None:
    """Padding rows still hold the values of an earlier step's real requests, except that their length is 0."""
    padding = int((x.seq_lens == 0).sum())
    real = len(x.seq_lens) - padding
    for tensor in (x.num_accepted_tokens, x.state_columns, x.num_draft_tokens, x.block_table):
        tensor[real:] = tensor[torch.arange(padding) % max(real, 1)]


@_synced
def _slots_without_state(x: Inputs) -> None:
    """New requests: nothing moves, and their column becomes known."""
    slots = x.idx_mapping[x.idx_mapping >= 0]
    x.state_columns[slots], x.num_accepted_tokens[slots] = -1, 1


@_synced
def _others_would_cross(x: Inputs) -> None:
    """Slots that no row has hold what would cross."""
    other = torch.ones(len(x.num_computed_tokens), dtype=torch.bool)
    other[x.idx_mapping[x.idx_mapping >= 0]] = False
    x.num_computed_tokens[other], x.state_columns[other], x.num_accepted_tokens[other] = 2 * _BS, 0, 1


@_synced
def _last_slot_crosses(x: Inputs) -> None:
    """The slot that -1 would wrap around to holds a state that a move would find."""
    last, spare = len(x.num_computed_tokens) - 1, int(x.block_table.max())
    if not bool((x.idx_mapping == last).any()):
        x.num_computed_tokens[last], x.state_columns[last], x.num_accepted_tokens[last] = 2 * _BS, 0, 1
        x.block_table[:, last, :4] = spare - torch.arange(4)


@_synced
def _accepted_to_the_end_of_a_block(x: Inputs) -> None:
    """All tokens of the step were accepted, and it ends where its block ends: the shift is inside the running slot."""
    slots = x.idx_mapping[x.idx_mapping >= 0]
    tokens = torch.diff(x.query_start_loc)[x.idx_mapping >= 0]
    x.num_computed_tokens[slots] = x.state_columns[slots] * _BS + _BS
    x.num_accepted_tokens[slots] = tokens


_SMALL = {
    "batch_size": 3,
    "mamba_block_size": _BS,
    "max_model_len": 256,
    "context_len": {"uniform": [4, 256]},
    "crossing": 1.0,
    "num_layers": 2,
    "ssm_state_bytes": 64,
    "conv_dim": 8,
    "max_num_seqs": 16,
}
_AFTER_PHASE = {"phase": "after_sampling"}
_BY_SLOT = _SMALL | {"state": "slots", "num_layers": 4, "num_groups": 2}
_AFTER, _DS = _SMALL | {"phase": "after_sampling"}, {"conv_layout": "DS"}
_BS1 = {"mamba_block_size": 1, "max_model_len": 64, "context_len": {"uniform": [6, 50]}, "num_speculative_blocks": 5}
_HALF_PADDING = {"batch_size": 6, "padding": 0.5}
_ODD = {"ssm_state_bytes": 4 * 4099, "num_layers": 1, "batch_size": 2}

# fmt: off
EDGE_CASES = [
    EdgeCase("all requests cross", _SMALL),
    EdgeCase("all requests cross, DS", _SMALL | _DS),
    EdgeCase("B=1", _SMALL | {"batch_size": 1}),
    EdgeCase("row stride > W", _SMALL | {"table_padding": 3}),
    EdgeCase("no request crosses", _SMALL | {"crossing": 0.0}),
    EdgeCase("one of many crosses", _SMALL | {"batch_size": 16, "crossing": 0.06}),
    EdgeCase("more requests than threads", _SMALL | {
        "batch_size": 300, "crossing": 0.02, "num_layers": 1, "max_num_seqs": 300,
    }),
    EdgeCase("everything accepted", _SMALL | {"acceptance": 1.0}),
    EdgeCase("nothing accepted: shift 0", _SMALL | {"acceptance": 0.0}),
    EdgeCase("one token crosses", _SMALL | {"max_decode_len": 1}),
    EdgeCase("prompt of 3, BS = 4, k = 2", _SMALL | {
        "mamba_block_size": 4, "num_speculative_blocks": 2, "context_len": 6,
    }),
    EdgeCase("nothing stored", _SMALL, _unknown_columns),
    EdgeCase("nc = 0", _SMALL, _first_step),
    EdgeCase("the SSM state is in place already", _SMALL, _source_is_target),
    EdgeCase("back to an earlier block", _SMALL | {"max_decode_len": 1}, _back_one_block),
    EdgeCase("padding rows", _SMALL | {"batch_size": 5, "padding": 0.4}),
    EdgeCase("padding rows hold stale inputs", _SMALL | _HALF_PADDING, stale_padding_rows),
    EdgeCase("padding rows hold stale inputs, BS = 1", _SMALL | _BS1 | _HALF_PADDING, stale_padding_rows),
    EdgeCase("hundreds of padding rows hold stale inputs", _SMALL | {
        "batch_size": 600, "padding": 0.5, "crossing": 0.1, "num_layers": 1, "max_num_seqs": 600,
    }, stale_padding_rows),
    EdgeCase("all rows padding", _SMALL, _all_padding),
    EdgeCase("BS = 1, k = 5", _SMALL | _BS1),
    EdgeCase("k = 1", _SMALL | {"num_speculative_blocks": 1}),
    EdgeCase("k = 9: 12 columns", _SMALL | {"num_speculative_blocks": 9, "acceptance": 0.9}),
    EdgeCase("k = 9, DS", _SMALL | _DS | {"num_speculative_blocks": 9, "acceptance": 0.9}),
    EdgeCase("state of one word", _SMALL | {"ssm_state_bytes": 4, "conv_dim": 1}),
    EdgeCase("state of one word, sixteen bytes of channels", _SMALL | {"ssm_state_bytes": 4}),
    EdgeCase("odd sizes", _SMALL | _ODD | {"conv_dim": 2051}),
    EdgeCase("odd sizes, DS", _SMALL | _DS | _ODD | {"conv_dim": 517}),
    EdgeCase("several strips", _SMALL | {
        "ssm_state_bytes": 3 << 14, "conv_dim": 4096, "num_layers": 1, "batch_size": 2,
    }),
    EdgeCase("a state shared by two blocks", _SMALL | {"ssm_state_bytes": 12288, "num_layers": 1, "batch_size": 2}),
    EdgeCase("last block of max_model_len", _SMALL | {"context_len": 256}),
    EdgeCase("after sampling", _AFTER),
    EdgeCase("after sampling, DS", _AFTER | _DS),
    EdgeCase("after sampling, no request crosses", _AFTER | {"crossing": 0.0}),
    EdgeCase("after sampling, shift inside a slot, k = 1", _AFTER | {
        "num_speculative_blocks": 1,
    }, _all_accepted_at_the_end_of_a_block),
    EdgeCase("after sampling, shift inside a slot, k = 2", _AFTER | {
        "num_speculative_blocks": 2,
    }, _all_accepted_at_the_end_of_a_block),
    EdgeCase("after sampling, shift inside a slot, short step, DS", _AFTER | _DS | {
        "num_speculative_blocks": 5, "max_decode_len": 3,
    }, _all_accepted_at_the_end_of_a_block),
    EdgeCase("after sampling, prompt chunk", _AFTER, _prompt_chunk),
    EdgeCase("after sampling, nothing accepted", _AFTER | {"acceptance": 0.0}),
    EdgeCase("after sampling, BS = 1, k = 5", _AFTER | _BS1),
    EdgeCase("after sampling, padding rows, ragged", _AFTER | {
        "batch_size": 6, "padding": 0.3, "decode_len": "ragged",
    }),
    EdgeCase("after sampling, padding rows hold stale inputs", _AFTER | _HALF_PADDING, stale_padding_rows),
    EdgeCase(
        "after sampling, padding rows hold stale inputs, BS = 1", _AFTER | _BS1 | _HALF_PADDING, stale_padding_rows
    ),
    EdgeCase("after sampling, all rows padding", _AFTER, _all_padding),
    EdgeCase("by slot", _BY_SLOT),
    EdgeCase("by slot, rows without a request", _BY_SLOT | _HALF_PADDING, _last_slot_crosses),
    EdgeCase("by slot, DS, row stride > W, k = 9", _BY_SLOT | _DS | {"table_padding": 3, "num_speculative_blocks": 9}),
    EdgeCase("by slot, no state yet", _BY_SLOT, _slots_without_state),
    EdgeCase("by slot, slots of former owners", _BY_SLOT | {"batch_size": 5, "crossing": 0.4}, _others_would_cross),
    EdgeCase("by slot, more requests than threads, every slot used", _BY_SLOT | {
        "batch_size": 300, "crossing": 0.02, "max_num_seqs": 300,
    }),
    EdgeCase("by slot, BS = 1, k = 5", _BY_SLOT | _BS1),
    EdgeCase("by slot, one layer a group, odd sizes", _BY_SLOT | _ODD | {
        "num_layers": 3, "num_groups": 3, "conv_dim": 517,
    }),
    EdgeCase("by slot, state of one word, sixteen bytes of channels", _BY_SLOT | {"ssm_state_bytes": 4}),
    EdgeCase("by slot, after sampling", _BY_SLOT | _AFTER_PHASE),
    EdgeCase("by slot, after sampling, BS = 128", _BY_SLOT | _AFTER_PHASE | {
        "mamba_block_size": 128, "max_model_len": 2048, "context_len": {"uniform": [200, 2048]},
    }),
    EdgeCase("by slot, after sampling, rows without a request, ragged", _BY_SLOT | _AFTER_PHASE | _HALF_PADDING | {
        "decode_len": "ragged",
    }, _last_slot_crosses),
    EdgeCase("by slot, after sampling, no request crosses, DS", _BY_SLOT | _AFTER_PHASE | _DS | {"crossing": 0.0}),
    EdgeCase("by slot, after sampling, shift inside a slot", _BY_SLOT | _AFTER_PHASE, _accepted_to_the_end_of_a_block),
    EdgeCase("by slot, after sampling, BS = 1, k = 5", _BY_SLOT | _AFTER_PHASE | _BS1),
]
# fmt: on

# Half of the requests cross: those who do have an accepted count of 1 for every seed, so if all did, a graph that kept
# the counts of its capture would pass.
_HALF = {"max_num_seqs": 12, "crossing": 0.5, "acceptance": 0.6}
_BIG, _LITTLE = _HALF | {"batch_size": 9}, _HALF | {"batch_size": 4}
SEQUENCES = {
    "big-small-big": tuple(_SMALL | size for size in (_BIG, _LITTLE, _BIG)),
    "after sampling, big-small-big": tuple(_AFTER | size for size in (_BIG, _LITTLE, _BIG)),
    "by slot, big-small-padded": tuple(_BY_SLOT | size for size in (_BIG, _LITTLE, _BIG | {"padding": 0.5})),
    "by slot, after sampling, big-small-padded": tuple(
        _BY_SLOT | _AFTER_PHASE | size for size in (_BIG, _LITTLE, _BIG | {"padding": 0.5})
    ),
    "big-idle-big": tuple(_SMALL | _BIG | crossing for crossing in ({}, {"crossing": 0.0}, {"padding": 0.5})),
}
