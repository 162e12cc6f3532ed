"""Is a variant right? Exact equality with the scalar reference, over whole buffers, before any timing.

For one cell: outputs are poisoned after set-up and the inputs' contents replaced, so that nothing computed early helps;
then launch, compare, launch on top of the first result, poison again under the same inputs (a launch that remembers its
inputs fails here), then other inputs under another poison. After each launch inputs, canaries and the process's
settings must be as before. On a GPU one more launch is queued with its inputs behind a sleeping kernel: work beside the
launching stream runs too early.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from harness.checks import Mismatch
from harness.contract import Expected, Operator, Point, Variant
from harness.verify.buffers import POISONS, Guard, any_of, as_integers
from harness.verify.equality import compare, required
from harness.verify.integrity import ProcessState
from harness.verify.mismatch import places

#: GPU clock cycles that the queue sleeps while inputs and launch are queued: about two milliseconds.
SLEEP_CYCLES = 4_000_000


class Case:
    """One batch with what the reference says of it, which is asked when it is first needed; shared by all variants of a
    point.

    inputs: on the CPU. devices: output -> where ``expected`` is wanted.
    """

    def __init__(self, operator: Operator, point: Point, inputs: Any, devices: Mapping[str, torch.device]) -> None:
        self._operator, self._point, self._devices = operator, point, devices
        self.inputs = inputs

    @cached_property
    def expected(self) -> Mapping[str, Expected]:
        said = self._operator.reference(self._point, self.inputs)
        return {
            name: Expected(*(None if t is None else t.to(self._devices[name]) for t in (e.value, e.untouched, e.slack)))
            for name, e in said.items()
        }

    @cached_property
    def demanding(self) -> bool:
        """Whether there is something that a launch must write."""
        return any_of(required(one).any() for one in self.expected.values())


class Fixture:
    """Inputs and outputs of one operator at one point, under guard, with cases to put into them.

    outputs: buffers of a larger point of the same operator to use instead of own ones.
    shift:   elements by which every buffer starts past an aligned address.
    held:    gets the names of the contracts that launches were held to and kept (harness/contract.py).
    """

    def __init__(
        self,
        operator: Operator,
        point: Point,
        device: str,
        seed: int,
        edit: Callable[[Any], None] | None = None,
        cases: int = 3,
        outputs: Guard | None = None,
        shift: int = 0,
        held: set[str] | None = None,
    ) -> None:
        self.operator, self.point, self.device = operator, point, device
        self.held = set() if held is None else held
        self.outputs = outputs or Guard(operator.make_outputs(point), device, shift)
        devices = {name: buffer.tensor.device for name, buffer in self.outputs.buffers.items()}
        self.cases = []
        for i in range(cases):
            inputs = operator.make_inputs(point, seed + i)
            if edit is not None:
                edit(inputs)
            self.cases.append(Case(operator, point, inputs, devices))
        self.inputs = Guard(self.cases[0].inputs, device, shift)
        self._staged: dict[int, dict[str, Tensor]] = {}

    @cached_property
    def bytes_moved(self) -> int:
        """Least traffic of a launch on case 0. Raises TypeError where the operator gives what no record can hold."""
        said = self.operator.bytes_moved(self.point, self.cases[0].inputs)
        if not isinstance(said, int):
            raise TypeError(f"bytes_moved said {said!r} where it has to give a whole number")
        return said

    def setup(self, variant: Variant) -> Callable[[], Any]:
        launch = variant.setup(self.point, self.inputs.view, self.outputs.view)
        if not callable(launch):
            raise TypeError(f"set-up returned a {type(launch).__name__} instead of the closure that is to be timed")
        return launch

    def rewrite_inputs(self) -> None:
        """Queue what the step before this one does: the inputs of case 0, written on the device."""
        self.inputs.fill_some(self.staged(0))

    def staged(self, case: int) -> dict[str, Tensor]:
        """What a case puts into the inputs on the device, as tensors there: to be copied in the order of the stream."""
        if case not in self._staged:
            on_device = [
                name for name, buffer in self.inputs.buffers.items() if buffer.tensor.device.type == self.device
            ]
            self._staged[case] = {name: getattr(self.cases[case].inputs, name).to(self.device) for name in on_device}
        return self._staged[case]

    def fill_on_host(self, case: int) -> None:
        """What a case puts into the inputs that stay on the host beside a GPU."""
        for name, buffer in self.inputs.buffers.items():
            if name not in self.staged(case):
                buffer.fill(getattr(self.cases[case].inputs, name))

    def fill(self, case: int) -> None:
        """Put a case into the inputs."""
        self.fill_on_host(case)
        self.inputs.fill_some(self.staged(case))

    def check(self, launch: Callable[[], Any], case: int, poison: int | None, replayed: bool = False) -> None:
        """Put a case in, poison (None leaves the outputs as they are), launch once, compare everything.

        replayed: ``launch`` replays a graph, which holds none of the host's own work: outputs on the host are left out.
        """
        self.fill(case)
        if poison is not None:
            self.outputs.poison(poison)
        before_inputs, before_outputs = self.inputs.snapshot(), self.outputs.snapshot()
        handed_on = launch()
        synchronize(self.device)
        self._check_guards()
        self.held.add("in_bounds")
        self._check_inputs(before_inputs)
        self.held.add("inputs_unchanged")
        if handed_on is not None:
            self._check_handed_on(handed_on)
        for name, expected in self.cases[case].expected.items():
            if not (replayed and expected.value.device.type != self.device):
                compare(name, self.outputs.buffers[name].tensor, before_outputs[name], expected)
        self.held.add("exact")
        # Who hands nothing on leaves its answer in the persistent views: it was compared in place, where a consumer
        # reads it.
        if handed_on is not None or self.cases[case].demanding:
            self.held |= {"contiguous", "stable_address"}

    def check_queued(self, launch: Callable[[], Any], case: int, poison: int) -> None:
        """CUDA: inputs, poison, launch and a copy of the outputs, queued without a wait behind a sleeping kernel.

        A launch whose work is ordered by the current stream is right; what runs beside it sees the inputs of before,
        and what it writes is poisoned.
        """
        self.fill_on_host(case)
        on_device = {name: buffer.tensor for name, buffer in self.outputs.buffers.items() if buffer.tensor.is_cuda}
        staged = self.staged(case)
        self.outputs.poison(poison)
        poisoned = {name: tensor.clone() for name, tensor in on_device.items()}
        after = {name: torch.empty_like(tensor) for name, tensor in poisoned.items()}
        torch.cuda.synchronize()
        torch.cuda._sleep(SLEEP_CYCLES)
        self.inputs.fill_some(staged)
        for name, tensor in poisoned.items():
            on_device[name].data.copy_(tensor)
        launch()
        for name, tensor in after.items():
            tensor.copy_(on_device[name])
        torch.cuda.synchronize()
        for name, tensor in after.items():
            try:
                compare(name, tensor, poisoned[name], self.cases[case].expected[name])
            except Mismatch as mismatch:
                raise Mismatch(
                    "stream_ordered", f"right when waited for, wrong when queued: {mismatch.args[0]}"
                ) from None

    def _check_inputs(self, before: Mapping[str, Tensor]) -> None:
        now = {name: self.inputs.buffers[name].tensor for name in before}
        changed = {name: as_integers(now[name]) != as_integers(before[name]) for name in before}
        if any_of(flags.any() for flags in changed.values()):
            name = next(name for name, flags in changed.items() if bool(flags.any()))
            raise Mismatch(
                "inputs_unchanged", f"the input {name} was written to; {places(changed[name], before[name], now[name])}"
            )

    def _check_guards(self) -> None:
        for kind, guard in (("input", self.inputs), ("output", self.outputs)):
            for name, offset in guard.stray_writes().items():
                tensor = guard.buffers[name].tensor
                raise Mismatch(
                    "in_bounds",
                    f"a write outside the {kind} {name} (shape {tuple(tensor.shape)}, strides {tensor.stride()}), "
                    f"at byte {offset} from its start",
                )

    def _check_handed_on(self, handed_on: Mapping[str, Tensor]) -> None:
        """What the launch returned must be exactly the persistent views a consumer was promised."""
        # No subclass: one could compute when it is looked at.
        if type(handed_on) not in (dict, MappingProxyType):
            raise Mismatch(
                "return_value",
                f"launch() returned a {type(handed_on).__name__}; it returns None or a mapping of name to tensor",
            )
        for name, view in self.operator.views(self.point, self.outputs.view).items():
            if name not in handed_on:
                raise Mismatch("return_value", f"launch() returned no {name!r}")
            got = handed_on[name]
            if type(got) is not Tensor:
                raise Mismatch("return_value", f"{name} is a {type(got).__name__}, expected a torch.Tensor")
            if got.dtype != view.dtype or got.shape != view.shape:
                raise Mismatch(
                    "return_value",
                    f"{name} is {got.dtype} {tuple(got.shape)}, expected {view.dtype} {tuple(view.shape)}",
                )
            if got.stride() != view.stride():
                raise Mismatch("contiguous", f"{name} has strides {got.stride()}, expected {view.stride()}")
            if got.data_ptr() != view.data_ptr():
                raise Mismatch(
                    "stable_address", f"{name} does not lie in its persistent buffer: its address moves between steps"
                )


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def verify_cell(bench: Fixture, variant: Variant, once: bool = False) -> Callable[[], Any]:
    """Prove one variant at one point; return its launch closure, bound to case 0. Raises Mismatch.

    once: leave out the second launch and the changed contents, for launches that take seconds (an interpreted kernel).
    """
    bench.fill(1)
    bench.outputs.poison(POISONS[1])
    settings = ProcessState(bench.device)
    try:
        launch = bench.setup(variant)
        _check_settings(settings)  # before contents are judged: some settings spoil those
        bench.check(launch, case=0, poison=POISONS[0])
        if not once:
            bench.check(launch, case=0, poison=None)
            bench.check(launch, case=0, poison=POISONS[1])
            bench.check(launch, case=2, poison=POISONS[0])
            if bench.device == "cuda":
                bench.check_queued(launch, case=1, poison=POISONS[1])
        _check_settings(settings)
    finally:
        settings.restore()
    bench.fill(0)
    return launch


def _check_settings(settings: ProcessState) -> None:
    if changed := settings.changed():
        raise Mismatch("process_state", changed)


def verify_sequence(
    operator: Operator, variant: Variant, points: Sequence[Point], device: str, seed: int, held: set[str] | None = None
) -> None:
    """Steps of different sizes through the persistent buffers of the first, largest one: nothing stale may leak."""
    outputs = Guard(operator.make_outputs(points[0]), device)
    outputs.poison(POISONS[0])
    for step, point in enumerate(points):
        bench = Fixture(operator, point, device, seed + step, cases=1, outputs=outputs, held=held)
        try:
            bench.check(bench.setup(variant), case=0, poison=None)
        except Mismatch as mismatch:
            raise Mismatch(
                mismatch.check, f"step {step + 1} of {len(points)} through the same buffers: {mismatch.args[0]}"
            ) from None
