"""Steps that break implementations of post_update, and sequences of steps through the same buffers.

Edits change the contents of the generated Inputs (CPU tensors) in place; the steps stay legal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec_decode_bench.baselines.workloads.request_slots import UNUSED
from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.post_update.operator import Inputs


_HISTORY = 64


def _filtered(x: Inputs) -> None:
    """Rows between others belong to another pipeline rank."""
    x.idx_mapping[1::2] = -1


def _all_filtered(x: Inputs) -> None:
    x.idx_mapping.fill_(-1)


def chunks(x: Inputs) -> None:
    """Every request is in the middle of its prompt."""
    x.prompt_lens[x.idx_mapping] = x.seq_lens + 1


def last_chunks(x: Inputs) -> None:
    x.prompt_lens[x.idx_mapping] = x.seq_lens


def _one_token_repeated(x: Inputs) -> None:
    """Every row produced one token several times: the last id of the vocabulary."""
    last = x.output_bin_counts.shape[1] - 1
    for b, count in enumerate(x.num_sampled.tolist()):
        x.sampled_tokens[b, :count] = last


def _first_id(x: Inputs) -> None:
    for b, count in enumerate(x.num_sampled.tolist()):
        x.sampled_tokens[b, :count] = torch.arange(count) % 2


def _history_ends(x: Inputs) -> None:
    """The step's tokens are the last ones that the history holds."""
    x.total_len[x.idx_mapping] = _HISTORY - x.num_sampled


def _history_begins(x: Inputs) -> None:
    x.total_len[x.idx_mapping] = 0


_SMALL = {"max_model_len": 900, "context_len": {"uniform": [8, 900]}, "history_len": _HISTORY, "vocab_size": 50}
_BATCH = _SMALL | {"batch_size": 9, "max_num_seqs": 20, "acceptance": 0.5}
_BINS = _BATCH | {"penalties": "on"}
_LONG = {"batch_size": 1, "max_num_seqs": 1, "history_len": 2**20 + 64}


def _zeros(x: Inputs) -> None:
    """Every token is id 0."""
    for b, count in enumerate(x.num_sampled.tolist()):
        x.sampled_tokens[b, :count] = 0


def _prompts_end_anywhere(x: Inputs) -> None:
    """Row by row one token later, from one token before the step's end on."""
    real = x.idx_mapping >= 0
    ends = x.seq_lens[: len(real)] - 1 + torch.arange(len(real), dtype=torch.int32) % 4
    x.prompt_lens[x.idx_mapping[real]] = ends[real].clamp(min=1)


def _past_2_20(x: Inputs) -> None:
    """The new tokens come behind 2^20 others."""
    x.total_len[x.idx_mapping] = 2**20 + 3


def _no_token(x: Inputs) -> None:
    """The sampler produced no token for every third request."""
    x.num_sampled[::3] = 0
    x.sampled_tokens[::3] = UNUSED


#: What the covering array changes in generated inputs.
CONTENTS = {"zeros": _zeros, "prompts_end_anywhere": _prompts_end_anywhere, "no_token": _no_token}

# fmt: off
EDGE_CASES = [
    EdgeCase("B = 1, slot not 0", _SMALL | {"batch_size": 1, "max_num_seqs": 5}),
    EdgeCase("every slot", _BATCH | {"batch_size": 20}),
    EdgeCase("a history of more than 2^20 tokens", _SMALL | _LONG, _past_2_20),
    EdgeCase("all accepted", _BATCH | {"acceptance": 1}),
    EdgeCase("all rejected", _BATCH | {"acceptance": 0}),
    EdgeCase("all rows chunks", _BATCH, chunks),
    EdgeCase("all rows last chunks", _BATCH, last_chunks),
    EdgeCase("chunks beside decodes", _BATCH | {"prefills": 4, "prefill_len": 33}),
    EdgeCase("fewer drafts than k, and none", _BATCH | {"decode_len": "ragged"}),
    EdgeCase("k = 1", _BATCH | {"next_n": 2}),
    EdgeCase("no drafts", _BATCH | {"next_n": 1}),
    EdgeCase("k = 7", _BATCH | {"next_n": 8, "acceptance": 0.8}),
    EdgeCase("k = 1, prompts end anywhere", _BATCH | {"next_n": 2}, _prompts_end_anywhere),
    EdgeCase("k = 2, prompts end anywhere", _BATCH | {"next_n": 3}, _prompts_end_anywhere),
    EdgeCase("k = 40, rows longer than a warp", _SMALL | {
        "batch_size": 3, "max_num_seqs": 5, "next_n": 41, "acceptance": 1, "penalties": "on",
    }),
    EdgeCase("filtered rows between others", _BATCH, _filtered),
    EdgeCase("every row filtered", _BINS | {"new_drafts": "yes"}, _all_filtered),
    EdgeCase("padding rows", _BINS | {"padding": 0.4}),
    EdgeCase("an idle rank", _BATCH | {"padding": 1.0}),
    EdgeCase("penalties", _BINS),
    EdgeCase("penalties, the last id repeated", _BINS | {"acceptance": 0.9}, _one_token_repeated),
    EdgeCase("penalties, two ids alternate", _BINS | {"acceptance": 0.9, "next_n": 7}, _first_id),
    EdgeCase("penalties, chunks beside decodes", _BINS | {"prefills": 4, "prefill_len": 5}),
    EdgeCase("penalties, all rows chunks", _BINS, chunks),
    EdgeCase("one token id", _BINS | {"vocab_size": 1}),
    EdgeCase("drafts arrive with the tokens", _BATCH | {"new_drafts": "yes"}),
    EdgeCase("drafts arrive, rows filtered", _BATCH | {"new_drafts": "yes"}, _filtered),
    EdgeCase("history fills up", _BATCH, _history_ends),
    EdgeCase("history begins", _BATCH, _history_begins),
    EdgeCase("host memory", _BINS | {"memory": "uva", "prefills": 3, "prefill_len": 20}),
    EdgeCase("B = 257", _SMALL | {"batch_size": 257, "decode_len": "mixed"}),
]
# fmt: on

_CAPACITY = _SMALL | {"max_num_seqs": 24}
_BIG, _LITTLE = _CAPACITY | {"batch_size": 20, "decode_len": "ragged"}, _CAPACITY | {"batch_size": 2}
SEQUENCES = {
    "big-small-big": (_BIG, _LITTLE, _BIG),
    "penalties, big-chunks-padded-big": tuple(
        step | {"penalties": "on"}
        for step in (_BIG, _BIG | {"prefills": 9, "prefill_len": 7}, _BIG | {"padding": 0.6}, _BIG)
    ),
}
