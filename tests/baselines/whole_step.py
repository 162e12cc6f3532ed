"""A step's launches of step_prologue, step_epilogue and draft_passes, checked against a plain Python engine.

State is carried from step to step in one set of tensors, which a launch reads and writes in place, as in an engine;
only the operator chains read copies of counts.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from spec_decode_bench.baselines.draft_passes import operator as draft_passes
from spec_decode_bench.baselines.step_epilogue import operator as step_epilogue
from spec_decode_bench.baselines.step_prologue import operator as step_prologue
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.harness.contract import Point
from spec_decode_bench.harness.discover import discover
from tests.baselines.random_batches import legal_point
from tests.baselines.whole_step_traffic import (
    AXES,
    BLOCKS,
    CAPTURED,
    MOST,
    SLOTS,
    STATE_BLOCK,
    TOKENS,
    WINDOW,
    Engine,
    K,
    WrongStep,
    shared_tensors,
)
from tests.runnable import DEVICE

CATALOG = discover()
MODULES = (step_prologue, step_epilogue, draft_passes)


#: Bytes of the arena, and between the starts of two tensors.
ARENA, APART = 1 << 17, 256


class Arena:
    """Tensors side by side in one allocation, so that one copy brings all of them to the host."""

    def __init__(self) -> None:
        self.bytes, self.used = torch.empty(ARENA, dtype=torch.uint8, device=DEVICE), 0

    def place(self, tensors: Any) -> dict[str, torch.Tensor]:
        """The object's tensors, with their contents."""
        return {name: self._placed(t) for name, t in vars(tensors).items() if isinstance(t, torch.Tensor)}

    def _placed(self, source: torch.Tensor) -> torch.Tensor:
        begin, size = self.used, source.numel() * source.element_size()
        self.used += -(-size // APART) * APART
        return self.bytes[begin : begin + size].view(source.dtype).view(source.shape).copy_(source)

    def on_host(self, *objects: Any) -> list[SimpleNamespace]:
        """Each object's tensors of the arena as they are now."""
        copy = self.bytes[: self.used].cpu()
        return [SimpleNamespace(**{n: self._seen(copy, t) for n, t in vars(made).items()}) for made in objects]

    def _seen(self, copy: torch.Tensor, placed: Any) -> torch.Tensor | None:
        if not isinstance(placed, torch.Tensor):
            return None
        begin = placed.data_ptr() - self.bytes.data_ptr()
        return copy[begin : begin + placed.numel() * placed.element_size()].view(placed.dtype).view(placed.shape)


def equal(what: str, got: Any, right: Any) -> None:
    got = got.tolist() if isinstance(got, torch.Tensor) else got
    if got != right:
        raise WrongStep(f"{what} is {got}, not {right}")


class Device:
    """The tensors, and the launches of one variant of each operator, set up once per shape of a step."""

    def __init__(self, variants, graphs: bool) -> None:
        self.variants, self.graphs, self.launches = variants, graphs, {}
        self.arena = Arena()
        self.state = SimpleNamespace(**self.arena.place(shared_tensors(DEVICE)))
        self.pool = torch.cuda.graph_pool_handle() if graphs else None
        whole = self.point(step_prologue, max(CAPTURED), 1)
        self.tables = torch.full((slots.table_starts(whole)[-1],), 333, dtype=torch.int32, device=DEVICE)
        self.before = self._poisoned(step_prologue.Outputs.empty(whole))
        self.before = replace(
            self.before, num_accepted_tokens=self.state.num_accepted_tokens, state_columns=self.state.state_columns
        )
        self.after = self._poisoned(step_epilogue.Outputs.empty(self.point(step_epilogue, max(CAPTURED), 1)))
        self.after = replace(
            self.after,
            num_computed_tokens=self.state.num_computed_tokens,
            total_len=self.state.total_len,
            last_sampled_tokens=self.state.last_sampled_tokens,
            num_accepted_tokens=self.state.num_accepted_tokens,
            all_token_ids_device=self.state.all_token_ids,
        )
        self.passes = self._poisoned(draft_passes.Outputs.empty(self.point(draft_passes, max(CAPTURED), 1)))
        int64 = lambda *shape: torch.full(shape, -1, dtype=torch.int64, device=DEVICE)  # noqa: E731
        int32 = lambda *shape: torch.zeros(shape, dtype=torch.int32, device=DEVICE)  # noqa: E731
        self.step = SimpleNamespace(
            idx_mapping=int64(SLOTS),
            query_start_loc=int32(SLOTS + 1),
            cu_num_logits=int32(SLOTS + 1),
            sampled_tokens=int64(SLOTS, K + 1),
            num_sampled=int32(SLOTS),
        )
        self.groups = {
            "widths": torch.tensor(slots.group_widths(whole), device=DEVICE),
            "block_sizes": torch.tensor(slots.group_block_sizes(whole), dtype=torch.int32, device=DEVICE),
            "enabled": torch.tensor([True, True, False], device=DEVICE),
            "sharded": torch.zeros(3, dtype=torch.bool, device=DEVICE),
        }
        self.table_starts = torch.tensor(slots.table_starts(whole)[:-1], device=DEVICE)
        self.reach = torch.tensor([0, WINDOW, 0], dtype=torch.int32, device=DEVICE)
        self.filled = 0
        #: What the epilogue reads. PyTorch operators write counts before they have read all of them.
        chains = variants[1].folder == "baselines"
        self.counts = {name: getattr(self.state, name) for name in ("num_computed_tokens", "total_len")}
        self.counts = {name: count.clone() if chains else count for name, count in self.counts.items()}

    def _poisoned(self, made: Any) -> Any:
        return replace(made, **{name: t.fill_(-7) for name, t in self.arena.place(made).items()})

    @staticmethod
    def point(module, rows: int, real: int) -> Point:
        own = {axis.name: AXES[axis.name] for axis in module.operator.axes if axis.name in AXES}
        at = legal_point(module.operator, own | {"batch_size": rows, "padding": (rows - real) / rows})
        assert slots.num_real(at) == real
        return at

    def write(self, writes) -> None:
        """What the host writes between two steps."""
        state = self.state
        tables = slots.group_tables(self.point(step_prologue, max(CAPTURED), 1), self.tables)
        for kind, slot, *rest in writes:
            if kind == "blocks":
                group, first, blocks = rest
                tables[group][slot, first : first + len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
                state.num_blocks[group, slot] = first + len(blocks)
                continue
            (tokens,) = rest
            state.num_computed_tokens[slot], state.total_len[slot], state.prompt_lens[slot] = (
                0,
                len(tokens),
                len(tokens),
            )
            state.all_token_ids[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
            state.state_columns[slot], state.num_accepted_tokens[slot] = -1, 1
            state.num_blocks[:, slot] = 0

    def launch(self, number: int, rows: int, real: int, tokens: int, logits: int, dirty: int) -> None:
        """Operator ``number`` of MODULES, set up for the step's host integers."""
        key = (number, rows, real, tokens, logits, dirty) if number == 0 else (number, rows, real, tokens)
        if key not in self.launches:
            self.launches[key] = self._set_up(number, rows, real, tokens, logits, dirty)
        for name, count in self.counts.items():
            count.copy_(getattr(self.state, name))
        self.launches[key]()

    def _set_up(self, number, rows, real, tokens, logits, dirty):
        at, state, step = self.point(MODULES[number], rows, real), self.state, self.step
        boundaries = {"query_start_loc": step.query_start_loc, "cu_num_logits": step.cu_num_logits[: rows + 1]}
        if number == 0:
            at = Point({**at, "dirty": dirty})
            x = step_prologue.Inputs(
                idx_mapping=step.idx_mapping[:rows],
                **boundaries,
                query_start_loc_cpu=torch.zeros(rows + 1, dtype=torch.int32),
                num_computed_tokens=state.num_computed_tokens,
                last_sampled_tokens=state.last_sampled_tokens,
                draft_tokens=state.draft_tokens,
                prompt_lens_device=state.prompt_lens,
                all_token_ids_device=state.all_token_ids,
                state_columns_before=state.state_columns,
                num_accepted_tokens_before=state.num_accepted_tokens,
                tables=self.tables,
                starts=self.table_starts,
                **self.groups,
                reach=self.reach,
                num_blocks_device=state.num_blocks,
                num_tokens=tokens,
                num_logits=logits,
            )
            out = self.before
        elif number == 1:
            x = step_epilogue.Inputs(
                idx_mapping=step.idx_mapping[:rows],
                **boundaries,
                seq_lens=self.before.seq_lens[:rows],
                num_sampled=step.num_sampled[:rows],
                sampled_tokens=step.sampled_tokens[:rows],
                **self.counts,
                output_bin_counts=None,
                next_prefill_tokens=self.before.next_prefill_tokens[0],
                state_columns_before=state.state_columns,
                prompt_lens_device=state.prompt_lens,
                prompt_lens_host=None,
                target_input_ids=self.before.input_ids,
                target_positions=self.before.positions,
                num_tokens=tokens,
            )
            out = self.after
        else:
            x = draft_passes.Inputs(
                idx_mapping=step.idx_mapping[:rows],
                seq_lens=self.before.seq_lens[:rows],
                num_rejected=self.after.num_rejected[:rows],
                tables=self.tables,
                table_starts=self.table_starts,
                **self.groups,
            )
            out = self.passes
        launch = self.variants[number].setup(at, x, out)
        if not self.graphs:
            return launch
        kept = [t for t in (*vars(state).values(), *vars(out).values()) if isinstance(t, torch.Tensor)]
        held = [t.clone() for t in kept]
        launch()  # compiles; what it wrote is taken back
        for tensor, before in zip(kept, held, strict=True):
            tensor.copy_(before)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            launch()
        return graph.replay


def fill(tensor: torch.Tensor, values: list, rest: int) -> None:
    tensor.copy_(torch.tensor(values + [rest] * (len(tensor) - len(values)), dtype=tensor.dtype))


def run_step(engine: Engine, device: Device) -> None:
    """One step: everything that a variant writes is what the engine knows."""
    engine.churn()
    rows = engine.schedule()
    device.write(engine.writes)
    engine.writes.clear()
    if not rows:
        return
    batch = next(size for size in CAPTURED if size >= len(rows))
    counts = [query for _, query in rows]
    logits = [query if request.computed >= request.prompt else 1 for request, query in rows]
    step, starts, logit_starts = device.step, [0], [0]
    for query, count in zip(counts, logits, strict=True):
        starts.append(starts[-1] + query)
        logit_starts.append(logit_starts[-1] + count)
    fill(step.idx_mapping, [request.slot for request, _ in rows], -1)
    fill(step.query_start_loc, starts, starts[-1])
    fill(step.cu_num_logits, logit_starts, logit_starts[-1])
    shape = (batch, len(rows), starts[-1], logit_starts[-1])
    device.launch(0, *shape, device.filled)
    device.filled = len(rows)
    check_prologue(engine, device, rows, batch, starts)

    produced = engine.sample(rows)
    padded = [tokens + [999] * (K + 1 - len(tokens)) for tokens in produced]
    step.sampled_tokens.copy_(torch.tensor(padded + [[999] * (K + 1)] * (SLOTS - len(rows))))
    fill(step.num_sampled, [len(tokens) for tokens in produced], 1)
    device.launch(1, *shape, 0)
    check_epilogue(engine, device, rows, batch, starts, produced)
    device.launch(2, *shape, 0)
    check_passes(device, rows)
    for request, _ in rows:
        request.drafts = engine.propose(request)
    device.state.draft_tokens[step.idx_mapping[: len(rows)]] = torch.tensor(
        [request.drafts for request, _ in rows], device=DEVICE
    )


def table_row(request, group: int, below: int = 0) -> list[int]:
    """Of attention: blocks below the window are null."""
    return [0 if column < below else block for column, block in enumerate(request.blocks[group])]


def slot_of(request, group: int, position: int) -> int:
    size = BLOCKS[group]
    return request.blocks[group][position // size] * size + position % size


def check_prologue(engine, device, rows, batch, starts) -> None:
    (out,), end = device.arena.on_host(device.before), starts[-1]
    lens = [request.computed + query for request, query in rows]
    equal("seq_lens", out.seq_lens, lens + [0] * (SLOTS - len(rows)))
    ids, drafted, positions = [], [], []
    for request, query in rows:
        first = request.computed
        known = request.tokens[first : first + query]
        ids += known + request.drafts[: query - len(known)]
        positions += range(first, first + query)
        drafted += ids[-query:] if first >= request.prompt else ids[-1:]
    equal("input_ids", out.input_ids[:end], ids)
    equal("positions", out.positions[:end], positions)
    equal("draft_sampled", out.draft_sampled[: len(drafted)], drafted)
    owners = [request for request, query in rows for _ in range(query)]
    for group in range(len(BLOCKS)):
        right = [slot_of(request, group, p) for request, p in zip(owners, positions, strict=True)]
        equal(f"slots of group {group}", out.slot_mappings[group], right + [-1] * (TOKENS - end))
    equal("slots of states", out.slot_mappings[2], [-1] * TOKENS)
    tables = slots.group_tables(device.point(step_prologue, batch, len(rows)), out.block_tables)
    for b, (request, _) in enumerate(rows):
        equal("table", tables[0][b, : len(request.blocks[0])], table_row(request, 0))
        below = max(request.computed - WINDOW, 0) // BLOCKS[1]
        equal("table with a window", tables[1][b, : len(request.blocks[1])], table_row(request, 1, below))
    for table in tables:
        equal("table of padding", table[len(rows) : batch].flatten(), [0] * table[len(rows) : batch].numel())

    move_states(engine, out.moves, rows, batch)
    accepted, state_slots = out.batch_accepted.tolist(), out.state_slots[0].tolist()
    equal("mask", out.mask[:batch], [True] * len(rows) + [False] * (batch - len(rows)))
    equal("state slots of padding", out.state_slots[0, len(rows) : batch], [[0] * (K + 1)] * (batch - len(rows)))
    for b, (request, query) in enumerate(rows):
        read = state_slots[b][accepted[b] - 1]
        if request.computed and engine.states.get(read) != (request.name, request.computed):
            raise WrongStep(
                f"request {request.name} reads {engine.states.get(read)}, not its {request.computed} tokens"
            )
        for j in range(query) if request.computed >= request.prompt else ():
            engine.states[state_slots[b][j]] = (request.name, request.computed + j + 1)
        if request.computed < request.prompt:
            engine.states[state_slots[b][0]] = (request.name, request.computed + query)


def move_states(engine, moves, rows, batch) -> list[list[int]]:
    """Copies states as the rows' moves say; rows of padding have none."""
    moves = moves[:batch].tolist()
    for b, (source, target, shift) in enumerate(moves):
        if source < 0:
            continue
        if b >= len(rows):
            raise WrongStep(f"padding row {b} moves {(source, target, shift)}")
        blocks = rows[b][0].blocks[2]
        engine.states[blocks[target]] = engine.states.get(blocks[source + shift])
    return moves


def check_epilogue(engine, device, rows, batch, starts, produced) -> None:
    out, state = device.arena.on_host(device.after, device.state)
    sampled, rejected = [], []
    for (request, query), tokens in zip(rows, produced, strict=True):
        decodes = request.computed >= request.prompt
        counts = tokens if request.computed + query >= request.prompt else []
        sampled.append(len(counts))
        rejected.append(query - len(counts) if decodes else 0)
        request.computed += query - rejected[-1]
        request.tokens += counts
    equal("num_sampled", out.num_sampled[: len(rows)], sampled)
    equal("num_rejected", out.num_rejected[: len(rows)], rejected)
    computed, total, last = (
        state.num_computed_tokens.tolist(),
        state.total_len.tolist(),
        state.last_sampled_tokens.tolist(),
    )
    history, ids, pos, ends = (
        state.all_token_ids.tolist(),
        out.input_ids.tolist(),
        out.positions.tolist(),
        out.last_token_indices.tolist(),
    )
    for b, (request, query) in enumerate(rows):
        s, known = request.slot, len(request.tokens)
        equal(f"slot {s}", [computed[s], total[s], history[s][:known]], [request.computed, known, request.tokens])
        if sampled[b]:
            equal(f"the last token of slot {s}", last[s], request.tokens[-1])
        kept = query - rejected[b]
        first, end = request.computed - kept, starts[b] + kept
        equal(f"last_token_indices of row {b}", ends[b], end - 1)
        equal(f"what the drafter reads in row {b}", ids[starts[b] : end], request.tokens[first + 1 : first + kept + 1])
        equal(f"the drafter's positions of row {b}", pos[starts[b] : end], list(range(first, first + kept)))
    equal("tail of last_token_indices", out.last_token_indices[len(rows) :], [0] * (SLOTS - len(rows)))
    equal("boundaries", out.query_start_loc, starts + [starts[-1]] * (SLOTS + 1 - len(starts)))
    for b, (source, target, _) in enumerate(move_states(engine, out.moves, rows, batch)):
        if source < 0:
            continue
        request = rows[b][0]
        frozen = (request.name, request.computed // STATE_BLOCK * STATE_BLOCK)
        if frozen[1] != (target + 1) * STATE_BLOCK or engine.states[request.blocks[2][target]] != frozen:
            raise WrongStep(f"column {target} holds {engine.states[request.blocks[2][target]]}, not {frozen}")


def check_passes(device, rows) -> None:
    (out,), tail = device.arena.on_host(device.passes), SLOTS - len(rows)
    for i in range(1, K):
        ahead = [min(request.computed - 1 + i, MOST - 1) for request, _ in rows]
        equal("positions", out.positions[i - 1, : len(rows)], ahead)
        equal("lengths", out.seq_lens[i - 1], [min(request.computed + i, MOST) for request, _ in rows] + [0] * tail)
        equal("keys", out.sample_src_positions[i - 1, : len(rows)], [request.computed + i for request, _ in rows])
        for group in range(len(BLOCKS)):
            right = [slot_of(request, group, p) for (request, _), p in zip(rows, ahead, strict=True)]
            equal("slots", out.slot_mappings[i - 1, group], right + [-1] * tail)


def prepared(names: tuple[str, str, str], seed: int, graphs: bool = False) -> tuple[Engine, Device]:
    """names: a variant of each operator."""
    variants = [CATALOG.find(module.operator.name, name) for module, name in zip(MODULES, names, strict=True)]
    return Engine(seed), Device(variants, graphs)
