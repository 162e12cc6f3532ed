"""Captured once, replayed for many steps: does a graph of a launch do in every one of them what an eager launch does?

The steps are run eagerly first, each proved against the scalar reference, and what they leave in the outputs is kept.
Then one graph for every size of step is captured, and the graphs are replayed through the same steps again and again.
In front of each, as between two steps of a server, the inputs are rewritten in place; the outputs are poisoned, or keep
what the step before left; and tensors as large as the outputs are allocated, overwritten and freed, so that memory a
graph reads without owning it belongs to somebody else (vLLM #35175: right tokens at first, garbage after about fifty).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.checks import Mismatch
from harness.contract import Operator, Point, Variant
from harness.verify.buffers import POISONS, any_of, as_integers
from harness.verify.fixture import Fixture, synchronize
from harness.verify.mismatch import places
from harness.wording import first_line

#: Replays of one proof.
STEPS = 200
#: Tensors that are alive at a time of those allocated between the steps, and the bytes they are filled with.
LITTER, LITTER_BYTE = 4, 0x2B

#: Makes a graph of one launch and returns what replays it.
Capture = Callable[[Callable[[], Any]], Callable[[], Any]]


@dataclass(frozen=True, eq=False)
class Size:
    """One size of step: its bench, and a launch that was set up on it."""

    bench: Fixture
    launch: Callable[[], Any]


@dataclass(frozen=True, eq=False)
class Step:
    """One step, by what is done before it and what it has to leave behind.

    poison:  None leaves the outputs as the step before left them.
    eager:   what the eager launch left in the outputs on the device, as integers.
    unread:  elements of them that no consumer reads: they were held to the reference, but may differ from launch to launch.
    """

    size: Size
    case: int
    poison: int | None
    eager: dict[str, Tensor]
    unread: dict[str, Tensor]

    def prepare(self) -> None:
        self.size.bench.fill(self.case)
        if self.poison is not None:
            self.size.bench.outputs.poison(self.poison)

    def compare(self) -> None:
        """Raises Mismatch where an output is not what the eager launch made of it, bit for bit."""
        now = {name: as_integers(self.size.bench.outputs.buffers[name].tensor) for name in self.eager}
        wrong = {name: now[name] != eager for name, eager in self.eager.items()}
        for name, unread in self.unread.items():
            wrong[name][tuple(slice(size) for size in unread.shape)] &= ~unread
        if not any_of(flags.any() for flags in wrong.values()):
            return
        name = next(name for name, flags in wrong.items() if bool(flags.any()))
        got = self.size.bench.outputs.buffers[name].tensor
        # Where it was poisoned, an element that is wrong and still poison is as it was before the replay.
        where = places(wrong[name], self.eager[name].view(got.dtype), got, got if self.poison is not None else None)
        raise Mismatch("graph_safe", f"{name} is not what an eager launch leaves there on the same contents; {where}")


def check_replays(sizes: Sequence[Size], capture: Capture, steps: int = STEPS) -> None:
    """Raises Mismatch.

    sizes: in the order a server meets them; all share the outputs of the first, one that comes again is the same object.
    """
    # Every size on one content after another: twice under fresh poison, then on what the step before left.
    rounds = ((0, POISONS[0]), (1, POISONS[1]), (2, None))
    period = [_eagerly(size, case, poison) for case, poison in rounds for size in sizes]
    replays = {size: _captured(size, capture) for size in dict.fromkeys(sizes)}
    litter: deque[Tensor] = deque(maxlen=LITTER)
    for number in range(steps):
        step = period[number % len(period)]
        step.prepare()
        _drop(litter, step.size.bench, number)
        replays[step.size]()
        synchronize(step.size.bench.device)
        try:
            step.compare()
        except Mismatch as mismatch:
            raise Mismatch(mismatch.check, f"replay {number + 1} of {steps}: {mismatch.args[0]}") from None
    for size in replays:  # canaries and inputs too
        try:
            size.bench.check(replays[size], case=0, poison=POISONS[0], replayed=True)
        except Mismatch as mismatch:
            raise Mismatch(mismatch.check, f"after {steps} replays: {mismatch.args[0]}") from None
    sizes[0].bench.held.add("graph_safe")


def replay_sequence(
    operator: Operator,
    variant: Variant,
    points: Sequence[Point],
    device: str,
    seed: int,
    capture: Capture,
    held: set[str],
) -> None:
    """Steps of different sizes, a graph for each, through the outputs of the first, largest point. Raises Mismatch."""
    sizes: list[Size] = []
    for step, point in enumerate(points):
        size = next((known for known in sizes if known.bench.point == point), None)
        if size is None:
            outputs = sizes[0].bench.outputs if sizes else None
            bench = Fixture(operator, point, device, seed + step, outputs=outputs, held=held)
            size = Size(bench, bench.setup(variant))
        sizes.append(size)
    check_replays(sizes, capture)


def _eagerly(size: Size, case: int, poison: int | None) -> Step:
    """The step run by an eager launch, proved, and kept."""
    bench = size.bench
    bench.check(size.launch, case, poison)
    kept = {
        name: buffer.tensor
        for name, buffer in bench.outputs.buffers.items()
        if buffer.tensor.device.type == bench.device
    }
    eager = {name: as_integers(tensor).clone() for name, tensor in kept.items()}
    unread = {n: e.slack for n, e in bench.cases[case].expected.items() if n in kept and e.slack is not None}
    return Step(size, case, poison, eager, unread)


def _captured(size: Size, capture: Capture) -> Callable[[], Any]:
    try:
        return capture(size.launch)
    except Mismatch:
        raise
    except Exception as error:  # whatever a variant or the driver raises under capture
        why = f'it cannot be captured in a CUDA graph ({first_line(error)}); make it so, or declare waives="graph_safe"'
        raise Mismatch("graph_safe", why) from None


def _drop(litter: deque[Tensor], bench: Fixture, number: int) -> None:
    """What a server does between two steps: memory given back before is allocated, overwritten, and given back again
    later.
    """
    sizes = [buffer.tensor.numel() * buffer.tensor.element_size() for buffer in bench.outputs.buffers.values()]
    litter.append(
        torch.full((max(sizes[number % len(sizes)], 1),), LITTER_BYTE, dtype=torch.uint8, device=bench.device)
    )
