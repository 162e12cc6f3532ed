"""Steps that break implementations of mamba_align_step, and sequences of steps through the same buffers.

Edits change the contents of the generated Inputs (CPU tensors) in place; the steps stay legal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.mamba_align_step.operator import Inputs


def _fell_back(x: Inputs) -> None:
    """The previous step was scheduled into a later block than this one: its drafts were rejected."""
    x.state_columns_before[x.idx_mapping] += 2


def reused_slots(x: Inputs) -> None:
    """New requests took over the slots: no running state, count of 1."""
    x.state_columns_before[x.idx_mapping] = -1
    x.num_accepted_tokens_before[x.idx_mapping] = 1


def _reached(tokens: int, accepted: int = 1, column: int | None = None):
    """After sampling: every request has this many tokens, of which ``accepted`` are the step's."""

    def edit(x: Inputs) -> None:
        x.num_computed_tokens[x.idx_mapping] = tokens
        x.num_accepted_tokens_before[x.idx_mapping] = accepted
        if column is not None:
            x.state_columns_before[x.idx_mapping] = column

    return edit


_SMALL = {"mamba_block_size": 16, "max_model_len": 256, "context_len": {"uniform": [8, 256]}}
_BATCH = _SMALL | {"batch_size": 9, "max_num_seqs": 20, "acceptance": 0.5}
_BS1 = _BATCH | {"mamba_block_size": 1, "next_n": 6, "context_len": {"uniform": [6, 256]}}
_AFTER = _BATCH | {"phase": "after_sampling"}


def _zero_counts(x: Inputs) -> None:
    """Every second slot has a count of 0, as before a request's first step (vLLM #48475)."""
    x.num_accepted_tokens_before[::2] = 0


#: What the covering array changes in generated inputs.
CONTENTS = {"zero_counts": _zero_counts}

# fmt: off
EDGE_CASES = [
    EdgeCase("B = 1", _SMALL | {"batch_size": 1, "max_num_seqs": 5}),
    EdgeCase("every slot", _BATCH | {"batch_size": 20}),
    EdgeCase("BS = 1, k = 5: a block end with every token", _BS1),
    EdgeCase("BS larger than any request", _BATCH | {"mamba_block_size": 1024}),
    EdgeCase("nc = 0", _BATCH | {"context_len": 4}),
    EdgeCase("nc = BS - 1", _BATCH | {"context_len": 19}),
    EdgeCase("nc = BS", _BATCH | {"context_len": 20}),
    EdgeCase("nc = BS + 1", _BATCH | {"context_len": 21}),
    EdgeCase("the step ends with a block", _BATCH | {"context_len": 32}),
    EdgeCase("the step ends one past a block", _BATCH | {"context_len": 33}),
    EdgeCase("the last column", _BATCH | {"context_len": 256}),
    EdgeCase("all requests fresh", _BATCH | {"fresh": 1}),
    EdgeCase("half of them fresh", _BATCH | {"fresh": 0.5}),
    EdgeCase("slots reused by new requests", _BATCH, reused_slots),
    EdgeCase("fell back over a block's end", _BATCH, _fell_back),
    EdgeCase("all accepted", _BATCH | {"acceptance": 1}),
    EdgeCase("none accepted", _BATCH | {"acceptance": 0}),
    EdgeCase("a chunk of three blocks", _BATCH | {"prefills": 4, "prefill_len": 40}),
    EdgeCase("k = 0", _BATCH | {"next_n": 1}),
    EdgeCase("k = 7, ragged", _BATCH | {"next_n": 8, "decode_len": "ragged"}),
    EdgeCase("padding rows", _BATCH | {"padding": 0.4}),
    EdgeCase("only padding rows", _BATCH | {"padding": 1.0}),
    EdgeCase("2 groups", _BATCH | {"num_groups": 2}),
    EdgeCase("5 groups, padding rows", _BATCH | {"num_groups": 5, "padding": 0.3}),
    EdgeCase("B = 300, 3 groups", _SMALL | {"batch_size": 300, "num_groups": 3}),
    EdgeCase("after", _AFTER),
    EdgeCase("after, B = 1", _AFTER | {"batch_size": 1}),
    EdgeCase("after, BS = 1, k = 5", _BS1 | {"phase": "after_sampling"}),
    EdgeCase("after, BS larger than any request", _AFTER | {"mamba_block_size": 1024}),
    EdgeCase("after, all accepted", _AFTER | {"acceptance": 1}),
    EdgeCase("after, none accepted", _AFTER | {"acceptance": 0}),
    EdgeCase("after, chunks, some to a block's end", _AFTER | {
        "prefills": 5, "prefill_len": 32, "context_len": {"uniform": [32, 64]},
    }),
    EdgeCase("after, a block's end reached", _AFTER, _reached(32, 3)),
    EdgeCase("after, a block's end passed by one", _AFTER, _reached(33, 2)),
    EdgeCase("after, a block's end just not reached", _AFTER, _reached(31, 4)),
    EdgeCase("after, a block's end passed before the step", _AFTER, _reached(33, 1)),
    EdgeCase("after, frozen in place: no copy, count 1", _AFTER, _reached(32, 1, 1)),
    EdgeCase("after, shifted inside its slot", _AFTER, _reached(32, 3, 1)),
    EdgeCase("after, from the next column", _AFTER, _reached(34, 3, 2)),
    EdgeCase("after, padding rows", _AFTER | {"padding": 0.4}),
    EdgeCase("after, only padding rows", _AFTER | {"padding": 1.0}),
    EdgeCase("after, B = 300", _SMALL | {"batch_size": 300, "phase": "after_sampling"}),
]
# fmt: on

_CAPACITY = _SMALL | {"max_num_seqs": 24, "num_groups": 2}
_BIG, _LITTLE = _CAPACITY | {"batch_size": 20, "decode_len": "ragged"}, _CAPACITY | {"batch_size": 2}
SEQUENCES = {
    "big-small-padded-big": (_BIG, _LITTLE, _BIG | {"padding": 0.5}, _BIG),
    "after, big-small-padded-big": tuple(
        step | {"phase": "after_sampling", "num_groups": 1} for step in (_BIG, _LITTLE, _BIG | {"padding": 0.5}, _BIG)
    ),
}
