"""An engine's persistent tensors on a device, and the operators of a stack bound to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spec_decode_bench.decode_loop.engine_state import (
    Consumed,
    EngineShape,
    EngineState,
    LoopBinding,
    SlotState,
    Turn,
)
from spec_decode_bench.decode_loop.scheduler import COUNTS, ArenaLayout
from spec_decode_bench.decode_loop.workload import Workload
from spec_decode_bench.harness.contract import Operator, Point, Variant
from spec_decode_bench.harness.verify.buffers import POISONS, Guard

#: Tensors that change from step to step: what a block starts from.
CHANGING = ("seq_lens", "num_accepted", "positions", "valid", "anchors")
#: The same of a loop by slot; what an operator writes in each step for a later one is poisoned instead.
CHANGING_BY_SLOT = ("last_sampled_tokens", "draft_tokens", "all_token_ids", "sampled_tokens")
HANDED = ("input_ids", "next_prefill_tokens", "block_tables", "num_sampled", "num_rejected")


@dataclass
class Engine:
    """state: as operators see it. arena: the int32 buffer that the host's entries go to, ``fresh`` behind it.

    staging: per parity, the entries in host memory (pinned beside a GPU) and their copy on the device.
    """

    state: EngineState
    layout: ArenaLayout
    arena: Tensor
    staging: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]

    @property
    def counts(self) -> Tensor:
        """What the operators of a loop by slot change in place: COUNTS, which lie side by side in the arena."""
        starts = [self.layout.starts[name] for name in COUNTS]
        return self.arena[min(starts) : max(starts) + self.state.shape.max_num_seqs]


def make_engine(workload: Workload, device: str) -> Engine:
    shape, layout = workload.shape, ArenaLayout.of(workload.shape)
    pinned = device == "cuda"

    def ints(*size: int, host: bool = False, kind: torch.dtype = torch.int32) -> Tensor:
        if host:
            return torch.zeros(*size, dtype=kind, pin_memory=pinned)
        return torch.zeros(*size, dtype=kind, device=device)

    arena = ints(layout.words + -(-shape.batch_size // 4))

    def part(name: str, *size: int) -> Tensor:
        """Of the arena; a tensor that the loop does not use where it has no place there."""
        if name not in layout.starts:
            return ints(*size)
        start, size = layout.starts[name], layout.sizes[name]
        return arena[start : start + int(np.prod(size))].view(*size)

    start = np.minimum(np.arange(shape.batch_size + 1), shape.num_requests) * shape.next_n
    start = torch.from_numpy(start.astype(np.int32))
    rows = np.arange(shape.batch_size)
    slots = torch.from_numpy(np.where(rows < shape.num_requests, rows + 1, 0).astype(np.int32))
    scheduled = ints(shape.num_requests, host=True)
    scheduled.fill_(shape.next_n)
    by_slot = _slot_state(shape, layout, part, device) if shape.by_slot else None
    # By slot it is one array, which operators change in place.
    computed = (part("num_computed_tokens", shape.max_num_seqs), part("num_computed_tokens", shape.max_num_seqs))
    table = part("block_table", 0, 0)
    if by_slot is not None:
        table = by_slot.block_tables[: shape.batch_size * shape.block_columns].view(shape.batch_size, -1)
    state = EngineState(
        shape=shape,
        seq_lens=ints(shape.max_num_seqs),
        num_computed_tokens=computed,
        num_accepted=part("num_accepted", shape.max_num_seqs),
        positions=ints(shape.max_num_batched_tokens, kind=torch.int64),
        valid=ints(shape.max_num_seqs),
        query_start_loc=start.to(device),
        decode_lens=torch.diff(start).to(device),
        block_table=table,
        state_table=part("state_table", 0, 0),
        requests=part("requests"),
        request_slots=slots.to(device),
        fresh=arena[layout.words :].view(torch.uint8)[: shape.batch_size].view(torch.bool),
        anchors=torch.full((shape.max_num_seqs + 1,), -1, dtype=torch.int32, device=device),
        to_device=(ints(3 * shape.num_requests, host=True), ints(3 * shape.num_requests, host=True)),
        num_scheduled=scheduled,
        query_start_loc_cpu=start.clone(),
        seq_lens_cpu_upper_bound=ints(shape.max_num_seqs, host=True),
        slots=by_slot,
    )
    for pair in state.to_device:
        pair[2 * shape.num_requests :].fill_(shape.num_drafts)
    # Every row may be new in one step, with a whole row of each table, the sizes of these and ten numbers more.
    groups = 1 + max(shape.state_groups, 1)
    entries = shape.num_requests * (shape.block_columns + (groups - 1) * shape.state_columns + groups + 10)
    staging = tuple((ints(1 + 2 * entries, host=True), ints(1 + 2 * entries)) for _ in range(2))
    return Engine(state, layout, arena, staging)


def _slot_state(shape: EngineShape, layout: ArenaLayout, part: Callable[..., Tensor], device: str) -> SlotState:
    """part: a tensor of the arena by its name."""
    capacity, rows, tokens = shape.max_num_seqs, shape.batch_size, shape.max_num_batched_tokens
    ints = lambda *size, kind=torch.int32: torch.zeros(*size, dtype=kind, device=device)  # noqa: E731
    states = [False, *[True] * shape.state_groups]
    sizes = [shape.block_size, *[shape.mamba_block_size] * shape.state_groups]
    starts = torch.arange(capacity + 1, dtype=torch.int32, device=device).clamp(max=shape.num_requests) * shape.next_n
    idx_mapping = part("idx_mapping").view(torch.int64).view(rows)
    idx_mapping[shape.num_requests :] = -1
    table_starts = [start - layout.starts["tables"] for start in layout.table_starts(capacity)]
    return SlotState(
        idx_mapping=idx_mapping,
        query_start_loc=starts,
        cu_num_logits=starts[: rows + 1].clone(),
        tables=part("tables"),
        num_blocks=part("num_blocks"),
        prompt_lens=part("prompt_lens"),
        total_len=part("total_len"),
        state_columns=part("state_columns"),
        num_accepted_tokens=part("num_accepted_tokens"),
        last_sampled_tokens=ints(capacity, kind=torch.int64),
        draft_tokens=ints(capacity, shape.num_drafts, kind=torch.int64),
        all_token_ids=ints(capacity, shape.history_len),
        sampled_tokens=ints(rows, shape.next_n, kind=torch.int64),
        table_starts=torch.tensor(table_starts, device=device),
        widths=torch.tensor(layout.widths, device=device),
        block_sizes=torch.tensor(sizes, dtype=torch.int32, device=device),
        reach=ints(len(states)),
        enabled=~torch.tensor(states, device=device),
        sharded=torch.zeros(len(states), dtype=torch.bool, device=device),
        input_ids=ints(tokens),
        next_prefill_tokens=ints(1, capacity),
        block_tables=ints(capacity * sum(layout.widths)),
        num_sampled=ints(capacity),
        num_rejected=ints(capacity),
    )


@dataclass(frozen=True)
class Snapshot:
    """A copy on the CPU of what the device holds before a block."""

    tensors: Mapping[str, Tensor]
    by_slot: Mapping[str, Tensor]
    num_computed_tokens: tuple[Tensor, Tensor]
    arena: Tensor


def snapshot(engine: Engine) -> Snapshot:
    state = engine.state
    tensors = {name: getattr(state, name).clone() for name in CHANGING}
    by_slot = {name: getattr(state.slots, name).clone() for name in CHANGING_BY_SLOT} if state.slots else {}
    return Snapshot(
        tensors, by_slot, tuple(tensor.clone() for tensor in state.num_computed_tokens), engine.arena.clone()
    )


def restore(engine: Engine, before: Snapshot) -> None:
    engine.arena.copy_(before.arena)
    for name, content in before.tensors.items():
        getattr(engine.state, name).copy_(content)
    for target, content in zip(engine.state.num_computed_tokens, before.num_computed_tokens, strict=True):
        target.copy_(content)
    for name, content in before.by_slot.items():
        getattr(engine.state.slots, name).copy_(content)
    for name in HANDED if engine.state.slots else ():
        getattr(engine.state.slots, name).view(torch.uint8).fill_(POISONS[0])


def carry_over(engine: Engine) -> None:
    """After a block with an odd number of steps: the next one begins with parity 0 again."""
    state = engine.state
    if state.slots is None:  # a step reads the counts of the other parity
        state.num_computed_tokens[1].copy_(state.num_computed_tokens[0])


@dataclass(frozen=True)
class Part:
    """One operator of a stack: the variant that builds its tables, at its point in this loop."""

    operator: Operator
    variant: Variant
    binding: LoopBinding
    point: Point


@dataclass(frozen=True)
class BoundStack:
    """launches, after: by parity, one per operator in the order of a step, before the forward pass and after sampling.

    tables: what the model reads, by name, and drafted: those of them that the drafter reads, after sampling.
    guards: the buffers of each operator between canaries.
    """

    launches: tuple[Sequence[Callable[[], Any]], Sequence[Callable[[], Any]]]
    after: tuple[Sequence[Callable[[], Any]], Sequence[Callable[[], Any]]]
    tables: dict[str, Consumed]
    drafted: frozenset[str]
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
    state, guards, drafted = engine.state, {}, set()
    launches: dict[Turn, tuple[list, list]] = {"before_forward": ([], []), "after_sampling": ([], [])}
    for parity in (0, 1):
        state.parity, state.tables = parity, {}
        for part in in_order(parts):
            name = part.operator.name
            if name not in guards:
                guards[name] = Guard(part.operator.outputs.empty(part.point), device)
            out = part.binding.outputs(part.point, state, guards[name].view)
            launch = part.variant.setup(part.point, part.binding.inputs(part.point, state), out)
            if not callable(launch):
                raise TypeError(f"set-up of {part.variant.id} returned a {type(launch).__name__}, not a closure")
            launches[part.binding.turn][parity].append(launch)
            consumed = part.binding.consumed(part.point, state, out)
            state.tables.update(consumed)
            if part.binding.turn == "after_sampling":
                drafted.update(consumed)
    return BoundStack(*launches.values(), dict(state.tables), frozenset(drafted), guards)


def in_order(parts: Sequence[Part]) -> list[Part]:
    """As a step launches them: those before the forward pass, then those after sampling."""
    return sorted(parts, key=lambda part: part.binding.turn == "after_sampling")
