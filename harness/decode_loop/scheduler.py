"""The host's side of a step: admission, block allocation, upper bounds. Real work, timed as part of every stack's step.

It stages what the device needs in host arrays (pinned beside a GPU): the input of the first operator, and a list of
single entries to write into the tables, as an engine stages new block ids. Two sets of arrays are used in turns, so
that the host never writes what an earlier step's copy still reads.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from harness.decode_loop.simulation import HostState
from harness.decode_loop.workload import BLOCKS, STATES, Workload


@dataclass(frozen=True)
class ArenaLayout:
    """Places in the one int32 buffer that host entries are written to. fresh: behind it, a byte per row.

    Its tensors: block_table [B, W], state_table [B, V], requests [B], num_accepted [max_num_seqs].
    """

    block_table: int
    state_table: int
    requests: int
    num_accepted: int
    words: int
    rows: int

    @classmethod
    def of(cls, workload: Workload) -> ArenaLayout:
        shape, place, starts = workload.shape, 0, []
        for size in (
            shape.batch_size * shape.block_columns,
            shape.batch_size * shape.state_columns,
            shape.batch_size,
            shape.max_num_seqs,
        ):
            starts.append(place)
            place += -(-size // 64) * 64  # every tensor begins at a multiple of 256 bytes
        return cls(*starts, words=place, rows=shape.batch_size)


class CountError(Exception):
    """The device reported a number of accepted tokens that no step can have."""


class Scheduler:
    """staging: two int32 arrays [1 + 2 * entries], their number, then places and values. to_device: two of [3 R]."""

    def __init__(
        self,
        workload: Workload,
        arena: ArenaLayout,
        state: HostState,
        first_step: int,
        staging: tuple[np.ndarray, np.ndarray],
        to_device: tuple[np.ndarray, np.ndarray],
    ) -> None:
        shape = workload.shape
        self._shape, self._arena, self._workload = shape, arena, workload
        self._staging, self._to_device = staging, to_device
        self._step = first_step
        rows, size = state.rows, len(state.rows)
        column = lambda name, kind=np.int64: np.array([getattr(row, name) for row in rows], dtype=kind)  # noqa: E731
        self.request, self._known, self._generated = column("request"), column("known"), column("generated")
        self._output, self._started = column("output"), column("started")
        self._free, self._in_flight = column("free", bool), np.zeros(size, dtype=bool)
        self._fresh: list[int] = []
        self._ids = {name: [list(row.ids[name]) for row in rows] for name in (BLOCKS, STATES)}
        self._have = {name: np.array([len(ids) for ids in lists]) for name, lists in self._ids.items()}
        self._freed = {name: deque(pool.freed) for name, pool in state.pools.items()}
        self._next_id = {name: pool.next_id for name, pool in state.pools.items()}
        self._next_request = state.next_request
        self._tables = (
            (BLOCKS, arena.block_table, shape.block_columns, shape.block_size, 0),
            (STATES, arena.state_table, shape.state_columns, shape.mamba_block_size, shape.num_drafts),
        )

    def prepare(self, parity: int) -> int:
        """Stage the next step; returns the number of entries."""
        shape, arena, entries = self._shape, self._arena, []
        for row in self._fresh:
            entries += (arena.words + row, 0)
        self._fresh = np.flatnonzero(self._free).tolist() if self._free.any() else []
        to_device, rows = self._to_device[parity], shape.num_requests
        previous = to_device[:rows]
        previous[:] = np.arange(rows) if not self._fresh else np.where(self._free, -1, np.arange(rows))
        for row in self._fresh:
            self._admit(row)
            entries += (arena.words + row, 1, arena.requests + row, self._next_request - 1, arena.num_accepted + row, 1)
        believed = self._known + self._in_flight * shape.next_n
        to_device[rows : 2 * rows] = believed
        upper = believed + shape.next_n
        for name, start, width, unit, extra in self._tables:
            needed = -(-upper // unit) + extra
            short = np.flatnonzero(needed > self._have[name])
            for row in short.tolist():
                self._allocate(entries, name, start + row * width, row, int(needed[row]))
        self._in_flight = ~self._free
        self._step += 1
        count = len(entries)
        if count:
            staged = self._staging[parity]
            staged[0] = count // 2
            staged[1 : 1 + count] = entries
        return count // 2

    def _admit(self, row: int) -> None:
        number = self._next_request
        self._next_request += 1
        self.request[row], self._generated[row], self._started[row] = number, 0, self._step
        self._known[row], self._output[row] = self._workload.prompts[number], self._workload.outputs[number]
        self._free[row] = self._in_flight[row] = False

    def _allocate(self, entries: list[int], name: str, place: int, row: int, needed: int) -> None:
        ids, freed = self._ids[name][row], self._freed[name]
        for column in range(len(ids), needed):
            if freed:
                new = freed.popleft()
            else:
                new = self._next_id[name]
                self._next_id[name] = new + 1
            ids.append(new)
            entries += (place + column, new)
        self._have[name][row] = needed

    def learn(self, counts: np.ndarray, step: int) -> None:
        """Take the tokens that each row produced in ``step``. Raises CountError for a number that cannot be."""
        if counts.min() < 1 or counts.max() > self._shape.next_n:
            row = int(np.flatnonzero((counts < 1) | (counts > self._shape.next_n))[0])
            raise CountError(f"row {row} reports {int(counts[row])} tokens of {self._shape.next_n}")
        ran = ~self._free & (self._started <= step)
        gained = counts * ran
        self._known += gained
        self._generated += gained
        if step == self._step - 1:
            self._in_flight[:] = False
        for row in np.flatnonzero(ran & (self._generated >= self._output)).tolist():
            self._free[row] = True
            for name, lists in self._ids.items():
                self._freed[name].extend(lists[row])
                lists[row] = []
                self._have[name][row] = 0

    def final_lengths(self) -> np.ndarray:
        """Computed tokens of each row, as the host knows them."""
        return self._known.copy()
