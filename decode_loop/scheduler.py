"""The host's side of a step: admission, block allocation, upper bounds. Real work, timed as part of every stack's step.

It stages what the device needs in host arrays (pinned beside a GPU): the input of the first operator, and a list of
single entries to write into the tables, as an engine stages new block ids. Two sets of arrays alternate, so
that the host never overwrites data that an earlier step's copy is still reading.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from spec_decode_bench.decode_loop.engine_state import EngineShape
from spec_decode_bench.decode_loop.simulation import HostState
from spec_decode_bench.decode_loop.workload import BLOCKS, STATES, Workload, slot_of


@dataclass(frozen=True)
class ArenaLayout:
    """Places in the one int32 buffer that host entries are written to, behind which lies a byte per row (``fresh``).

    starts, sizes: of the tensors in it, by name. widths: columns of the table of each cache group, where a loop keeps
    its tables by slot.
    """

    starts: Mapping[str, int]
    sizes: Mapping[str, tuple[int, ...]]
    words: int
    widths: tuple[int, ...] = ()

    @classmethod
    def of(cls, shape: EngineShape) -> ArenaLayout:
        capacity, widths = shape.max_num_seqs, ()
        sizes: dict[str, tuple[int, ...]] = {"requests": (shape.batch_size,)}
        if shape.by_slot:
            widths = (shape.block_columns, *[shape.state_columns] * shape.state_groups)
            sizes |= {
                "idx_mapping": (shape.batch_size, 2),  # int64
                "tables": (capacity * sum(widths),),
                "num_blocks": (len(widths), capacity),
                "prompt_lens": (capacity,),
            }
            sizes |= dict.fromkeys(COUNTS, (capacity,))
        else:
            sizes |= {
                "block_table": (shape.batch_size, shape.block_columns),
                "state_table": (shape.batch_size, shape.state_columns),
                "num_accepted": (capacity,),
            }
        place, starts = 0, {}
        for name, size in sizes.items():
            starts[name] = place
            place += -(-prod(size) // 64) * 64  # every tensor begins at a multiple of 256 bytes
        return cls(starts, sizes, place, widths)

    def table_starts(self, capacity: int) -> list[int]:
        """Where the tables by slot begin."""
        before = [capacity * sum(self.widths[:g]) for g in range(len(self.widths))]
        return [self.starts["tables"] + words for words in before]


#: What a step leaves in the slots for the next one, and the host writes for a new request.
COUNTS = ("num_computed_tokens", "total_len", "state_columns", "num_accepted_tokens")


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
        self._known, self._generated = column("known"), column("generated")
        self._output, self._started = column("output"), column("started")
        self._free, self._in_flight = column("free", bool), np.zeros(size, dtype=bool)
        self._fresh: list[int] = []
        self._ids = {name: [list(row.ids[name]) for row in rows] for name in (BLOCKS, STATES)}
        self._have = {name: np.array([len(ids) for ids in lists]) for name, lists in self._ids.items()}
        self._freed = {name: deque(pool.freed) for name, pool in state.pools.items()}
        self._next_id = {name: pool.next_id for name, pool in state.pools.items()}
        self._next_request = state.next_request
        self._slots, self._served = [row.slot for row in rows], [row.served for row in rows]
        # Of each table: tokens per column, tokens behind the step's, columns behind them.
        self._units = {BLOCKS: (shape.block_size, shape.num_drafts if shape.by_slot else 0, 0)}
        if not shape.by_slot or shape.state_groups:
            self._units[STATES] = (shape.mamba_block_size, 0, shape.num_drafts)
        # Of each table: where it begins, its width, and the ids of its group: id * factor + offset.
        if shape.by_slot:
            first, *others = zip(arena.table_starts(shape.max_num_seqs), arena.widths, strict=True)
            groups = [(*place, shape.state_groups, g, 1 + g) for g, place in enumerate(others)]
            self._places = {BLOCKS: [(*first, 1, 0, 0)], STATES: groups}
        else:
            self._places = {
                BLOCKS: [(arena.starts["block_table"], shape.block_columns, 1, 0, 0)],
                STATES: [(arena.starts["state_table"], shape.state_columns, 1, 0, 0)],
            }

    def prepare(self, parity: int) -> int:
        """Stage the next step; returns the number of entries."""
        shape, arena, entries = self._shape, self._arena, []
        fresh = np.flatnonzero(self._free).tolist() if self._free.any() else []
        for row in set(self._fresh).difference(fresh):  # no place twice: the device writes entries in any order
            entries += (arena.words + row, 0)
        self._fresh = fresh
        if not shape.by_slot:
            to_device, rows = self._to_device[parity], shape.num_requests
            previous = to_device[:rows]
            previous[:] = np.arange(rows) if not self._fresh else np.where(self._free, -1, np.arange(rows))
        for row in self._fresh:
            self._admit(row)
            entries += (arena.words + row, 1, arena.starts["requests"] + row, self._next_request - 1)
            if shape.by_slot:
                self._fill_slot(entries, row)
            else:
                entries += (arena.starts["num_accepted"] + row, 1)
        upper_bound = self._known + self._in_flight * shape.next_n
        if not shape.by_slot:
            to_device[rows : 2 * rows] = upper_bound
        needed_tokens = upper_bound + shape.next_n
        for name, (unit, drafted, extra) in self._units.items():
            needed = -(-(needed_tokens + drafted) // unit) + extra
            short = np.flatnonzero(needed > self._have[name])
            for row in short.tolist():
                self._allocate(entries, name, row, int(needed[row]))
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
        self._generated[row], self._started[row] = 0, self._step
        self._known[row], self._output[row] = self._workload.prompts[number], self._workload.outputs[number]
        self._free[row] = self._in_flight[row] = False
        if self._shape.by_slot:
            self._slots[row] = slot_of(self._shape, row, self._served[row])
            self._served[row] += 1

    def _fill_slot(self, entries: list[int], row: int) -> None:
        """State of a new request: its prompt is computed, nothing is produced, no state is running."""
        slot, starts, prompt = self._slots[row], self._arena.starts, int(self._known[row])
        entries += (starts["idx_mapping"] + 2 * row, slot, starts["prompt_lens"] + slot, prompt)
        for name, value in zip(COUNTS, (prompt, 0, -1, 1), strict=True):
            entries += (starts[name] + slot, value)

    def _allocate(self, entries: list[int], name: str, row: int, needed: int) -> None:
        ids, freed, by_slot = self._ids[name][row], self._freed[name], self._shape.by_slot
        line = self._slots[row] if by_slot else row
        places = self._places[name]
        if by_slot:
            counts, capacity = self._arena.starts["num_blocks"], self._shape.max_num_seqs
            for *_, group in places:
                entries += (counts + group * capacity + line, needed)
        for column in range(len(ids), needed):
            if freed:
                new = freed.popleft()
            else:
                new = self._next_id[name]
                self._next_id[name] = new + 1
            ids.append(new)
            for start, width, factor, offset, _ in places:
                entries += (start + line * width + column, new * factor + offset)
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
