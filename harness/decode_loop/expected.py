"""What every step must find in the tables: the simulated stream through the scalar references of the operators, on the
CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from baselines.workloads.engine_state import Consumed
from harness.contract import Expected
from harness.decode_loop.hashing import checksum
from harness.decode_loop.simulation import HostState, Simulation, Step
from harness.decode_loop.state import Engine, Part, Snapshot, make_engine, restore, snapshot
from harness.decode_loop.workload import BLOCKS, Workload


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
    outputs = {part.operator.name: part.operator.make_outputs(part.point) for part in parts}
    for number in range(workload.blocks):
        engine.state.fresh.zero_()  # the host clears a flag one step later, and begins every block without any
        host, device = simulation.state.copy(), snapshot(engine)
        first = number * workload.steps_per_block
        steps, sums = simulation.block(), {}
        for i, step in enumerate(steps):
            for name, table in _tables_of(engine, parts, outputs, step, parity=i % 2).items():
                sums.setdefault(name, []).append(_checksum(table))
            engine.state.valid[: len(step.counts)] = torch.tensor(step.counts, dtype=torch.int32)
        if len(steps) % 2:  # a block begins with parity 0 and reads the counts of the other one
            engine.state.num_computed[1].copy_(engine.state.num_computed[0])
        rows = simulation.state.rows
        checksums = {name: np.array(values, dtype=np.uint64) for name, values in sums.items()}
        lengths, lives = [row.computed for row in rows], [not row.free for row in rows]
        yield ExpectedBlock(first, host, device, steps, checksums, lengths, lives)


def tables_at(workload: Workload, block: ExpectedBlock, step: int, parts: Sequence[Part]) -> dict[str, Consumed]:
    """The tables of one step of a block, by its number in the block."""
    engine = make_engine(workload, "cpu")
    restore(engine, block.device)
    outputs = {part.operator.name: part.operator.make_outputs(part.point) for part in parts}
    for i, simulated in enumerate(block.steps[: step + 1]):
        tables = _tables_of(engine, parts, outputs, simulated, parity=i % 2)
        engine.state.valid[: len(simulated.counts)] = torch.tensor(simulated.counts, dtype=torch.int32)
    return tables


def _tables_of(engine: Engine, parts: Sequence[Part], outputs: dict, step: Step, parity: int) -> dict[str, Consumed]:
    """Put one simulated step into the state and run the references over it."""
    state, rows = engine.state, len(step.requests)
    state.parity, state.tables = parity, {}
    state.fresh.zero_()
    for row in step.admitted:
        state.fresh[row] = True
        state.num_accepted[row] = 1
    state.requests[:rows] = torch.tensor(step.requests, dtype=torch.int32)
    for table, row, column, new in step.entries:
        (state.block_table if table == BLOCKS else state.state_table)[row, column] = new
    new_rows = set(step.admitted)
    previous = [-1 if row in new_rows else row for row in range(rows)]
    state.to_device[parity][: 2 * rows] = torch.tensor(previous + step.believed, dtype=torch.int32)
    for part in parts:
        x = part.binding.inputs(part.point, state)
        out = part.binding.outputs(part.point, state, outputs[part.operator.name])
        expected = part.operator.reference(part.point, x)
        for field in fields(out):
            if field.name in expected:
                _write(getattr(out, field.name), expected[field.name])
        state.tables.update(part.binding.consumed(part.point, state, out))
    return state.tables


def _write(buffer: Tensor, expected: Expected) -> None:
    if expected.untouched is None:
        buffer.copy_(expected.value)
    else:
        buffer.copy_(torch.where(expected.untouched, buffer, expected.value))


def _checksum(table: Consumed) -> int:
    lengths = None if table.row_lengths is None else table.row_lengths.numpy()
    return checksum(table.values.numpy(), lengths, table.unit, table.idle)
