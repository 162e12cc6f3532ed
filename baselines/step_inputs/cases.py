"""Steps that break implementations of step_inputs, and sequences of steps through the same buffers.

Edits change the contents of the generated Inputs (CPU tensors) in place; the steps stay legal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec_decode_bench.harness.contract import EdgeCase

if TYPE_CHECKING:
    from spec_decode_bench.baselines.step_inputs.operator import Inputs


def _lengths(x: Inputs, slots: torch.Tensor) -> torch.Tensor:
    """After the step, of the first rows, whose slots these are."""
    return x.num_computed_tokens[slots] + torch.diff(x.query_start_loc[: len(slots) + 1])


def _prompt_ends(ahead: int):
    """Every prompt ends this many tokens after the step; before its end where negative."""

    def edit(x: Inputs) -> None:
        x.prompt_lens[x.idx_mapping] = (_lengths(x, x.idx_mapping) + ahead).clamp(min=1)

    return edit


def prompts_end_anywhere(x: Inputs) -> None:
    """Row by row one token later, from four tokens before the step's end to some after it."""
    slots = x.idx_mapping[x.idx_mapping >= 0]
    x.prompt_lens[slots] = (_lengths(x, slots) - 4 + torch.arange(len(slots), dtype=torch.int32)).clamp(min=1)


def _placeholders(x: Inputs) -> None:
    """One prompt token with drafts that nobody proposed: a padded first step."""
    _prompt_ends(-3)(x)
    x.draft_tokens[x.idx_mapping] = -1


def _from_the_start(x: Inputs) -> None:
    x.num_computed_tokens[x.idx_mapping] = 0
    x.prompt_lens[x.idx_mapping] = _lengths(x, x.idx_mapping)


def _long_decodes(x: Inputs) -> None:
    """The rows of 20 tokens are no prompts any more: one logit row each, and only that token is written."""
    x.prompt_lens[x.idx_mapping] = x.num_computed_tokens[x.idx_mapping].clamp(min=0)


_SMALL = {
    "max_model_len": 200,
    "history_len": 220,
    "context_len": {"uniform": [8, 200]},
    "max_num_batched_tokens": 128,
    "prefill_len": 20,
}
_BATCH = _SMALL | {"batch_size": 9, "max_num_seqs": 20}
_PROMPT = _BATCH | {"prompt_rows": "some"}


def _zeros(x: Inputs) -> None:
    """Every new token and every draft is id 0."""
    x.last_sampled_tokens.zero_()
    x.draft_tokens.zero_()


def _prompts_end_in_steps(x: Inputs) -> None:
    """Row by row one token later, around the end of the step, of the rows that the history has room for."""
    slots = x.idx_mapping
    lens = _lengths(x, slots)
    ends = (lens - 3 + torch.arange(len(lens), dtype=torch.int32) % 6).clamp(min=1)
    x.prompt_lens[slots] = torch.where(
        torch.maximum(lens, ends) < x.all_token_ids.shape[1] - 9, ends, x.prompt_lens[slots]
    )


def _large_ids(x: Inputs) -> None:
    """Token ids past 2^17, as in a vocabulary of 262,144 (Gemma)."""
    for tokens in (x.last_sampled_tokens, x.draft_tokens, x.all_token_ids):
        tokens += 2**17


def _slots_in_order(x: Inputs) -> None:
    """The requests have the first slots, in the order of the rows."""
    slots, first = x.idx_mapping.clone(), torch.arange(len(x.idx_mapping))
    for state in (x.num_computed_tokens, x.prompt_lens):
        state[first] = state[slots].clone()
    x.idx_mapping.copy_(first)


#: What the covering array changes in generated inputs.
CONTENTS = {
    "zeros": _zeros,
    "prompts_end_anywhere": _prompts_end_in_steps,
    "large_ids": _large_ids,
    "slots_in_order": _slots_in_order,
}

# fmt: off
EDGE_CASES = [
    EdgeCase("B = 1", _SMALL | {"batch_size": 1, "max_num_seqs": 5}),
    EdgeCase("B = 1, one token", _SMALL | {"batch_size": 1, "max_num_seqs": 5, "max_decode_len": 1}),
    EdgeCase("every slot", _BATCH | {"batch_size": 20}),
    EdgeCase("no drafts at all", _BATCH | {"next_n": 1}),
    EdgeCase("k = 7, fewer drafts", _BATCH | {"next_n": 8, "decode_len": "ragged"}),
    EdgeCase("10 % without drafts", _BATCH | {"batch_size": 20, "decode_len": "mixed"}),
    EdgeCase("A = capacity", _BATCH | {"batch_size": 8, "max_num_batched_tokens": 32}),
    EdgeCase("chunks beside decodes", _BATCH | {"prefills": 4}),
    EdgeCase("a chunk past 2^20 tokens", _SMALL | {
        "batch_size": 1, "max_num_seqs": 1, "prefills": 1, "max_model_len": 2**21, "context_len": 2**20 + 40,
        "history_len": 2**20 + 64,
    }),
    EdgeCase("chunks only, middle of their prompts", _BATCH | {"batch_size": 5, "prefills": 5}, _prompt_ends(9)),
    EdgeCase("the last chunk ends with the prompt", _BATCH | {"batch_size": 5, "prefills": 5}, _prompt_ends(0)),
    EdgeCase("prompts end anywhere in decodes", _PROMPT, prompts_end_anywhere),
    EdgeCase("prompts end anywhere, k = 7", _PROMPT | {"next_n": 8, "batch_size": 12}, prompts_end_anywhere),
    EdgeCase("prompts end one token before the step's end", _PROMPT, _prompt_ends(-1)),
    EdgeCase("one prompt token and placeholders", _PROMPT, _placeholders),
    EdgeCase("draft rows inside the prompt", _PROMPT, _prompt_ends(5)),
    EdgeCase("from the first token", _PROMPT | {"context_len": 4}, _from_the_start),
    EdgeCase("decodes of 20 tokens with one logit row", _BATCH | {"prefills": 4}, _long_decodes),
    EdgeCase("no new token", _BATCH | {"new_tokens": 0, "max_decode_len": 3}),
    EdgeCase("no new token, prompts end anywhere", _PROMPT | {
        "new_tokens": 0, "max_decode_len": 3,
    }, prompts_end_anywhere),
    EdgeCase("no new token, chunks beside decodes", _BATCH | {"new_tokens": 0, "prefills": 4}),
    EdgeCase("look-ahead 3, the prompt goes on for 1 token", _PROMPT | {"look_ahead": 3}, _prompt_ends(1)),
    EdgeCase("look-ahead 3, the prompt goes on for 2 tokens", _PROMPT | {"look_ahead": 3}, _prompt_ends(2)),
    EdgeCase("look-ahead 3, chunks", _BATCH | {"look_ahead": 3, "prefills": 5}),
    EdgeCase("look-ahead 40, the prompt goes on for 39 tokens", _PROMPT | {
        "look_ahead": 40, "history_len": 300,
    }, _prompt_ends(39)),
    EdgeCase("a chunk of 2050 tokens", {
        "batch_size": 3, "max_num_seqs": 5, "prefills": 1, "prefill_len": 2050, "max_model_len": 4096,
        "history_len": 2100, "max_num_batched_tokens": 2060,
    }),
    EdgeCase("host memory", _BATCH | {"memory": "uva", "prefills": 4}),
    EdgeCase("R = 1500", _BATCH | {"max_num_seqs": 1500}),
    EdgeCase("B = 300", _SMALL | {"batch_size": 300, "max_decode_len": 2, "max_num_batched_tokens": 700}),
]
# fmt: on

_CAPACITY = _SMALL | {"max_num_seqs": 24}
_BIG, _LITTLE = _CAPACITY | {"batch_size": 20, "decode_len": "ragged"}, _CAPACITY | {"batch_size": 2}
SEQUENCES = {
    "big-small-big": (_BIG, _LITTLE, _BIG),
    "chunks-decodes-chunks": (_BIG | {"prefills": 3}, _LITTLE, _LITTLE | {"prefills": 2}, _BIG | {"prefills": 3}),
}
