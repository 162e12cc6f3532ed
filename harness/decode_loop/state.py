"""The persistent tensors of an engine on a device, and the operators of a stack bound to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from baselines.workloads.engine_state import Consumed, EngineState, LoopBinding
from harness.contract import Operator, Point, Variant
from harness.decode_loop.scheduler import ArenaLayout
from harness.decode_loop.workload import Workload
from harness.verify.buffers import POISONS, Guard

#: Tensors that change from step to step: what a block starts from.
CHANGING = ("seq_lens", "num_accepted", "positions", "valid", "anchors")


@dataclass
class Engine:
    """state: as operators see it. arena: the int32 buffer that the host's entries go to, ``fresh`` behind it.

    staging: per parity, the entries in host memory (pinned beside a GPU) and their copy on the device.
    """

    state: EngineState
    layout: ArenaLayout
    arena: Tensor
    staging: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


def make_engine(workload: Workload, device: str) -> Engine:
    shape, layout = workload.shape, ArenaLayout.of(workload)
    pinned = device == "cuda"

    def ints(*size: int, host: bool = False, kind: torch.dtype = torch.int32) -> Tensor:
        if host:
            return torch.zeros(*size, dtype=kind, pin_memory=pinned)
        return torch.zeros(*size, dtype=kind, device=device)

    arena = ints(layout.words + -(-shape.batch_size // 4))

    def part(start: int, *size: int) -> Tensor:
        return arena[start : start + int(np.prod(size))].view(*size)

    start = np.minimum(np.arange(shape.batch_size + 1), shape.num_requests) * shape.next_n
    start = torch.from_numpy(start.astype(np.int32))
    rows = np.arange(shape.batch_size)
    slots = torch.from_numpy(np.where(rows < shape.num_requests, rows + 1, 0).astype(np.int32))
    scheduled = ints(shape.num_requests, host=True)
    scheduled.fill_(shape.next_n)
    state = EngineState(
        shape=shape,
        seq_lens=ints(shape.max_num_seqs),
        num_computed=(ints(shape.max_num_seqs), ints(shape.max_num_seqs)),
        num_accepted=part(layout.num_accepted, shape.max_num_seqs),
        positions=ints(shape.max_num_batched_tokens, kind=torch.int64),
        valid=ints(shape.max_num_seqs),
        query_start_loc=start.to(device),
        decode_lens=torch.diff(start).to(device),
        block_table=part(layout.block_table, shape.batch_size, shape.block_columns),
        state_table=part(layout.state_table, shape.batch_size, shape.state_columns),
        requests=part(layout.requests, shape.batch_size),
        request_slots=slots.to(device),
        fresh=arena[layout.words :].view(torch.uint8)[: shape.batch_size].view(torch.bool),
        anchors=torch.full((shape.max_num_seqs + 1,), -1, dtype=torch.int32, device=device),
        to_device=(ints(3 * shape.num_requests, host=True), ints(3 * shape.num_requests, host=True)),
        num_scheduled=scheduled,
        query_start_loc_cpu=start.clone(),
        seq_lens_cpu_upper_bound=ints(shape.max_num_seqs, host=True),
    )
    for pair in state.to_device:
        pair[2 * shape.num_requests :].fill_(shape.num_drafts)
    # Every row may be new in one step, with a whole table row each, its request, its accepted count and two flags.
    entries = shape.num_requests * (shape.block_columns + shape.state_columns + 4)
    staging = tuple((ints(1 + 2 * entries, host=True), ints(1 + 2 * entries)) for _ in range(2))
    return Engine(state, layout, arena, staging)


@dataclass(frozen=True)
class Snapshot:
    """What the device holds before a block, on the CPU."""

    tensors: Mapping[str, Tensor]
    num_computed: tuple[Tensor, Tensor]
    arena: Tensor


def snapshot(engine: Engine) -> Snapshot:
    state = engine.state
    tensors = {name: getattr(state, name).clone() for name in CHANGING}
    return Snapshot(tensors, tuple(one.clone() for one in state.num_computed), engine.arena.clone())


def restore(engine: Engine, before: Snapshot) -> None:
    engine.arena.copy_(before.arena)
    for name, content in before.tensors.items():
        getattr(engine.state, name).copy_(content)
    for target, content in zip(engine.state.num_computed, before.num_computed, strict=True):
        target.copy_(content)


@dataclass(frozen=True)
class Part:
    """One operator of a stack: the variant that builds its tables, at its point in this loop."""

    operator: Operator
    variant: Variant
    binding: LoopBinding
    point: Point


@dataclass(frozen=True)
class BoundStack:
    """launches: by parity, one per operator in the order of a step. tables: what the model reads, by name.

    guards: the buffers of each operator between canaries.
    """

    launches: tuple[Sequence[Callable[[], Any]], Sequence[Callable[[], Any]]]
    tables: dict[str, Consumed]
    guards: dict[str, Guard]

    def poison(self) -> None:
        for guard in self.guards.values():
            guard.poison(POISONS[0])

    def stray_write(self) -> str | None:
        """Where a launch wrote outside its buffers."""
        for operator, guard in self.guards.items():
            for name, offset in guard.stray_writes().items():
                return f"{operator}: a write outside the output {name}, at byte {offset} from its start"
        return None


def bind(engine: Engine, parts: Sequence[Part], device: str) -> BoundStack:
    """Set up every launch of a stack on the engine's state, for both parities. Raises what a set-up raises."""
    state, guards = engine.state, {}
    launches: tuple[list, list] = ([], [])
    for parity in (0, 1):
        state.parity, state.tables = parity, {}
        for part in parts:
            name = part.operator.name
            if name not in guards:
                guards[name] = Guard(part.operator.make_outputs(part.point), device)
            out = part.binding.outputs(part.point, state, guards[name].view)
            launch = part.variant.setup(part.point, part.binding.inputs(part.point, state), out)
            if not callable(launch):
                raise TypeError(f"set-up of {part.variant.id} returned a {type(launch).__name__}, no closure")
            launches[parity].append(launch)
            state.tables.update(part.binding.consumed(part.point, state, out))
    return BoundStack(launches, dict(state.tables), guards)
