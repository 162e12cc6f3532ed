"""A plain Python simulation of the requests of a loop: what every step of every stack must find and do.

It shares no code with the device kernels or with the scheduler of the loop (scheduler.py), only the random numbers and
the rules, which are:

* A free row takes the next request before a step. Blocks are allocated row by row for the longest length that the step
  can reach as the host knows it, from ids that were freed, oldest first, else the next new id.
* A request is finished once it has all of its output; extra tokens of its last step are not delivered. Its ids are
  freed, row by row, when the host learns that: before it prepares the next step (delay 0), or after (delay 1), in
  which case the row runs one wasted step.
* Blocks of steps begin with a host that knows all counts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from spec_decode_bench.decode_loop.hashing import GAMMA, MASK, POSITION
from spec_decode_bench.decode_loop.workload import BLOCKS, STATES, Acceptance, Workload, columns_needed, slot_of


@dataclass
class BlockPool:
    """Ids from 1 on; 0 is the reserved block."""

    freed: deque[int] = field(default_factory=deque)
    next_id: int = 1

    def take(self) -> int:
        if self.freed:
            return self.freed.popleft()
        self.next_id += 1
        return self.next_id - 1

    def copy(self) -> BlockPool:
        return BlockPool(deque(self.freed), self.next_id)


@dataclass
class Row:
    """A row of the batch. computed: tokens before the next step. known: the same as far as the host knows.

    free: no request, or one that the host knows to be finished. started: the step that the request ran first in.
    slot: of the request. served: requests that the row has had.
    """

    request: int = -1
    output: int = 0
    computed: int = 0
    known: int = 0
    generated: int = 0
    started: int = 0
    slot: int = 0
    served: int = 0
    free: bool = True
    ids: dict[str, list[int]] = field(default_factory=lambda: {BLOCKS: [], STATES: []})

    def copy(self) -> Row:
        return replace(self, ids={name: list(ids) for name, ids in self.ids.items()})


@dataclass
class HostState:
    """What the host knows between two steps; the scheduler of a loop starts a block from it."""

    rows: list[Row]
    pools: dict[str, BlockPool]
    next_request: int = 0

    def copy(self) -> HostState:
        pools = {name: pool.copy() for name, pool in self.pools.items()}
        return HostState([row.copy() for row in self.rows], pools, self.next_request)


@dataclass(frozen=True)
class Step:
    """One step of the stream. Lists are by row.

    admitted:  rows that have a new request. requests: number of the request in each row. slots: slot of each.
    entries:   (table, row, column, id) that the host adds before the step.
    upper_bounds: computed tokens as the host counts them. computed: as they are.
    counts:    tokens that each row produced. delivered: those that its request received.
    """

    admitted: list[int]
    requests: list[int]
    slots: list[int]
    entries: list[tuple[str, int, int, int]]
    upper_bounds: list[int]
    computed: list[int]
    counts: list[int]
    delivered: list[int]


class Simulation:
    """Call ``block`` for one block of steps after the other. ``state`` is what the next block starts from."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        rows = [Row() for _ in range(workload.shape.num_requests)]
        self.state = HostState(rows, {BLOCKS: BlockPool(), STATES: BlockPool()})
        self._step = 0
        self._uncounted: list[int] | None = None

    def block(self) -> list[Step]:
        steps = [self._run_step() for _ in range(self.workload.steps_per_block)]
        self._learn()
        return steps

    def _run_step(self) -> Step:
        shape, rows = self.workload.shape, self.state.rows
        admitted, entries = [], []
        for r, row in enumerate(rows):
            if row.free:
                self._admit(r, row)
                admitted.append(r)
        upper_bounds = []
        for r, row in enumerate(rows):
            in_flight = self._uncounted is not None and row.started < self._step
            upper_bounds.append(row.known + (shape.next_n if in_flight else 0))
            for table, needed in columns_needed(shape, upper_bounds[r] + shape.next_n).items():
                while len(row.ids[table]) < needed:
                    new = self.state.pools[table].take()
                    entries.append((table, r, len(row.ids[table]), new))
                    row.ids[table].append(new)
        computed = [row.computed for row in rows]
        counts = [
            tokens_of_step(self.workload.acceptance, self.workload.seed, row.request, row.computed, shape.next_n)
            for row in rows
        ]
        # What a request receives does not depend on when the host learns of it.
        delivered = [
            min(count, max(row.output - generated, 0))
            for row, generated, count in zip(rows, self._generated(), counts, strict=True)
        ]
        requests, slots = [row.request for row in rows], [row.slot for row in rows]
        for row, count in zip(rows, counts, strict=True):
            row.computed += count
        if self._uncounted is not None:  # one step behind
            self._learn()
        self._uncounted = counts
        self._step += 1
        if self.workload.delay == 0:
            self._learn()
        return Step(admitted, requests, slots, entries, upper_bounds, computed, counts, delivered)

    def _admit(self, r: int, row: Row) -> None:
        number = self.state.next_request
        self.state.next_request += 1
        row.request, row.free, row.generated, row.started = number, False, 0, self._step
        row.output = int(self.workload.outputs[number])
        row.computed = row.known = int(self.workload.prompts[number])
        row.slot, row.served = slot_of(self.workload.shape, r, row.served), row.served + 1

    def _generated(self) -> list[int]:
        """By row: tokens of its request before this step, the uncounted step included."""
        counts = self._uncounted or [0] * len(self.state.rows)
        rows = zip(self.state.rows, counts, strict=True)
        return [row.generated + (count if row.started < self._step else 0) for row, count in rows]

    def _learn(self) -> None:
        """The host learns the counts of the step before: lengths, requests that are finished, ids that are free."""
        if self._uncounted is None:
            return
        step = self._step - 1
        for row, count in zip(self.state.rows, self._uncounted, strict=True):
            if row.free or row.started > step:
                continue
            row.known += count
            row.generated += count
            if row.generated >= row.output:
                row.free = True
                for table, ids in row.ids.items():
                    self.state.pools[table].freed.extend(ids)
                    ids.clear()
        self._uncounted = None


def tokens_of_step(acceptance: Acceptance, seed: int, request: int, computed: int, next_n: int) -> int:
    """Tokens that a request with so many computed tokens gets in its next step, 1 .. next_n."""
    if acceptance.lengths:
        return acceptance.lengths[_draw(seed, request, computed) % len(acceptance.lengths)]
    tokens = 1
    for i in range(next_n - 1):
        if _draw(seed, request, computed + i) >= acceptance.thresholds[i]:
            break
        tokens += 1
    return tokens


def _draw(seed: int, request: int, position: int) -> int:
    """As hashing.draw, in Python's integers."""
    return _mix(_mix((seed + request * GAMMA) & MASK) + position * POSITION) >> 32


def _mix(z: int) -> int:
    z &= MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)
