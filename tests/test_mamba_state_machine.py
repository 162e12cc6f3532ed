"""Recurrent states followed over thousands of decode steps: before each read a slot must hold exactly the computed tokens.

A state is a counter: the request it belongs to and the tokens it has seen. Requests accept drafts at random, cross blocks,
finish, pause, are preempted and resumed in other slots, and move between batch rows. The variants are set up once and driven
through their persistent buffers, as a captured graph is replayed; the anchors, and the pools of states, are one array for
input and output.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from baselines import mamba_spec_metadata, mamba_state_copy, mamba_state_gather
from baselines._axes import cdiv
from tests.mamba_batches import on_device
from tests.runnable import DEVICE, defective, healthy

ROWS = 5
#: Mamba block size -> (drafts, longest sequence). Most sequences end after a few dozen tokens.
GEOMETRIES = {1: (5, 40), 4: (2, 50), 16: (3, 100), 1024: (5, 2100)}
NULL = 0


class WrongState(AssertionError):
    """A step read a slot that does not hold the state of its request after the computed tokens."""


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
    """Which requests are in which row of the next step. Slots are handed out last in, first out: the next owner is soon there."""

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
                if self.rng.random() < 0.5:  # close to the end of a block
                    prompt = min(max(prompt // self.block_size * self.block_size - self.rng.randint(-2, 6), 1), self.longest - 1)
                self.born += 1
                request = Request(self.born, prompt, min(prompt + self.rng.randint(1, 60), self.longest))
            request.slot, request.fresh, request.accepted, request.column = self.free_slots.pop(), True, 1, -1
            request.states = tuple(self.free_states.pop() for _ in range(self.columns))
            self.running.append(request)
            yield request

    def rows(self) -> list[tuple[Request, int] | None]:
        """(request, its tokens of this step) of each batch row in a new order; None is a padding row, a pausing request has none."""
        scheduled = []
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
    target.copy_(torch.tensor(values, dtype=target.dtype))


def fill_step(x, rows, columns: int) -> None:
    """What all inputs have in common: lengths and the table."""
    if hasattr(x, "seq_lens"):
        fill(x.seq_lens, [row[0].computed + row[1] if row else 0 for row in rows])
        starts = [0]
        for row in rows:
            starts.append(starts[-1] + (row[1] if row else 0))
        fill(x.query_start_loc, starts)
        fill(x.num_accepted_tokens, [row[0].accepted if row else 1 for row in rows])
    table = x.state_indices if hasattr(x, "state_indices") else x.block_table
    fill(table, [row[0].states if row else (NULL,) * columns for row in rows])


def point_of(operator, traffic: Traffic, **axes):
    geometry = {"num_speculative_blocks": traffic.drafts, "mamba_block_size": traffic.block_size, "max_model_len": traffic.longest}
    sizes = {"batch_size": ROWS, "context_len": traffic.drafts + 1, "max_num_seqs": len(traffic.free_slots)}
    return operator.complete(geometry | sizes | axes)


# --- mode all ---------------------------------------------------------------------------------------------------------


class Metadata:
    """Slots of a step from a variant of mamba_spec_metadata; its anchors stay on the device."""

    def __init__(self, variant, traffic: Traffic) -> None:
        operator = mamba_spec_metadata.operator
        point = point_of(operator, traffic)
        self.x, self.out = on_device(operator.make_inputs(point, 0)), on_device(operator.make_outputs(point))
        self.x = mamba_spec_metadata.Inputs(**vars(self.x) | {"anchors": self.out.next_anchors})
        self.x.anchors.fill_(-1)
        self.launch, self.columns = variant.setup(point, self.x, self.out), traffic.columns

    def __call__(self, rows):
        fill_step(self.x, rows, self.columns)
        fill(self.x.request_slots, [row[0].slot if row else 0 for row in rows])
        fill(self.x.fresh, [row is not None and row[0].fresh for row in rows])
        self.launch()
        fields = (
            self.out.input_slots, self.out.output_slots, self.out.conv_input_slot, self.out.conv_output_slot, self.out.num_accepted_tokens
        )  # fmt: skip
        return zip(*(field[:ROWS].tolist() for field in fields), strict=True)


class Gather:
    """The same from a variant of mamba_state_gather; the host keeps the anchors."""

    def __init__(self, variant, traffic: Traffic) -> None:
        operator = mamba_state_gather.operator
        point = point_of(operator, traffic, num_layers=2)
        self.x, self.out = on_device(operator.make_inputs(point, 0)), on_device(operator.make_outputs(point))
        self.launch, self.traffic = variant.setup(point, self.x, self.out), traffic

    def __call__(self, rows):
        size = self.traffic.block_size
        fill_step(self.x, rows, self.traffic.columns)
        computed = [max(row[0].computed - 1, 0) // size if row else 0 for row in rows]
        fill(self.x.block_idx_last_computed_token, computed)
        previous = [row[0].column if row and row[0].column >= 0 else last for row, last in zip(rows, computed, strict=True)]
        fill(self.x.block_idx_last_scheduled_token_prev_step, previous)
        scheduled = [(row[0].computed + row[1] - 1) // size if row else 0 for row in rows]
        fill(self.x.block_idx_last_scheduled_token, scheduled)
        for row, column in zip(rows, scheduled, strict=True):
            if row:
                row[0].column = column
        handed_on = self.launch() or vars(self.out)
        reads, writes = handed_on["input_slots"][:ROWS].tolist(), handed_on["output_slots"][:ROWS].tolist()
        accepted = [row[0].accepted if row else 1 for row in rows]
        return zip(reads, writes, [r[0] for r in reads], [w[0] for w in writes], accepted, strict=True)


def run_all_states(driver_class, variant, block_size: int, steps: int, seed: int = 0) -> None:
    """Raises WrongState."""
    traffic = Traffic(seed, block_size)
    slots_of = driver_class(variant, traffic)
    ssm: dict[int, tuple[int, int]] = {}  # slot -> (request, tokens)
    conv: dict[int, tuple[int, int]] = {}  # slot -> (request, tokens before the step that wrote it)
    for step in range(steps):
        for request in traffic.admit():
            slot = request.states[(request.computed - 1) // block_size]
            ssm[slot], conv[slot] = (request.id, request.computed), (request.id, request.computed - 1)
        rows = traffic.rows()
        for row, (reads, writes, conv_read, conv_write, accepted) in zip(rows, slots_of(rows), strict=True):
            if row is None:
                if any(reads) or any(writes) or accepted != 1:
                    raise WrongState(f"step {step}: a padding row has slots {reads}, {writes}, accepted {accepted}")
                continue
            request, tokens = row
            here = f"step {step}, request {request.id}, {request.computed} computed tokens, block size {block_size}"
            if ssm.get(reads[accepted - 1]) != (request.id, request.computed):
                raise WrongState(f"{here}: the SSM slot holds {ssm.get(reads[accepted - 1])}")
            owner, before = conv.get(conv_read, (None, 0))
            if (owner, before + accepted) != (request.id, request.computed):
                raise WrongState(f"{here}: the convolution's slot holds request {owner} after {before + accepted} tokens")
            for j in range(tokens):
                ssm[writes[j]] = (request.id, request.computed + j + 1)
            conv[conv_write] = (request.id, request.computed)
            request.accepted, request.fresh = traffic.accept(tokens), False
            request.computed += request.accepted


# --- mode align -------------------------------------------------------------------------------------------------------

LAYERS, CHANNELS, WORDS, TAPS = 2, 2, 1, 3


def token(request: Request, position: int) -> int:
    """What the convolution saw at a position; 0 before the prompt."""
    return (request.id * 251 + position) % 32000 + 1 if position > 0 else 0


def state(request: Request, tokens: int) -> int:
    return request.id * 10000 + tokens


def run_align(variant, block_size: int, steps: int, seed: int = 0, layout: str = "SD") -> None:
    """Both copies of every step by one variant, inside one pool. Raises WrongState."""
    traffic, operator = Traffic(seed, block_size), mamba_state_copy.operator
    width, shape = TAPS + traffic.drafts, (LAYERS, traffic.num_states)
    conv = torch.zeros(*shape, *((width, CHANNELS) if layout == "SD" else (CHANNELS, width)), dtype=torch.int16, device=DEVICE)
    ssm = torch.zeros(*shape, WORDS, dtype=torch.int32, device=DEVICE)
    columns_of = (lambda slot: conv[:, slot]) if layout == "SD" else (lambda slot: conv[:, slot].transpose(1, 2))
    pools, phases = {"conv_states": conv, "ssm_states": ssm}, {}
    for phase in ("before_forward", "after_sampling"):
        axes = {"num_layers": LAYERS, "conv_dim": CHANNELS, "ssm_state_bytes": 4 * WORDS, "conv_layout": layout, "phase": phase}
        point = point_of(operator, traffic, **axes)
        x, out = on_device(operator.make_inputs(point, 0)), on_device(operator.make_outputs(point))
        x, out = type(x)(**vars(x) | pools), type(out)(**vars(out) | pools)
        phases[phase] = (x, out, variant.setup(point, x, out))

    def write(request: Request, column: int, first: int, last: int) -> None:
        """SSM states after ``first`` .. ``last`` tokens from a column on, and the convolution's inputs in that column."""
        for j, tokens in enumerate(range(first, last + 1)):
            ssm[:, request.states[column + j]] = state(request, tokens)
        seen = [token(request, position) for position in range(first - TAPS + 1, last + 1)]
        columns_of(request.states[column])[:, : len(seen)] = torch.tensor(seen, dtype=torch.int16, device=DEVICE)[None, :, None]

    def check(here: str, request: Request, column: int, offset: int, tokens: int) -> None:
        held = ssm[:, request.states[column + offset]].flatten().tolist()
        if held != [state(request, tokens)] * LAYERS * WORDS:
            raise WrongState(f"{here}: the SSM slots hold {held}, expected {state(request, tokens)}")
        window = columns_of(request.states[column])[:, offset : offset + TAPS].tolist()
        expected = [token(request, position) for position in range(tokens - TAPS + 1, tokens + 1)]
        if any([values[c] for values in layer] != expected for layer in window for c in range(CHANNELS)):
            raise WrongState(f"{here}: the convolution's window holds {window}, expected {expected}")

    def copy(phase: str, rows) -> tuple:
        x, out, launch = phases[phase]
        fill_step(x, rows, traffic.columns)
        fill(x.state_columns, [row[0].column if row else -1 for row in rows])
        fill(x.num_draft_tokens, [row[1] - 1 if row else 0 for row in rows])
        x.tell_host()
        launch()
        for b, row in enumerate(rows):
            if row:
                row[0].accepted = int(out.num_accepted_tokens[b])
                if phase == "before_forward":
                    row[0].column = int(out.state_columns[b])

    for step in range(steps):
        for request in traffic.admit():
            write(request, (request.computed - 1) // block_size, request.computed, request.computed)
        rows = traffic.rows()
        scheduled = [row for row in rows if row]
        copy("before_forward", rows)
        sampled = {}
        for request, tokens in scheduled:
            here = f"step {step}, request {request.id}, {request.computed} computed tokens, block size {block_size}"
            assert request.column == (request.computed + tokens - 1) // block_size
            check(here, request, request.column, request.accepted - 1, request.computed)
            write(request, request.column, request.computed + 1, request.computed + tokens)
            request.accepted = sampled[request.id] = traffic.accept(tokens)
        copy("after_sampling", rows)
        for request, _ in scheduled:
            before, request.computed = request.computed, request.computed + sampled[request.id]
            aligned = request.computed // block_size * block_size
            if aligned > before:
                here = f"step {step}, request {request.id}, the block's end at {aligned} tokens"
                check(here, request, aligned // block_size - 1, 0, aligned)


# --- tests ------------------------------------------------------------------------------------------------------------


def interpreted(variant) -> bool:
    return DEVICE == "cpu" and variant.origin.startswith("kernels")


@pytest.mark.parametrize("block_size", GEOMETRIES)
@pytest.mark.parametrize("variant", healthy("mamba_spec_metadata"), ids=lambda v: v.name)
def test_every_read_of_mode_all_finds_its_state(variant, block_size):
    run_all_states(Metadata, variant, block_size, 500 if interpreted(variant) else 2500)


@pytest.mark.parametrize("block_size", GEOMETRIES)
@pytest.mark.parametrize("variant", healthy("mamba_state_gather"), ids=lambda v: v.name)
def test_every_read_through_gathered_slots_finds_its_state(variant, block_size):
    run_all_states(Gather, variant, block_size, 500)


@pytest.mark.parametrize("block_size", GEOMETRIES)
@pytest.mark.parametrize("variant", healthy("mamba_state_copy"), ids=lambda v: v.name)
def test_every_read_of_mode_align_finds_its_state(variant, block_size):
    run_align(variant, block_size, 40 if interpreted(variant) else 500, layout="DS" if block_size == 4 else "SD")


#: What they do to rows that no request of the step owns is noticed by no state. Here num_decodes is the whole batch, and padding rows
#: hold nothing stale.
UNSEEN = {"padded_by_tokens", "padding_rows_kept", "padding_copied"}


@pytest.mark.parametrize("block_size", GEOMETRIES)
@pytest.mark.parametrize("variant", defective("mamba_spec_metadata"), ids=lambda v: v.name)
def test_defects_of_the_metadata_lose_a_state(variant, block_size):
    if variant.name in UNSEEN:
        run_all_states(Metadata, variant, block_size, 400)
    else:
        with pytest.raises(WrongState):
            run_all_states(Metadata, variant, block_size, 400)


@pytest.mark.parametrize("block_size", GEOMETRIES)
@pytest.mark.parametrize("variant", defective("mamba_state_gather"), ids=lambda v: v.name)
def test_defects_of_the_gather_lose_a_state(variant, block_size):
    with pytest.raises(WrongState):
        run_all_states(Gather, variant, block_size, 400)


@pytest.mark.parametrize("block_size", GEOMETRIES)
@pytest.mark.parametrize("variant", defective("mamba_state_copy"), ids=lambda v: v.name)
def test_defects_of_the_copy_lose_a_state(variant, block_size):
    run = lambda: run_align(variant, block_size, 600, layout="DS" if variant.name == "shifted_as_contiguous" else "SD")  # noqa: E731
    if variant.name in UNSEEN:
        run()
    else:
        with pytest.raises(WrongState):
            run()
