"""Verifies a variant at one point, before any timing: whole output buffers must equal the scalar reference exactly.

After set-up the outputs are poisoned and the contents of the inputs replaced, so that results precomputed in set-up
are wrong. In the batch of set-up all differs that may differ (``Operator.varied``). Then launches, each compared:

1. on the first batch, outputs poisoned;
2. on the same batch, outputs right but for one element: a launch that guesses whether it has been there fails;
3. on the same batch, outputs poisoned again: a launch that skips work when its inputs did not change fails;
4. on another batch, outputs poisoned with the other pattern, after one more set-up on other buffers: a launch that
   reads what a later set-up left fails;
5. on the first batch, outputs right for the other: a launch that skips work when its outputs did not change, or that
   adds to what it finds there, fails;
6. on the batch of set-up, whose contents may be of another kind than the point's.

On a GPU one more launch is queued, with its inputs, behind a sleeping kernel: work outside the current stream reads the
earlier inputs. After each launch inputs and canaries, and after all of them the settings of the process, must be
unchanged.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from msgspec import structs
from torch import Tensor

from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.contract import CAPTURE, Expected, Operator, Point, Variant
from spec_decode_bench.harness.errors import CaptureError, first_line
from spec_decode_bench.harness.verify.buffers import (
    POISONS,
    Arena,
    Guard,
    any_of,
    as_integers,
    drawn_shifts,
    tensors_of,
)
from spec_decode_bench.harness.verify.captured_inputs import captured_inputs
from spec_decode_bench.harness.verify.equality import (
    View,
    check_equal,
    differences,
    required,
    small,
    unravelled,
    wrong_elements,
)
from spec_decode_bench.harness.verify.process_state import unchanged_process

#: GPU clock cycles for which the stream sleeps while inputs and launch are queued: about two milliseconds.
SLEEP_CYCLES = 4_000_000
#: Number of the batch that is in the inputs at set-up.
OF_SETUP = 1
#: Of the buffers of all places at most.
PLACED_BYTES = 2**28


class Batch:
    """Contents for the inputs (CPU tensors), with the reference's answer; shared by all variants of a point. Only read.

    devices: output -> where ``expected`` is needed.
    """

    def __init__(self, operator: Operator, point: Point, inputs: Any, devices: Mapping[str, torch.device]) -> None:
        self._operator, self._point, self._devices = operator, point, devices
        self.inputs = inputs

    @cached_property
    def expected(self) -> Mapping[str, Expected]:
        """By output. The reference, which is slow, runs when this is first read."""
        answer = self._operator.reference(self._point, self.inputs)
        for name in self._devices.keys() - answer.keys():
            raise LookupError(f"the reference of {self._operator.name} has no answer for {name!r}")
        return {name: expected.to(self._devices[name]) for name, expected in answer.items()}

    @cached_property
    def has_required_elements(self) -> bool:
        """Whether a launch has to write anything."""
        return any_of(required(expected).any() for expected in self.expected.values())


def varied_inputs(operator: Operator, point: Point, seed: int, inputs: Any) -> Any:
    """Inputs of the same shapes with the host's integers of ``inputs``, and contents of ``operator.varied``."""
    if not (changed := operator.varied(point)):
        return inputs
    varied = operator.make_inputs(operator.complete(dict(point) | dict(changed)), seed)
    given = {f.name: getattr(inputs, f.name) for f in dataclasses.fields(inputs) if f.name not in tensors_of(inputs)}
    return dataclasses.replace(varied, **given)


class Fixture:
    """Inputs and outputs of one operator at one point, between canaries, and batches to put into the inputs.

    edit:    changes the inputs of every batch in place (see EdgeCase).
    batches: how many to make, or those of another fixture of this point, to share. At a captured point the first one is
             the captured one.
    outputs: the buffers of a larger point of the same operator, to use instead of new ones.
    shift:   elements between an aligned address and the start of every buffer; or draws that of each.
    row_strides, output_strides: of inputs and outputs whose rows are to lie elsewhere than in the operator's.
    passed_checks: collects the names of the checks that launches were put to and passed.
    known:   batches of earlier fixtures of this operator on this device, for this one to use and to add to.
    in_place: whether the arrays that the operator names as ``in_place`` are inputs and outputs at once.
    placement: seed of where the buffers lie (see Arena); None leaves it to torch's allocator.
    """

    def __init__(
        self,
        operator: Operator,
        point: Point,
        device: str,
        seed: int,
        edit: Callable[[Any], None] | None = None,
        batches: int | list[Batch] = 3,
        outputs: Guard | None = None,
        shift: int | random.Random = 0,
        passed_checks: set[str] | None = None,
        row_strides: Mapping[str, int] = MappingProxyType({}),
        output_strides: Mapping[str, int] = MappingProxyType({}),
        known: dict[Any, Batch] | None = None,
        placement: int | None = None,
        in_place: bool = False,
    ) -> None:
        self.operator, self.point, self.device, self.seed = operator, point, device, seed
        self.passed_checks = set() if passed_checks is None else passed_checks
        arena = None if placement is None else Arena(device, placement)
        made = operator.outputs.empty(point) if outputs is None else outputs.view
        hosts = {field.name for field in dataclasses.fields(made) if field.metadata.get("host")}
        self._devices = {name: torch.device("cpu" if name in hosts else device) for name in tensors_of(made)}
        known = {} if known is None else known
        if isinstance(batches, int):
            first = [self._captured()] if CAPTURE in point else []
            batches = [*first, *(self._made(seed, i, edit, known) for i in range(len(first), batches))]
        self.batches = batches
        shifts = [shift, shift] if isinstance(shift, int) else drawn_shifts(shift, batches[0].inputs, made)
        self.outputs = outputs or Guard(made, device, shifts[1], output_strides, arena)
        self.inputs = Guard(batches[0].inputs, device, shifts[0], row_strides, arena)
        #: Inputs that are outputs, too.
        self.shared = {
            name: self.outputs.buffers[out]
            for out, name in operator.in_place(point).items()
            if in_place and out in self.outputs.buffers and name in self.inputs.buffers
        }
        self.inputs.share(self.shared)
        self._staged: dict[int, dict[str, Tensor]] = {}

    def buffer_sets(self, most: int) -> list[Fixture]:
        """This fixture and copies of it elsewhere in memory, which share its batches: ``most`` in all, or 5, 2 or 1
        where more would take over PLACED_BYTES, and fewer where memory runs out.
        """
        count = next(n for n in (most, 5, 2, 1) if n == 1 or (n <= most and n * self.nbytes <= PLACED_BYTES))
        sets = [self]
        with suppress(torch.OutOfMemoryError):
            for i in range(1, count):
                sets.append(self.elsewhere(placement=i))
        return sets

    def elsewhere(self, placement: int | None = None) -> Fixture:
        """Buffers of their own for the same batches."""
        return Fixture(self.operator, self.point, self.device, self.seed, batches=self.batches, placement=placement)

    def _made(self, seed: int, number: int, edit: Callable[[Any], None] | None, known: dict[Any, Batch]) -> Batch:
        """Batch ``number`` of a fixture; that of set-up has other contents where no edit gives them."""
        varied = number == OF_SETUP and edit is None
        key = self.operator.spelt_out(self.point), edit, seed + number, varied
        if key not in known:
            inputs = self.operator.make_inputs(self.point, seed + number)
            if edit is not None:
                edit(inputs)
            known[key] = self._batch(
                varied_inputs(self.operator, self.point, seed + number, inputs) if varied else inputs
            )
        return known[key]

    def _captured(self) -> Batch:
        """The batch that an engine had. Raises CaptureError where no step of this point has it."""
        batch = self._batch(captured_inputs(self.operator, self.point))
        try:
            _ = batch.expected
        except Exception as error:  # contents that no step can have
            raise CaptureError(f"the reference cannot take the captured inputs: {first_line(error)}") from None
        return batch

    def _batch(self, inputs: Any) -> Batch:
        return Batch(self.operator, self.point, inputs, self._devices)

    @cached_property
    def bytes_moved(self) -> int:
        """Least traffic of a launch on batch 0. Raises TypeError where the operator returns no int."""
        count = self.operator.bytes_moved(self.point, self.batches[0].inputs)
        if not isinstance(count, int):
            raise TypeError(f"bytes_moved returned {count!r}; it must return a whole number of bytes")
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs and outputs."""
        return self.inputs.nbytes + self.outputs.nbytes

    def release(self) -> None:
        """Free what only comparing needs, once ``bytes_moved`` is known; launches go on working on the buffers."""
        _ = self.bytes_moved
        self.batches, self._staged = [], {}

    def setup(self, variant: Variant) -> Callable[[], Any]:
        """The variant's launch on these buffers. Raises TypeError where set-up returns none."""
        launch = variant.setup(self.point, self.inputs.view, self.outputs.view)
        if not callable(launch):
            raise TypeError(f"set-up returned a {type(launch).__name__} instead of the closure to time")
        return launch

    def rewrite_inputs(self) -> None:
        """Queue writes of batch 0 into the inputs on the device, as the step before a launch does in an engine."""
        self.inputs.fill_some(self.staged(0))

    def staged(self, batch: int) -> dict[str, Tensor]:
        """Device copies of a batch's contents for the inputs on the device, to be copied there in stream order."""
        if batch not in self._staged:
            names = [name for name, buffer in self.inputs.buffers.items() if buffer.tensor.device.type == self.device]
            contents = self.batches[batch].inputs
            self._staged[batch] = {name: getattr(contents, name).to(self.device) for name in names}
        return self._staged[batch]

    def fill_on_host(self, batch: int) -> None:
        """Put a batch into the inputs that stay on the host when there is a GPU."""
        for name, buffer in self.inputs.buffers.items():
            if name not in self.staged(batch):
                buffer.fill(getattr(self.batches[batch].inputs, name))

    def fill(self, batch: int) -> None:
        """Put a batch into the inputs."""
        self.fill_on_host(batch)
        self.inputs.fill_some(self.staged(batch))

    def add_batch(self, seed: int) -> int:
        """One more batch, without the edit of an edge case, and not captured. Returns its number."""
        self.batches.append(self._batch(self.operator.make_inputs(self.point, seed)))
        return len(self.batches) - 1

    def spoil(self, batch: int, draw: random.Random) -> None:
        """Make one element of one output wrong, of those that a launch on this batch must write."""
        musts = {name: required(expected) for name, expected in self.batches[batch].expected.items()}
        if written := [name for name, must in musts.items() if must.any()]:
            name = draw.choice(written)
            positions = musts[name].reshape(-1).nonzero().reshape(-1)
            place = unravelled(positions[draw.randrange(len(positions))], musts[name].shape)
            buffer = as_integers(self.outputs.buffers[name].tensor)
            buffer[place] = ~buffer[place]

    def run(self, launch: Callable[[], Any], batch: int, poison: int | None) -> dict[str, Tensor]:
        """Put a batch in, poison the outputs (None leaves them as they are), launch once, and check what can be checked
        without the reference. Returns what the outputs held before. Raises Mismatch.
        """
        if poison is not None:
            self.outputs.poison(poison)
        self.fill(batch)  # afterwards, as an output may be an input, too
        inputs_before, outputs_before = self.inputs.snapshot(), self.outputs.snapshot()
        returned = launch()
        synchronize(self.device)
        self._check_canaries()
        self.passed_checks.add("in_bounds")
        self._check_inputs(inputs_before)
        self.passed_checks.add("inputs_unchanged")
        if returned is not None:
            self._check_returned(returned)
            self.passed_checks |= {"contiguous", "stable_address"}
        self.passed_checks.add("return_value")
        return outputs_before

    def check(self, launch: Callable[[], Any], batch: int, poison: int | None, replayed: bool = False) -> None:
        """``run``, and compare everything. Raises Mismatch.

        replayed: ``launch`` replays a graph, which does no work on the host; outputs on the host are not compared.
        """
        self.compare(batch, self.run(launch, batch, poison), self._written(replayed))

    def _written(self, replayed: bool) -> list[str]:
        """The outputs that a launch writes, or that the replay of a graph does, which does no work on the host."""
        buffers = self.outputs.buffers.items()
        return [name for name, buffer in buffers if not replayed or buffer.tensor.device.type == self.device]

    def compare(self, batch: int, outputs_before: Mapping[str, Tensor], names: Collection[str]) -> None:
        """Compare some outputs with the reference's answer to a batch. Raises Mismatch.

        outputs_before: what they held before the launch.
        """
        compared = {
            name: (self.outputs.buffers[name].tensor, outputs_before[name], expected)
            for name, expected in self.batches[batch].expected.items()
            if name in names
        }
        # One wait for all outputs; only where something differs a second look, at each.
        if any_of(wrong_elements(*tensors)[0].any() for tensors in compared.values()):
            for name, tensors in compared.items():
                try:
                    check_equal(name, *tensors, self._views)
                except Mismatch as mismatch:
                    stale = self._answers_other_inputs(batch, outputs_before)
                    difference = structs.replace(
                        mismatch.difference, stale=stale, inputs=small(self.batches[batch].inputs)
                    )
                    raise Mismatch(mismatch.check, mismatch.message, difference) from None
        self.passed_checks.add("exact")
        if self.batches[batch].has_required_elements:  # written into the persistent buffers, which were read in place
            self.passed_checks |= {"contiguous", "stable_address"}

    def _views(self) -> list[View]:
        """What consumers read of the outputs."""
        views = self.operator.views(self.point, self.outputs.view)
        letters = {
            name: [letter(self.point) if callable(letter) else letter for letter in of_view]
            for name, of_view in self.operator.indices.items()
        }
        return [View(name, tensor, letters.get(name, ())) for name, tensor in views.items()]

    def _answers_other_inputs(self, batch: int, before: Mapping[str, Tensor]) -> bool:
        """Whether the outputs are right for a batch that was in the inputs earlier, as in set-up."""

        def holds(other: Batch) -> bool:
            try:
                for name, expected in other.expected.items():
                    check_equal(name, self.outputs.buffers[name].tensor, before[name], expected)
            except Mismatch:
                return False
            return True

        return any(holds(other) for i, other in enumerate(self.batches) if i != batch)

    def check_queued(self, launch: Callable[[], Any], batch: int, poison: int) -> None:
        """CUDA only: queue inputs, poison, launch and a copy of the outputs behind a sleeping kernel, without a wait.

        A launch whose work is ordered by the current stream is right. Work outside that stream reads the
        earlier inputs, and its results are poisoned afterwards. Raises Mismatch.
        """
        self.fill_on_host(batch)
        on_device = {name: buffer.tensor for name, buffer in self.outputs.buffers.items() if buffer.tensor.is_cuda}
        staged = self.staged(batch)
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
                check_equal(name, tensor, poisoned[name], self.batches[batch].expected[name])
            except Mismatch as mismatch:
                message = f"right when run alone, wrong when queued behind other work: {mismatch.message}"
                raise Mismatch("stream_ordered", message, mismatch.difference) from None
        self.passed_checks.add("stream_ordered")

    def _check_canaries(self) -> None:
        for kind, guard in (("input", self.inputs), ("output", self.outputs)):
            for name, offset in guard.stray_writes().items():
                tensor = guard.buffers[name].tensor
                raise Mismatch(
                    "in_bounds",
                    f"a write outside the {kind} {name} (shape {tuple(tensor.shape)}, strides {tensor.stride()}), "
                    f"at byte {offset} from its start",
                )

    def _check_inputs(self, before: Mapping[str, Tensor]) -> None:
        now = {name: self.inputs.buffers[name].tensor for name in before if name not in self.shared}
        changed = {name: as_integers(now[name]) != as_integers(before[name]) for name in now}
        if any_of(flags.any() for flags in changed.values()):
            name = next(name for name, flags in changed.items() if bool(flags.any()))
            difference = differences(name, changed[name], before[name], now[name])
            raise Mismatch("inputs_unchanged", f"the input {name} was written to", difference)

    def _check_returned(self, returned: Mapping[str, Tensor]) -> None:
        """What a launch returns must be the persistent views of the outputs."""
        # No subclass of dict or Tensor: it could compute when it is read.
        if type(returned) not in (dict, MappingProxyType):
            kind = type(returned).__name__
            message = f"launch() returned a {kind}; it must return None or a mapping of name to tensor"
            raise Mismatch("return_value", message)
        for name, view in self.operator.views(self.point, self.outputs.view).items():
            if name not in returned:
                instead = ", ".join(map(repr, returned)) or "nothing"
                raise Mismatch("return_value", f"launch() did not return {name!r}; it returned {instead}")
            got = returned[name]
            if type(got) is not Tensor:
                raise Mismatch("return_value", f"{name} is a {type(got).__name__}, expected a torch.Tensor")
            if got.dtype != view.dtype or got.shape != view.shape:
                actual, expected = (f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (got, view))
                raise Mismatch("return_value", f"{name} is {actual}, expected {expected}")
            if got.stride() != view.stride():
                raise Mismatch("contiguous", f"{name} has strides {got.stride()}, expected {view.stride()}")
            if got.data_ptr() != view.data_ptr():
                message = f"{name} is not in its persistent buffer: its address changes between steps"
                raise Mismatch("stable_address", message)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def verify_cell(fixture: Fixture, variant: Variant, once: bool = False, again: bool = False) -> Callable[[], Any]:
    """Verify one variant at one point. Returns its launch, with batch 0 in the inputs. Raises Mismatch.

    once:  the first launch only, for variants that take seconds per launch (Triton's interpreter).
    again: set up once more, on other buffers, before launch 4.
    """
    fixture.fill(OF_SETUP)
    fixture.outputs.poison(POISONS[1])
    with unchanged_process(fixture.device) as process:
        launch = fixture.setup(variant)
        process.check()  # before any comparison: some settings would spoil it
        fixture.check(launch, batch=0, poison=POISONS[0])
        if not once:
            fixture.spoil(0, random.Random(fixture.seed))
            fixture.check(launch, batch=0, poison=None)
            fixture.check(launch, batch=0, poison=POISONS[1])
            other = fixture.elsewhere() if again else None
            newer = other.setup(variant) if other else None
            fixture.check(launch, batch=2, poison=POISONS[0])
            if other:
                other.check(newer, batch=0, poison=POISONS[0])
            fixture.check(launch, batch=0, poison=None)
            fixture.check(launch, batch=OF_SETUP, poison=POISONS[0])
            if fixture.device == "cuda":
                fixture.check_queued(launch, batch=OF_SETUP, poison=POISONS[1])
    fixture.passed_checks.add("process_state")
    fixture.fill(0)
    return launch


def verify_again(fixture: Fixture, launch: Callable[[], Any], calls: int) -> None:
    """Compare the launch after so many ``calls``. Raises Mismatch."""
    for _ in range(calls):
        launch()
    try:
        fixture.check(launch, batch=0, poison=POISONS[0])
    except Mismatch as mismatch:
        raise mismatch.within(f"after {calls:,} launches") from None


def verify_sequence(
    operator: Operator,
    variant: Variant,
    points: Sequence[Point],
    device: str,
    seed: int,
    passed_checks: set[str] | None = None,
    known: dict[Any, Batch] | None = None,
) -> None:
    """Run steps of different sizes through the buffers of the first, largest one: nothing stale may leak.

    known: as in Fixture. Raises Mismatch.
    """
    outputs = Guard(operator.outputs.empty(points[0]), device)
    outputs.poison(POISONS[0])
    for step, point in enumerate(points):
        fixture = Fixture(
            operator,
            point,
            device,
            seed + step,
            batches=1,
            outputs=outputs,
            passed_checks=passed_checks,
            known=known,
        )
        try:
            fixture.check(fixture.setup(variant), batch=0, poison=None)
        except Mismatch as mismatch:
            raise mismatch.within(f"step {step + 1} of {len(points)} through the same buffers") from None
