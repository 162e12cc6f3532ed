"""Steps that break implementations of step_prologue, and sequences of steps through the same buffers.

Parts have edge cases of their own; these are for what happens where parts meet. Edits change the contents of the
generated Inputs (CPU tensors) in place; the steps stay legal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec_decode_bench.baselines.mamba_align_step.cases import reused_slots
from spec_decode_bench.baselines.step_inputs.cases import prompts_end_anywhere
from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.step_prologue.operator import Inputs


def _one_long_row(x: Inputs) -> None:
    """The longest request among short ones: the schedules cut it."""
    idx_mapping = x.idx_mapping[x.idx_mapping >= 0]
    longest = idx_mapping[x.num_computed_tokens[idx_mapping].argmax()]
    others = idx_mapping[idx_mapping != longest]
    x.num_computed_tokens[others] = x.num_computed_tokens[others].clamp(max=40)
    x.prompt_lens_device[idx_mapping] = x.prompt_lens_device[idx_mapping].clamp(max=4)


_SMALL = {
    "max_model_len": 512,
    "history_len": 530,
    "block_size": 16,
    "context_len": {"uniform": [8, 512]},
    "max_num_batched_tokens": 64,
    "prefill_len": 20,
    "num_sms": 7,
    "num_heads_q": 32,
}
_BATCH = _SMALL | {"batch_size": 6, "max_num_seqs": 12}
_STATES = _BATCH | {"num_groups": 4, "state_groups": 3, "mamba_block_size": 40, "acceptance": 0.5}
_FLAT, _NATIVE = _BATCH | {"indexer": "flatten"}, _BATCH | {"indexer": "native"}

# fmt: off
EDGE_CASES = [
    EdgeCase("B = 1, one token", _SMALL | {"batch_size": 1, "max_num_seqs": 5, "max_decode_len": 1}),
    EdgeCase("padding rows, more rows before", _BATCH | {"padding": 0.4, "dirty": 11, "decode_len": "ragged"}),
    EdgeCase("chunks beside decodes", _BATCH | {"prefills": 2, "look_ahead": 2}),
    EdgeCase("prompts end anywhere, rows not aligned", _BATCH | {
        "batch_size": 12, "prompt_rows": "some", "padding": 0.2, "max_model_len": 470, "context_len": 450,
    }, prompts_end_anywhere),
    EdgeCase("three groups, one with a window", _BATCH | {
        "num_groups": 3, "group_blocks": "mixed", "window": 31, "padding": 0.3,
    }),
    EdgeCase("host memory", _BATCH | {"memory": "uva", "prefills": 2, "padding": 0.2, "num_groups": 2}),
    EdgeCase("tails of 512 n + 1", _BATCH | {
        "batch_size": 2, "max_num_batched_tokens": 2049, "max_num_seqs": 1539, "max_model_len": 40,
        "history_len": 40, "context_len": 40,
    }),
    EdgeCase("states, padding rows", _STATES | {"padding": 0.4}),
    EdgeCase("states, slots reused", _STATES, reused_slots),
    EdgeCase("states, a chunk of several blocks, k = 6", _STATES | {
        "next_n": 7, "prefills": 1, "prefill_len": 100, "max_num_batched_tokens": 150,
    }),
    EdgeCase("flatten, B = 1", _FLAT | {"batch_size": 1}),
    EdgeCase("flatten, padding rows and tokens", _FLAT | {"padding": 0.4, "token_padding": 16}),
    EdgeCase("flatten, ragged, one long row, rows not aligned", _FLAT | {
        "decode_len": "ragged", "padding": 0.2, "max_model_len": 470, "context_len": 450,
        "max_num_batched_tokens": 67,
    }, _one_long_row),
    EdgeCase("native, L < next_n", _NATIVE | {"max_decode_len": 3, "padding": 0.3}),
    EdgeCase("native, rows of 8", _NATIVE | {"next_n": 8}),
    EdgeCase("native beside states, ragged", _STATES | {"indexer": "native", "decode_len": "ragged", "padding": 0.2}),
]
# fmt: on

_CAPACITY = _SMALL | {"max_num_seqs": 12}


def _steps(**axes) -> tuple[dict, ...]:
    big = _CAPACITY | axes | {"batch_size": 10, "decode_len": "ragged", "dirty": 0}
    return big, _CAPACITY | axes | {"batch_size": 2, "dirty": 10}, big | {"padding": 0.5, "dirty": 2}


_LARGE = _SMALL | {
    "max_model_len": 128,
    "history_len": 140,
    "context_len": {"uniform": [2, 128]},
    "max_num_batched_tokens": 520,
}
SEQUENCES = {
    "big-small-padded": _steps(num_groups=2, window=31),
    "states, big-small-padded": _steps(num_groups=3, state_groups=2, mamba_block_size=48),
    "flatten, big-small-padded": _steps(indexer="flatten"),
    "native, big-small-padded": _steps(indexer="native"),
    # A large batch as a sequence, whose steps are launched once: interpreting so many rows takes seconds.
    "257-2 requests": tuple(
        _LARGE | {"batch_size": b, "max_num_seqs": 257, "next_n": 2, "indexer": "native", "dirty": 0} for b in (257, 2)
    ),
}
