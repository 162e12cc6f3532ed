"""The tokens of a loop by slot, on the CPU: what sampler, drafter and prefills write for the operators of a step.

A token depends on its request and position alone, and drafts are the tokens that would follow. loop.cu does the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from spec_decode_bench.decode_loop.engine_state import EngineState
from spec_decode_bench.decode_loop.hashing import token


def new_tokens(state: EngineState, parity: int, seed: int) -> None:
    """After a step in which row b produced valid[b] tokens: these, and the next drafts of its slot."""
    rows, k = state.shape.num_requests, state.shape.num_drafts
    slots, requests = state.slots.idx_mapping[:rows], state.requests[:rows].numpy()
    computed, counts = state.num_computed_tokens[parity][slots].numpy().astype(np.int64), state.valid[:rows].numpy()
    tokens = torch.from_numpy(token(seed, requests[:, None], computed[:, None] + 1 + np.arange(k + 1)))
    produced = torch.from_numpy(np.arange(k + 1) < counts[:, None])
    state.slots.sampled_tokens[:rows] = torch.where(produced, tokens, state.slots.sampled_tokens[:rows])
    state.slots.draft_tokens[slots] = _drafts(state, requests, computed + counts, seed)


def start_requests(state: EngineState, rows: Sequence[int], parity: int, seed: int) -> None:
    """What their prefill left in the slots of new requests: the newest token, and drafts."""
    slots, requests = state.slots.idx_mapping[list(rows)], state.requests[list(rows)].numpy()
    computed = state.num_computed_tokens[parity][slots].numpy().astype(np.int64)
    state.slots.last_sampled_tokens[slots] = torch.from_numpy(token(seed, requests, computed))
    state.slots.draft_tokens[slots] = _drafts(state, requests, computed, seed)


def _drafts(state: EngineState, requests: np.ndarray, position: np.ndarray, seed: int) -> torch.Tensor:
    behind = 1 + np.arange(state.shape.num_drafts)
    return torch.from_numpy(token(seed, requests[:, None], position[:, None] + behind))
