"""A plain Python engine over request slots, and the tensors that it shares with the variants under test.

Requests come, run chunks of their prompt, decode with drafts, skip steps, are preempted, come back into other slots and
go; batches are padded up to captured sizes. The engine keeps what every request really is: its tokens, its blocks, and
which recurrent state is where. Tensors hold only what a real engine keeps on the device.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch

#: Tokens of a request at most, drafts, request slots, tokens of the vocabulary.
MOST, K, SLOTS, VOCAB = 96, 3, 6, 50
#: Tokens per block of the two groups of attention, the second of which has a window, and of the group of states.
BLOCKS, WINDOW, STATE_BLOCK = (4, 8), 20, 6
#: Batch sizes that batches are padded up to, and tokens of a step at most.
CAPTURED, TOKENS = (1, 2, 4, 6), 64
AXES = {
    "next_n": K + 1,
    "max_model_len": MOST,
    "history_len": MOST + K + 2,
    "max_num_seqs": SLOTS,
    "block_size": BLOCKS[0],
    "num_groups": 3,
    "group_blocks": "mixed",
    "state_groups": 1,
    "states": "yes",
    "mamba_block_size": STATE_BLOCK,
    "window": WINDOW,
    "context_len": K + 1,
    "max_num_batched_tokens": TOKENS,
    "prompt_rows": "some",
    "vocab_size": VOCAB,
}


class WrongStep(AssertionError):
    """Something that a variant wrote is not what the engine knows."""


@dataclass
class Request:
    name: int
    tokens: list[int]  # prompt and output
    length: int  # tokens at which it ends
    slot: int = -1
    prompt: int = 0  # tokens that were known when it got its slot
    computed: int = 0
    drafts: list[int] = field(default_factory=list)
    blocks: list[list[int]] = field(default_factory=lambda: [[], [], []])


def target_token(name: int, position: int) -> int:
    """What the model says at a position of a request, whatever came before."""
    return (name * 7919 + position * 104729 + name * position) % VOCAB


def needed_blocks(tokens: int) -> list[int]:
    """Of each group, for that many tokens; states have K scratch columns behind the last one."""
    return [-(-tokens // size) for size in BLOCKS] + [-(-tokens // STATE_BLOCK) + K]


class Engine:
    """Schedules a step, knows what its tensors must hold, and plays the models."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.free_slots, self.running, self.waiting = list(range(SLOTS)), [], []
        self.free_blocks = [list(range(1, 400)) for _ in range(3)]
        self.names, self.writes = 0, []
        #: Block of a state -> (request, tokens that it has seen).
        self.states: dict[int, tuple[int, int]] = {}

    # --- requests ---

    def churn(self) -> None:
        """Finish, preempt, admit. What the host writes for it is left in ``writes``."""
        draw = self.random
        for request in [r for r in self.running if len(r.tokens) >= r.length]:
            self._leave(request)
        if self.running and draw.random() < 0.04:
            request = draw.choice(self.running)
            self._leave(request)
            self.waiting.append(request)
        while self.free_slots and draw.random() < 0.4:
            if self.waiting and draw.random() < 0.5:
                self._enter(self.waiting.pop(0))
            else:
                self.names += 1
                prompt = draw.choice((1, 2, 5, 11, 30))
                tokens = [target_token(self.names, p) for p in range(prompt)]
                self._enter(Request(self.names, tokens, draw.randint(prompt + 1, MOST)))

    def _leave(self, request: Request) -> None:
        self.running.remove(request)
        self.free_slots.append(request.slot)
        for group, blocks in enumerate(request.blocks):
            self.free_blocks[group] += blocks
        request.blocks = [[], [], []]

    def _enter(self, request: Request) -> None:
        """Its output so far counts as prompt. Drafts and last token of the slot's former owner stay there."""
        request.slot = self.free_slots.pop(self.random.randrange(len(self.free_slots)))
        request.prompt, request.computed, request.drafts = len(request.tokens), 0, []
        self.running.append(request)
        self.writes.append(("admit", request.slot, list(request.tokens)))

    def _grow(self, request: Request, tokens: int) -> None:
        needed = needed_blocks(tokens)
        for group, blocks in enumerate(request.blocks):
            before = len(blocks)
            while len(blocks) < needed[group]:
                blocks.append(self.free_blocks[group].pop(self.random.randrange(len(self.free_blocks[group]))))
            if len(blocks) > before:
                self.writes.append(("blocks", request.slot, group, before, blocks[before:]))

    # --- a step ---

    def schedule(self) -> list[tuple[Request, int]]:
        """(request, query tokens), decodes first. Empty where nobody runs."""
        draw, decodes, chunks, budget = self.random, [], [], TOKENS
        for request in draw.sample(self.running, len(self.running)):
            if draw.random() < 0.15:
                continue
            left = request.prompt - request.computed
            if left > 0:
                query = min(left, draw.choice((1, 4, 9, 40)), budget)
                place = chunks
            else:
                drafts = len(request.drafts) if draw.random() < 0.8 else draw.randint(0, len(request.drafts))
                query = min(1 + drafts, MOST - request.computed, budget)
                place = decodes
            if query < 1:
                continue
            budget -= query
            place.append((request, query))
            self._grow(request, min(request.computed + query + K, MOST))
        return decodes + chunks

    def sample(self, rows: list[tuple[Request, int]]) -> list[list[int]]:
        """Tokens that the sampler produces for each row: accepted drafts and one more, or one for a chunk."""
        produced = []
        for request, query in rows:
            known = len(request.tokens)
            if request.computed < request.prompt:
                produced.append([target_token(request.name, known)])
                continue
            tokens = [target_token(request.name, known)]
            for draft in request.drafts[: query - 1]:
                if draft != tokens[-1]:
                    break
                tokens.append(target_token(request.name, known + len(tokens)))
            produced.append(tokens)
        return produced

    def propose(self, request: Request) -> list[int]:
        """Drafts, each right with a probability of 0.7."""
        known = len(request.tokens)
        right = [target_token(request.name, known + i) for i in range(K)]
        return [token if self.random.random() < 0.7 else (token + 1) % VOCAB for token in right]


def shared_tensors(device: str) -> SimpleNamespace:
    """What is kept by slot. Nobody's entries hold values that no request has."""
    full = lambda value, *shape, dtype=torch.int32: torch.full(shape, value, dtype=dtype, device=device)  # noqa: E731
    return SimpleNamespace(
        num_computed_tokens=full(77, SLOTS),
        total_len=full(77, SLOTS),
        prompt_lens=full(77, SLOTS),
        last_sampled_tokens=full(777, SLOTS, dtype=torch.int64),
        draft_tokens=full(777, SLOTS, K, dtype=torch.int64),
        all_token_ids=full(777, SLOTS, AXES["history_len"]),
        state_columns=full(9, SLOTS),
        num_accepted_tokens=full(2, SLOTS),
        num_blocks=full(0, 3, SLOTS),
    )
