"""Recurrent states followed over thousands of decode steps: before each read a slot must hold exactly the computed
tokens.

A state is a counter: the request it belongs to and the tokens it has seen. The variants are set up once and driven
through their persistent buffers, as captured graphs are replayed: those of mamba_spec_metadata once per number of real
requests, from none to the whole batch. Rows of padding keep the inputs of a larger step. The anchors, and the pools of
states, are one array for input and output.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from spec_decode_bench.baselines.mamba_spec_metadata import operator as mamba_spec_metadata
from spec_decode_bench.baselines.mamba_state_copy import operator as mamba_state_copy
from spec_decode_bench.baselines.mamba_state_gather import operator as mamba_state_gather
from spec_decode_bench.harness.discover import discover
from tests.baselines.mamba_traffic import GEOMETRIES, ROWS, Request, Traffic, fill, fill_step, point_of
from tests.baselines.random_batches import legal_point
from tests.runnable import DEVICE, defective, healthy, on_device
from tests.tier import FULL, few

#: What outputs hold from the start, and must keep in rows past the batch.
LEFT = -7


class WrongState(AssertionError):
    """A step read a slot that does not hold the state of its request after the computed tokens, or touched a row of
    nobody.
    """


class Metadata:
    """Slots of a step from a variant of mamba_spec_metadata; its anchors stay on the device. A launch per number of
    real requests.
    """

    def __init__(self, variant, traffic: Traffic, mode: str = "all") -> None:
        operator = mamba_spec_metadata.operator
        point = point_of(operator, traffic, cache_mode=mode)
        self.x, self.out, self.mode = (
            on_device(operator.make_inputs(point, 0)),
            on_device(operator.outputs.empty(point)),
            mode,
        )
        for buffer in vars(self.out).values():
            if buffer is not None:
                buffer.fill_(LEFT)
        if mode == "all":
            self.x = replace(self.x, anchors=self.out.next_anchors)
            self.x.anchors.fill_(-1)
        self.launches = [
            variant.setup(point, replace(self.x, num_decodes=count), self.out) for count in range(ROWS + 1)
        ]

    def __call__(self, rows):
        real = [request for request, _ in filter(None, rows)]
        fill_step(self.x, rows)
        fill(self.x.request_slots[: len(real)], [request.slot for request in real])
        fill(self.x.fresh[: len(real)], [request.fresh for request in real])
        self.launches[len(real)]()
        out = self.out
        reads, accepted = self._rows(out.input_slots), self._rows(out.num_accepted_tokens)
        if self.mode == "all":
            slots = map(self._rows, (out.output_slots, out.conv_input_slot, out.conv_output_slot))
        else:
            slots = reads, [row[0] for row in reads], [row[0] for row in reads]
        return zip(reads, *slots, accepted, strict=True)

    def _rows(self, buffer: torch.Tensor) -> list:
        values = buffer.tolist()
        if any(row not in (LEFT, [LEFT] * buffer.shape[-1]) for row in values[ROWS:]):
            raise WrongState(f"rows past the batch hold {values[ROWS:]}")
        return values[:ROWS]


class Gather:
    """The same from a variant of mamba_state_gather; the host keeps the anchors, and padding rows have NULL slots."""

    def __init__(self, variant, traffic: Traffic) -> None:
        operator = mamba_state_gather.operator
        point = point_of(operator, traffic, num_layers=2)
        self.x, self.out = on_device(operator.make_inputs(point, 0)), on_device(operator.outputs.empty(point))
        self.launch, self.block_size = variant.setup(point, self.x, self.out), traffic.block_size

    def __call__(self, rows):
        size = self.block_size
        fill_step(self.x, rows)
        self.x.state_indices[sum(row is not None for row in rows) :] = 0
        computed = [max(row[0].computed - 1, 0) // size if row else 0 for row in rows]
        fill(self.x.block_idx_last_computed_token, computed)
        previous = [
            row[0].column if row and row[0].column >= 0 else last for row, last in zip(rows, computed, strict=True)
        ]
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


def check_padding(step: int, *slots, accepted: int) -> None:
    if any(any(several) for several in slots) or accepted != 1:
        raise WrongState(f"step {step}: a padding row has slots {slots}, accepted {accepted}")


# --- modes all and none -----------------------------------------------------------------------------------------------


def run_slots(slots_of, traffic: Traffic, steps: int, keeps_blocks: bool) -> int:
    """Follow states through the slots of a Metadata or a Gather; the steps that began with a rejected draft. Raises
    WrongState.

    keeps_blocks: a prompt's state is in the column of its last block (mode all), else in the first one (none).
    """
    block_size, rejected = traffic.block_size, 0
    ssm: dict[int, tuple[int, int]] = {}  # slot -> (request, tokens)
    conv: dict[int, tuple[int, int]] = {}  # slot -> (request, tokens before the step that wrote it)
    for step in range(steps):
        for request in traffic.admit():
            slot = request.states[(request.computed - 1) // block_size if keeps_blocks else 0]
            ssm[slot], conv[slot] = (request.id, request.computed), (request.id, request.computed - 1)
        rows = traffic.rows()
        for row, (reads, writes, conv_read, conv_write, accepted) in zip(rows, slots_of(rows), strict=True):
            if row is None:
                check_padding(step, reads, writes, (conv_read, conv_write), accepted=accepted)
                continue
            request, tokens = row
            here = f"step {step}, request {request.id}, {request.computed} computed tokens, block size {block_size}"
            if ssm.get(reads[accepted - 1]) != (request.id, request.computed):
                raise WrongState(f"{here}: the SSM slot holds {ssm.get(reads[accepted - 1])}")
            owner, before = conv.get(conv_read, (None, 0))
            if (owner, before + accepted) != (request.id, request.computed):
                raise WrongState(
                    f"{here}: the convolution's slot holds request {owner} after {before + accepted} tokens"
                )
            for j in range(tokens):
                ssm[writes[j]] = (request.id, request.computed + j + 1)
            conv[conv_write] = (request.id, request.computed)
            request.accepted, request.fresh = traffic.accept(tokens), False
            request.computed += request.accepted
            rejected += request.accepted < tokens
    return rejected


def run_metadata(variant, block_size: int, steps: int, mode: str = "all", seed: int = 0, traffic_class=Traffic) -> int:
    traffic = traffic_class(seed, block_size)
    return run_slots(Metadata(variant, traffic, mode), traffic, steps, keeps_blocks=mode == "all")


def run_gather(variant, block_size: int, steps: int, seed: int = 0) -> int:
    traffic = Traffic(seed, block_size)
    return run_slots(Gather(variant, traffic), traffic, steps, keeps_blocks=True)


# --- mode align -------------------------------------------------------------------------------------------------------

CHANNELS, WORDS, TAPS = 2, 1, 3


def token(request: Request, position: int) -> int:
    """What the convolution saw at a position; 0 before the prompt."""
    return (request.id * 251 + position) % 32000 + 1 if position > 0 else 0


def state(request: Request, tokens: int) -> int:
    return request.id * 10000 + tokens


def run_align(
    copy_variant, metadata, block_size: int, steps: int, seed: int = 0, layout: str = "SD", layers: int = 2
) -> tuple[int, int]:
    """Both copies of every step by one variant, inside one pool, and the slots between them by a variant of
    mamba_spec_metadata; how many requests moved on into another block and how many left a state at a block's end.
    Raises WrongState.
    """
    moved = left_behind = 0
    traffic, operator = Traffic(seed, block_size), mamba_state_copy.operator
    width, shape = TAPS + traffic.drafts, (layers, traffic.num_states)
    conv = torch.zeros(
        *shape, *((width, CHANNELS) if layout == "SD" else (CHANNELS, width)), dtype=torch.int16, device=DEVICE
    )
    ssm = torch.zeros(*shape, WORDS, dtype=torch.int32, device=DEVICE)
    # The forward pass is played on the host, on both pools at once: on a CPU, those of the device themselves.
    conv_host, ssm_host = conv.cpu(), ssm.cpu()
    columns_of = (
        (lambda slot: conv_host[:, slot]) if layout == "SD" else (lambda slot: conv_host[:, slot].transpose(1, 2))
    )
    windows, pools, phases = Metadata(metadata, traffic, "align"), {"conv_states": conv, "ssm_states": ssm}, {}
    for phase in ("before_forward", "after_sampling"):
        axes = {
            "num_layers": layers,
            "conv_dim": CHANNELS,
            "ssm_state_bytes": 4 * WORDS,
            "conv_layout": layout,
            "phase": phase,
        }
        point = point_of(operator, traffic, **axes)
        x, out = on_device(operator.make_inputs(point, 0)), on_device(operator.outputs.empty(point))
        x, out = type(x)(**vars(x) | pools), type(out)(**vars(out) | pools)
        phases[phase] = (x, out, copy_variant.setup(point, x, out))

    def write(request: Request, slots: list[int], first: int, last: int) -> None:
        """SSM states after ``first`` .. ``last`` tokens, a slot each, and the convolution's inputs in the first
        slot.
        """
        for slot, tokens in zip(slots, range(first, last + 1), strict=False):
            ssm_host[:, slot] = state(request, tokens)
        seen = [token(request, position) for position in range(first - TAPS + 1, last + 1)]
        columns_of(slots[0])[:, : len(seen)] = torch.tensor(seen, dtype=torch.int16)[None, :, None]

    def check(here: str, request: Request, slots: list[int], offset: int, tokens: int) -> None:
        held = ssm_host[:, slots[offset]].flatten().tolist()
        if held != [state(request, tokens)] * layers * WORDS:
            raise WrongState(f"{here}: the SSM slots hold {held}, expected {state(request, tokens)}")
        window = columns_of(slots[0])[:, offset : offset + TAPS].tolist()
        expected = [token(request, position) for position in range(tokens - TAPS + 1, tokens + 1)]
        if any([values[c] for values in layer] != expected for layer in window for c in range(CHANNELS)):
            raise WrongState(f"{here}: the convolution's window holds {window}, expected {expected}")

    def copy(phase: str, rows) -> tuple:
        x, out, launch = phases[phase]
        real = [row for row in rows if row]
        fill_step(x, rows)
        x.seq_lens[len(real) :] = 0
        fill(x.state_columns[: len(real)], [request.column for request, _ in real])
        fill(x.num_draft_tokens[: len(real)], [tokens - 1 for _, tokens in real])
        x.sync_host_copies()
        conv.copy_(conv_host)
        ssm.copy_(ssm_host)
        launch()
        conv_host.copy_(conv)
        ssm_host.copy_(ssm)
        columns = out.state_columns if phase == "before_forward" else x.state_columns
        for (request, _), accepted, column in zip(
            real, out.num_accepted_tokens.tolist(), columns.tolist(), strict=False
        ):
            request.accepted, request.column = accepted, column

    for step in range(steps):
        for request in traffic.admit():
            write(request, request.states[(request.computed - 1) // block_size :], request.computed, request.computed)
        rows = traffic.rows()
        before = {r.id: r.column if r.column >= 0 else (r.computed - 1) // block_size for r, _ in filter(None, rows)}
        copy("before_forward", rows)
        sampled = {}
        for row, (slots, _, _, _, accepted) in zip(rows, list(windows(rows)), strict=True):
            if row is None:
                check_padding(step, slots, accepted=accepted)
                continue
            request, tokens = row
            here = f"step {step}, request {request.id}, {request.computed} computed tokens, block size {block_size}"
            moved += request.column != before[request.id]
            check(here, request, slots, accepted - 1, request.computed)
            write(request, slots, request.computed + 1, request.computed + tokens)
            request.accepted = sampled[request.id] = traffic.accept(tokens)
        copy("after_sampling", rows)
        for request, _ in filter(None, rows):
            computed, request.computed = request.computed, request.computed + sampled[request.id]
            aligned = request.computed // block_size * block_size
            if aligned > computed:
                left_behind += 1
                here = f"step {step}, request {request.id}, the block's end at {aligned} tokens"
                check(here, request, request.states[aligned // block_size - 1 :], 0, aligned)
    return moved, left_behind


# --- tests ------------------------------------------------------------------------------------------------------------

#: Steps of a variant at each of the block sizes.
STEPS = 1000 if FULL else 250
BLOCK_SIZES = pytest.mark.parametrize("block_size", few(GEOMETRIES, 2))
CHAIN, COPIES = (
    discover().find(*name) for name in (("mamba_spec_metadata", "op_chain"), ("mamba_state_copy", "masked_chain"))
)


def each(variants):
    return pytest.mark.parametrize("variant", variants, ids=lambda v: v.name)


def steps_of(variant, interpreted: int) -> int:
    """``interpreted``: where Triton's interpreter runs it, a hundred times slower than a chain."""
    interpreted = interpreted if FULL else interpreted // 4
    return interpreted if DEVICE == "cpu" and variant.folder == "kernels" else STEPS


@BLOCK_SIZES
@each(healthy("mamba_spec_metadata"))
def test_every_read_of_mode_all_finds_its_state(variant, block_size):
    steps = steps_of(variant, 250)
    assert run_metadata(variant, block_size, steps, seed=0) > steps


@BLOCK_SIZES
@each(healthy("mamba_spec_metadata"))
def test_every_read_of_mode_none_finds_its_state(variant, block_size):
    steps = steps_of(variant, 200)
    assert run_metadata(variant, block_size, steps, "none", seed=0) > steps


@BLOCK_SIZES
@each(healthy("mamba_state_gather"))
def test_every_read_through_gathered_slots_finds_its_state(variant, block_size):
    steps = steps_of(variant, 500)
    assert run_gather(variant, block_size, steps, seed=0) > steps


def check_align(copy_variant, metadata, block_size: int, steps: int, layers: int) -> None:
    """A request moves in every sixth step at least, also where a block is much longer than what is decoded."""
    layout = "DS" if block_size == 4 else "SD"
    moved, left_behind = run_align(copy_variant, metadata, block_size, steps, 0, layout, layers)
    assert min(moved, left_behind) > steps // 6


@BLOCK_SIZES
@each(healthy("mamba_state_copy"))
def test_every_read_of_mode_align_finds_its_state(variant, block_size):
    # Where each block is one token long every request moves in every step.
    steps = steps_of(variant, 60 if block_size == 1 else 120)
    check_align(variant, CHAIN, block_size, steps, layers=2 if steps == STEPS else 1)


@BLOCK_SIZES
@each([v for v in healthy("mamba_spec_metadata") if v is not CHAIN])
def test_every_window_of_mode_align_finds_its_state(variant, block_size):
    check_align(COPIES, variant, block_size, steps_of(variant, 200), layers=2)


class Unreset(Traffic):
    """The engine forgets that a resumed request has its state in the first slot again (vLLM #52942)."""

    def admit(self):
        counts = {request.id: request.accepted for request in self.preempted + self.running}
        for request in super().admit():
            request.accepted = counts.get(request.id, 1)
            yield request


@BLOCK_SIZES
@pytest.mark.parametrize("mode", ["all", "none"])
def test_a_resumed_request_that_keeps_its_count_reads_a_stale_state(mode, block_size):
    with pytest.raises(WrongState, match="the SSM slot holds"):
        run_metadata(CHAIN, block_size, 400, mode, traffic_class=Unreset)


@BLOCK_SIZES
@each(defective("mamba_spec_metadata"))
def test_defects_of_the_metadata_lose_a_state(variant, block_size):
    with pytest.raises(WrongState):
        run_metadata(variant, block_size, 400)


@BLOCK_SIZES
@each(
    [
        v
        for v in defective("mamba_spec_metadata")
        if not v.skip(mamba_spec_metadata.operator.complete({"cache_mode": "none"}))
    ]
)
def test_defects_of_all_modes_are_seen_in_each(variant, block_size):
    with pytest.raises(WrongState):
        run_metadata(variant, block_size, 400, "none")
    with pytest.raises(WrongState):
        run_align(COPIES, variant, block_size, 400)


@BLOCK_SIZES
@each(defective("mamba_state_gather"))
def test_defects_of_the_gather_lose_a_state(variant, block_size):
    with pytest.raises(WrongState):
        run_gather(variant, block_size, 400)


#: Defects of state by slot do not show in this machine, whose state is by row.
BY_SLOT = legal_point(mamba_state_copy.operator, {"state": "slots", "phase": "after_sampling"})


@BLOCK_SIZES
@each([v for v in defective("mamba_state_copy") if v.skip(BY_SLOT) is not None])
def test_defects_of_the_copy_lose_a_state(variant, block_size):
    with pytest.raises(WrongState):
        run_align(variant, CHAIN, block_size, 600, layout="DS" if variant.name == "shifted_as_contiguous" else "SD")
