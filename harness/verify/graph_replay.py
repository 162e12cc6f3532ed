"""graph_safe: a graph captured once must do in each of many steps what an eager launch does.

The steps run eagerly first. Each is compared with the scalar reference, and what it leaves in the outputs is kept. Then
one graph per size of step is captured, and the graphs are replayed through the same steps again and again.

Before each replay, as between two steps of a server, the inputs are rewritten in place; the outputs are poisoned or
keep what the step before left; and tensors as large as the outputs are allocated, overwritten and freed. Memory that a
graph reads without owning it has been reused by then (vLLM #35175: the first tokens were right, after about fifty they
were garbage).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.contract import Operator, Point, Variant
from spec_decode_bench.harness.errors import first_line
from spec_decode_bench.harness.verify.buffers import POISONS, any_of, as_integers
from spec_decode_bench.harness.verify.equality import differences
from spec_decode_bench.harness.verify.fixture import Batch, Fixture, synchronize

#: Replays of a long check, and of a short one, which sees stale contents and most reuse of memory.
STEPS, FEW_STEPS = 200, 12
#: Tensors allocated between the steps that are alive at a time, and the byte they are filled with.
ALLOCATED, ALLOCATED_BYTE = 4, 0x2B

#: Captures a graph of one launch and returns its replay.
Capture = Callable[[Callable[[], Any]], Callable[[], Any]]


@dataclass(frozen=True, eq=False)
class BoundLaunch:
    """A launch, and the fixture it was set up on. Each has one size of step and gets one graph."""

    fixture: Fixture
    launch: Callable[[], Any]


@dataclass(frozen=True, eq=False)
class Step:
    """One step: what is done before it, and what it must leave in the outputs.

    poison:   None leaves the outputs as the step before left them.
    eager:    output on the device -> what the eager launch left in it, as integers.
    may_vary: output -> mask over the buffer of elements that no consumer reads. They may differ from launch to launch,
              and so may those that an earlier step left so and that this one must not touch.
    """

    bound: BoundLaunch
    batch: int
    poison: int | None
    eager: dict[str, Tensor]
    may_vary: dict[str, Tensor]

    def prepare(self) -> None:
        self.bound.fixture.fill(self.batch)
        if self.poison is not None:
            self.bound.fixture.outputs.poison(self.poison)

    def compare(self) -> None:
        """Raise Mismatch unless every output equals what the eager launch left, bit for bit."""
        buffers = self.bound.fixture.outputs.buffers
        wrong = {name: as_integers(buffers[name].tensor) != eager for name, eager in self.eager.items()}
        for name, may_vary in self.may_vary.items():
            wrong[name] &= ~may_vary
        if not any_of(flags.any() for flags in wrong.values()):
            return
        name = next(name for name, flags in wrong.items() if bool(flags.any()))
        got = buffers[name].tensor
        # Where the outputs were poisoned, a wrong element that still is poison is as it was before the replay.
        before = got if self.poison is not None else None
        difference = differences(name, wrong[name], self.eager[name].view(got.dtype), got, before)
        raise Mismatch("graph_safe", f"{name} differs from what an eager launch writes for the same inputs", difference)


def check_replays(launches: Sequence[BoundLaunch], capture: Capture, steps: int = STEPS) -> None:
    """Raise Mismatch unless graphs of the launches, replayed for ``steps`` steps, do what the launches do. Each launch
    is replayed on each of its contents at least once.

    launches: in the order of a server's steps. All share the outputs of the first; a size that comes again is the same
    object.
    """
    # Every launch on three batches: on two under fresh poison, on the third on top of what the step before left.
    rounds = ((0, POISONS[0]), (1, POISONS[1]), (2, None))
    period: list[Step] = []
    for batch, poison in rounds:
        for bound in launches:
            period.append(_run_eagerly(bound, batch, poison, period[-1] if period else None))
    replays = {bound: _capture(bound, capture) for bound in dict.fromkeys(launches)}
    allocated: deque[Tensor] = deque(maxlen=ALLOCATED)
    steps = max(steps, len(period))
    for number in range(steps):
        step = period[number % len(period)]
        step.prepare()
        allocated.append(_allocate(step.bound.fixture, number))  # and free the oldest
        replays[step.bound]()
        synchronize(step.bound.fixture.device)
        try:
            step.compare()
        except Mismatch as mismatch:
            raise mismatch.within(f"replay {number + 1} of {steps}") from None
    for bound, replay in replays.items():  # with canaries and inputs
        try:
            bound.fixture.check(replay, batch=0, poison=POISONS[0], replayed=True)
        except Mismatch as mismatch:
            raise mismatch.within(f"after {steps} replays") from None
    launches[0].fixture.passed_checks.add("graph_safe")


def replay_sequence(
    operator: Operator,
    variant: Variant,
    points: Sequence[Point],
    device: str,
    seed: int,
    capture: Capture,
    passed_checks: set[str],
    known: dict[Any, Batch] | None = None,
    steps: int = STEPS,
) -> None:
    """check_replays over steps of different sizes, through the outputs of the first, largest point. known: as in
    Fixture.
    """
    launches: list[BoundLaunch] = []
    for point in points:
        bound = next((earlier for earlier in launches if earlier.fixture.point == point), None)
        if bound is None:
            outputs = launches[0].fixture.outputs if launches else None
            fixture = Fixture(operator, point, device, seed, outputs=outputs, passed_checks=passed_checks, known=known)
            bound = BoundLaunch(fixture, fixture.setup(variant))
        launches.append(bound)
    check_replays(launches, capture, steps)


def _run_eagerly(bound: BoundLaunch, batch: int, poison: int | None, before: Step | None) -> Step:
    """Run the step with an eager launch, compare it with the reference, and keep what it left."""
    fixture = bound.fixture
    fixture.check(bound.launch, batch, poison)
    on_device = {
        name: buffer.tensor
        for name, buffer in fixture.outputs.buffers.items()
        if buffer.tensor.device.type == fixture.device
    }
    eager = {name: as_integers(tensor).clone() for name, tensor in on_device.items()}
    may_vary = {}
    for name, expected in fixture.batches[batch].expected.items():
        left = before.may_vary.get(name) if before is not None and poison is None else None
        if name not in on_device or (left is None and expected.may_vary is None):
            continue
        may_vary[name] = torch.zeros_like(eager[name], dtype=torch.bool) if left is None else left.clone()
        inside = may_vary[name][tuple(slice(size) for size in expected.value.shape)]
        inside &= False if expected.untouched is None else expected.untouched
        if expected.may_vary is not None:
            inside |= expected.may_vary
    return Step(bound, batch, poison, eager, may_vary)


def _capture(bound: BoundLaunch, capture: Capture) -> Callable[[], Any]:
    try:
        return capture(bound.launch)
    except Mismatch:
        raise
    except Exception as error:  # whatever a variant or the driver raises under capture
        message = f"it cannot be captured in a CUDA graph ({first_line(error)}); make it capturable, or declare "
        raise Mismatch("graph_safe", f'{message}waives="graph_safe"') from None


def _allocate(fixture: Fixture, number: int) -> Tensor:
    """A tensor as large as one of the outputs, each in its turn, filled with ALLOCATED_BYTE."""
    sizes = [buffer.tensor.nbytes for buffer in fixture.outputs.buffers.values()]
    shape = (max(sizes[number % len(sizes)], 1),)
    return torch.full(shape, ALLOCATED_BYTE, dtype=torch.uint8, device=fixture.device)
