"""The tables that every step must produce: the scalar references of the operators, run over the simulated stream on the
CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from spec_decode_bench.decode_loop.engine_state import Consumed
from spec_decode_bench.decode_loop.hashing import checksum
from spec_decode_bench.decode_loop.sampling import new_tokens, start_requests
from spec_decode_bench.decode_loop.simulation import HostState, Simulation, Step
from spec_decode_bench.decode_loop.state import (
    Engine,
    Part,
    Snapshot,
    carry_over,
    in_order,
    make_engine,
    restore,
    snapshot,
)
from spec_decode_bench.decode_loop.workload import BLOCKS, Workload
from spec_decode_bench.harness.contract import Expected


@dataclass(frozen=True)
class ExpectedBlock:
    """One block of steps. host, device: what it starts from. steps: the simulated ones.

    checksums: table -> uint64 [steps]. first_step: number of the first step in the whole loop.
    lengths:   computed tokens of each row after the block; lives: whether its request is not finished.
    """

    first_step: int
    host: HostState
    device: Snapshot
    steps: list[Step]
    checksums: dict[str, np.ndarray]
    lengths: list[int]
    lives: list[bool]


def expect(workload: Workload, parts: Sequence[Part]) -> Iterator[ExpectedBlock]:
    """All blocks of a loop. parts: the operators of one stack; only their references run, no variant."""
    simulation, engine = Simulation(workload), make_engine(workload, "cpu")
    outputs = {part.operator.name: part.operator.outputs.empty(part.point) for part in parts}
    for number in range(workload.blocks):
        engine.state.fresh.zero_()  # the host clears a flag one step later, and begins every block without any
        host, device = simulation.state.copy(), snapshot(engine)
        first = number * workload.steps_per_block
        steps, sums = simulation.block(), {}
        for i, step in enumerate(steps):
            for name, table in _tables_of(engine, parts, outputs, step, i % 2, workload.seed).items():
                sums.setdefault(name, []).append(_checksum(table))
        if len(steps) % 2:
            carry_over(engine)
        rows = simulation.state.rows
        checksums = {name: np.array(values, dtype=np.uint64) for name, values in sums.items()}
        lengths, lives = [row.computed for row in rows], [not row.free for row in rows]
        yield ExpectedBlock(first, host, device, steps, checksums, lengths, lives)


def tables_at(workload: Workload, block: ExpectedBlock, step: int, parts: Sequence[Part]) -> dict[str, Consumed]:
    """The tables of one step of a block, by its number in the block."""
    engine = make_engine(workload, "cpu")
    restore(engine, block.device)
    outputs = {part.operator.name: part.operator.outputs.empty(part.point) for part in parts}
    for i, simulated in enumerate(block.steps[: step + 1]):
        tables = _tables_of(engine, parts, outputs, simulated, i % 2, workload.seed)
    return tables


def _tables_of(
    engine: Engine, parts: Sequence[Part], outputs: dict, step: Step, parity: int, seed: int
) -> dict[str, Consumed]:
    """Put one simulated step into the state and run the references over it."""
    state, sampled = engine.state, False
    state.parity, state.tables = parity, {}
    if state.slots is None:
        _place_rows(engine, step, parity)
    else:
        _place_slots(engine, step, parity, seed)

    def sample() -> None:
        state.valid[: len(step.counts)] = torch.tensor(step.counts, dtype=torch.int32)
        if state.slots is not None:
            new_tokens(state, parity, seed)

    for part in in_order(parts):
        if part.binding.turn == "after_sampling" and not sampled:
            sample()
            sampled = True
        x = part.binding.inputs(part.point, state)
        out = part.binding.outputs(part.point, state, outputs[part.operator.name])
        expected = part.operator.reference(part.point, x)
        for field in fields(out):
            if field.name in expected:
                _write(getattr(out, field.name), expected[field.name])
        state.tables.update(part.binding.consumed(part.point, state, out))
    if not sampled:
        sample()
    return state.tables


def _place_rows(engine: Engine, step: Step, parity: int) -> None:
    state, rows = engine.state, len(step.requests)
    state.fresh.zero_()
    for row in step.admitted:
        state.fresh[row] = True
        state.num_accepted[row] = 1
    state.requests[:rows] = torch.tensor(step.requests, dtype=torch.int32)
    for table, row, column, new in step.entries:
        (state.block_table if table == BLOCKS else state.state_table)[row, column] = new
    new_rows = set(step.admitted)
    previous = [-1 if row in new_rows else row for row in range(rows)]
    state.to_device[parity][: 2 * rows] = torch.tensor(previous + step.upper_bounds, dtype=torch.int32)


def _place_slots(engine: Engine, step: Step, parity: int, seed: int) -> None:
    state, slots = engine.state, engine.state.slots
    state.requests[: len(step.requests)] = torch.tensor(step.requests, dtype=torch.int32)
    slots.idx_mapping[: len(step.slots)] = torch.tensor(step.slots)
    for row in step.admitted:
        slot, prompt = step.slots[row], step.computed[row]
        slots.prompt_lens[slot] = state.num_computed_tokens[parity][slot] = prompt
        slots.total_len[slot], slots.state_columns[slot], slots.num_accepted_tokens[slot] = 0, -1, 1
    if step.admitted:
        start_requests(state, step.admitted, parity, seed)
    starts, widths, groups = slots.table_starts.tolist(), slots.widths.tolist(), state.shape.state_groups
    for table, row, column, new in step.entries:
        ids = {0: new} if table == BLOCKS else {1 + g: new * groups + g for g in range(groups)}
        for group, new_id in ids.items():
            slots.tables[starts[group] + step.slots[row] * widths[group] + column] = new_id
            slots.num_blocks[group, step.slots[row]] = column + 1


def _write(buffer: Tensor, expected: Expected) -> None:
    if expected.untouched is None:
        buffer.copy_(expected.value)
    else:
        buffer.copy_(torch.where(expected.untouched, buffer, expected.value))


def _checksum(table: Consumed) -> int:
    lengths = None if table.row_lengths is None else table.row_lengths.numpy()
    return checksum(table.values.numpy(), lengths, table.unit, table.idle)
