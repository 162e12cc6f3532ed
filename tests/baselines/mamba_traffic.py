"""Requests that accept drafts at random, cross blocks, finish, pause, are preempted and resumed in other slots, and
move between batch rows; and how a step of them gets into the inputs of an operator.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from spec_decode_bench.baselines.workloads.integers import cdiv

ROWS = 5
#: Mamba block size -> (drafts, longest sequence). Most sequences end after a few dozen tokens.
GEOMETRIES = {1: (5, 40), 4: (2, 50), 16: (3, 100), 1024: (5, 2100)}
#: From this block size on a request crosses a block only where its prompt ends near the end of one.
LONG_BLOCK = 100


@dataclass
class Request:
    id: int
    computed: int  # tokens that the state has to have seen
    end: int
    slot: int = 0  # stable while the request lives
    states: tuple[int, ...] = ()  # its row of the block table
    fresh: bool = True
    accepted: int = 1
    column: int = -1  # of the last scheduled block (mode all), of the running state (align)


class Traffic:
    """Which requests are in which row of the next step. Slots are handed out last in, first out: the next owner is
    soon there.
    """

    def __init__(self, seed: int, block_size: int) -> None:
        self.rng, self.block_size = random.Random(seed), block_size
        self.drafts, self.longest = GEOMETRIES[block_size]
        self.columns = cdiv(self.longest, block_size) + self.drafts
        self.free_slots = list(range(1, ROWS + 3))
        self.num_states = 1 + len(self.free_slots) * self.columns
        self.free_states = list(range(1, self.num_states))
        self.rng.shuffle(self.free_states)
        self.running: list[Request] = []
        self.preempted: list[Request] = []
        self.born = 0

    def admit(self) -> Iterator[Request]:
        """Finish, preempt, resume and admit; yields the requests whose prompt has just been computed."""
        for request in list(self.running):
            finished = request.computed >= request.end
            if finished or self.rng.random() < 0.02:
                self.running.remove(request)
                self.free_slots.append(request.slot)
                self.free_states += request.states
                if not finished:
                    self.preempted.append(request)
        while len(self.running) < ROWS and self.rng.random() < 0.7:
            if self.preempted and self.rng.random() < 0.7:
                request = self.preempted.pop()
            else:
                prompt = self.rng.randint(1, self.longest - 1)
                if self.block_size >= LONG_BLOCK:
                    end = cdiv(prompt, self.block_size) * self.block_size
                    prompt = min(max(end - self.rng.randint(-2, 1 + self.drafts), 1), self.longest - 1)
                elif self.rng.random() < 0.5:  # close to the end of a block
                    prompt = min(
                        max(prompt // self.block_size * self.block_size - self.rng.randint(-2, 6), 1), self.longest - 1
                    )
                self.born += 1
                request = Request(self.born, prompt, min(prompt + self.rng.randint(1, 60), self.longest))
            request.slot, request.fresh, request.accepted, request.column = self.free_slots.pop(), True, 1, -1
            request.states = tuple(self.free_states.pop() for _ in range(self.columns))
            self.running.append(request)
            yield request

    def rows(self) -> list[tuple[Request, int] | None]:
        """(request, its tokens of this step) of each batch row in a new order; None is a padding row, a pausing request
        has none.

        Now and then all requests pause.
        """
        scheduled = []
        if self.rng.random() < 0.03:
            return [None] * ROWS
        for request in self.running:
            tokens = 1 + self.drafts if self.rng.random() < 0.8 else self.rng.randint(1, 1 + self.drafts)
            if self.rng.random() < 0.95:
                scheduled.append((request, min(tokens, self.longest - request.computed)))
        self.rng.shuffle(scheduled)
        return scheduled + [None] * (ROWS - len(scheduled))

    def accept(self, tokens: int) -> int:
        """1 + accepted drafts: all, none or some."""
        return self.rng.choice((1, tokens, self.rng.randint(1, tokens)))


def fill(target: torch.Tensor, values: list) -> None:
    if values:
        target.copy_(torch.tensor(values, dtype=target.dtype))


def fill_step(x, rows) -> None:
    """What all inputs have in common: lengths and the table. Rows of padding, the last ones, hold what a larger step
    left there.
    """
    real = [row for row in rows if row]
    n, table = len(real), x.state_indices if hasattr(x, "state_indices") else x.block_table
    if hasattr(x, "seq_lens"):
        fill(x.seq_lens[:n], [request.computed + tokens for request, tokens in real])
        starts = [0]
        for _, tokens in real:
            starts.append(starts[-1] + tokens)
        fill(x.query_start_loc[: n + 1], starts)
        fill(x.num_accepted_tokens[:n], [request.accepted for request, _ in real])
    fill(table[:n], [request.states[: table.shape[1]] for request, _ in real])


def point_of(operator, traffic: Traffic, **axes):
    geometry = {
        "num_speculative_blocks": traffic.drafts,
        "mamba_block_size": traffic.block_size,
        "max_model_len": traffic.longest,
    }
    sizes = {"batch_size": ROWS, "context_len": traffic.drafts + 1, "max_num_seqs": len(traffic.free_slots)}
    return operator.complete(geometry | sizes | axes)
