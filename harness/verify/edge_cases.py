"""Verifies a variant away from the timed points: at edge cases, in sequences of steps, and by the checks that need a
device.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain, islice
from typing import Any, Literal

import torch
from msgspec import structs
from torch import Tensor

from spec_decode_bench.harness.checks import CHECKS, Check, Mismatch
from spec_decode_bench.harness.contract import COMPILER, Buffers, Consumer, EdgeCase, Operator, Point, Variant
from spec_decode_bench.harness.errors import first_line
from spec_decode_bench.harness.interpreter import launch_counter
from spec_decode_bench.harness.printable import printable
from spec_decode_bench.harness.records.schema import Code, Finding, Place, Reason, Status, Where
from spec_decode_bench.harness.verify.alloc_sync_checks import check_alloc_sync
from spec_decode_bench.harness.verify.buffers import row_length
from spec_decode_bench.harness.verify.fixture import Batch, Fixture, verify_again, verify_cell, verify_sequence
from spec_decode_bench.harness.verify.graph_replay import (
    FEW_STEPS,
    STEPS,
    BoundLaunch,
    Capture,
    check_replays,
    replay_sequence,
)
from spec_decode_bench.harness.verify.memory import most_of_the_memory
from spec_decode_bench.harness.verify.process_state import unchanged_process

#: Name of an edge case or sequence, and how its buffers lie.
EdgeCaseName = tuple[str, Buffers | None]
#: Result of a check over all findings of a variant. yes: passed wherever it was tested; GPU, CPU, timed: not tested, as
#: that takes such a device, or a timed run; "-": no launch reached this check.
CheckResult = Literal["yes", "no", "waived", "GPU", "CPU", "timed", "-"]
#: Edge cases with far rows for each input or output.
FAR_POINTS = 2
#: The stance with which torch.compile raises instead of compiling.
NO_RECOMPILATION = "fail_on_recompile"


class LeftOut(Exception):
    """A launch was stopped or skipped."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class DeviceChecks:
    """How to make the checks that need a device.

    alloc_sync: tests no_alloc and no_sync of a launch and returns the names of those it passed; see check_alloc_sync.
    capture:    captures a graph of a launch, for graph_safe.
    """

    alloc_sync: Callable[[Variant, Callable[[], Any]], set[str]]
    capture: Capture


@lru_cache(maxsize=1)
def cuda_checks() -> DeviceChecks:
    from spec_decode_bench.harness.cuda_graph import GraphCapture

    return DeviceChecks(check_alloc_sync, GraphCapture())


def known_failure_places(operator: Operator, variant: Variant) -> list[EdgeCaseName]:
    """The edge cases and sequences at which the variant has a known failure.

    One in unaligned buffers only is tried at the first edge case that has no other known failure; one of far rows at
    the first such point that has them.
    """
    if not variant.known_failures:
        return []
    names = [case.name for case in operator.edge_cases]
    limited = [name for name in (*names, *operator.sequences) if variant.known_failure_at(name)]
    other = [name for name in names if name not in limited]
    unaligned = [(name, "unaligned") for name in other[:1] if variant.known_failure_at(name, "unaligned")]
    far = (
        (name, "far")
        for name in other
        if variant.known_failure_at(name, "far") and _has_far_rows(operator, variant, name)
    )
    return [*((name, None) for name in limited), *unaligned, *islice(far, 1)]


def _has_far_rows(operator: Operator, variant: Variant, name: str) -> bool:
    case = next(case for case in operator.edge_cases if case.name == name)
    point = operator.complete(case.point)
    return skipped(_edge_case(name), variant, [point]) is None and bool(far_strides(operator, case, 0))


def judged_known_failure(finding: Finding) -> Finding:
    """The finding at a known failure. A pass is reported, but is not an error: a later release of the engine may hold
    there, and what a launch reads out of bounds may be right by chance.
    """
    if finding.status in (Status.MISMATCH, Status.FAILED, Status.PASSED):
        return structs.replace(finding, status=Status.KNOWN_FAILURE, passed_checks=())
    return finding


@dataclass
class EdgeCaseChecks:
    """Of one variant: a finding for each edge case and each sequence. An exception in the variant is a finding as well.

    Those at which the variant has a known failure are left out, as they may end the process; see known_failure_places.

    Two of the edge cases that the variant takes run once more with buffers that start one element past an aligned
    address, where a 16-byte access faults: the first one, and the one with the most bytes, as a variant may use wide
    accesses from some size on only.

    thorough: make the checks that need a device everywhere, with FEW_STEPS replays but at the first edge case and in
              the first sequence, and those of far rows and in place. Otherwise allocations and waits are checked at the
              first edge case only, and replays in the first sequence only. A torch.compile variant is then left out
              where it would compile again, as timed points compile what they need; one that would be left out
              everywhere compiles after all.
    on_device: how the checks that need a device are made; by default cuda_checks() on a GPU, and not at all elsewhere.
    only:     the only one to run, whether the variant has a known failure there or not.
    known:    of earlier variants of the operator, as in Fixture.
    announce: called before each of them.
    calls:    launches at the first edge case, after which one more is compared; not in Triton's interpreter.
    """

    operator: Operator
    variant: Variant
    device: str
    seed: int
    thorough: bool = True
    on_device: DeviceChecks | None = None
    only: EdgeCaseName | None = None
    known: dict[Any, Batch] = field(default_factory=dict)
    announce: Callable[[Where], None] = lambda where: None
    calls: int = 0

    def __post_init__(self) -> None:
        if self.on_device is None and self.device == "cuda":
            self.on_device = cuda_checks()
        #: False leaves out a launch for which torch.compile would compile.
        self._compiles = self.thorough or COMPILER not in self.variant.requires
        #: Edge case -> bytes of its inputs and outputs.
        self._bytes_at: dict[str, int] = {}

    def __iter__(self) -> Iterator[Finding]:
        yield from self._findings()
        if self.thorough:
            yield from self.far_rows()
            yield from self.in_place()

    def _findings(self) -> Iterator[Finding]:
        left_out, ran = [], False
        for finding in chain(self._edge_cases(), self._sequences()):
            if finding.reason is not None and finding.reason.code is Code.RECOMPILES:
                left_out.append(finding)
            else:
                yield finding
                ran = ran or finding.status is not Status.SKIPPED
        if left_out and not ran:  # as of a variant that compiles in its launch only
            self._compiles = True
            yield from self._findings()
        else:
            yield from left_out

    def _edge_cases(self) -> Iterator[Finding]:
        operator, thorough = self.operator, self.thorough
        few = FEW_STEPS if thorough else 0
        cases_run: list[tuple[EdgeCase, Point]] = []
        interpreted, once = launch_counter(), False
        for case in operator.edge_cases:
            point = operator.complete(case.point)
            if self.only == (case.name, "unaligned"):
                yield self._at(case, point, alloc_sync=False, replays=few, shift=1)
            if not self._is_wanted(case.name):
                continue
            if finding_of_skip := skipped(_edge_case(case.name), self.variant, [point]):
                yield finding_of_skip
                continue
            first = not cases_run
            launches = interpreted.launches
            # Sequences replay graphs too, so unless thorough the first of them is enough, if it is not left out.
            sequences = operator.sequences and self._compiles
            replays = STEPS if first and (thorough or not sequences) else few
            calls = self.calls if first else 0
            finding = self._at(case, point, alloc_sync=thorough or first, replays=replays, once=once, calls=calls)
            yield finding
            once = once or interpreted.launches > launches
            if finding.status is not Status.SKIPPED:
                cases_run.append((case, point))
        if cases_run and self.only is None:
            first, largest = cases_run[0], max(cases_run, key=lambda entry: self._bytes_at.get(entry[0].name, 0))
            for case, point in [first] if largest is first else [first, largest]:
                if self._is_wanted(case.name, "unaligned"):
                    yield self._at(case, point, alloc_sync=False, replays=few, shift=1, once=once)

    def _sequences(self) -> Iterator[Finding]:
        replays = STEPS
        for name, steps in self.operator.sequences.items():
            if not self._is_wanted(name):
                continue
            points = [self.operator.complete(step) for step in steps]
            where = Where(Place.SEQUENCE, name)
            if finding_of_skip := skipped(where, self.variant, points):
                yield finding_of_skip
            else:
                finding = self._through(where, points, replays)
                yield finding
                if finding.status is not Status.SKIPPED:
                    replays = FEW_STEPS if self.thorough else 0

    def far_rows(self) -> Iterator[Finding]:
        """Launches with an input or an output whose rows lie so far apart that offsets exceed 2^31, at the first edge
        cases at which their stride is free. Where memory is short there is none.
        """
        made: Counter[tuple[str, str]] = Counter()
        for case, point, where in self._taken("far"):
            for (argument, tensor), stride in far_strides(self.operator, case, self.seed).items():
                if made[argument, tensor] == FAR_POINTS:
                    continue
                self.announce(where)
                made[argument, tensor] += 1
                make = partial(
                    Fixture,
                    self.operator,
                    point,
                    self.device,
                    self.seed,
                    case.edit,
                    batches=2,
                    row_strides={tensor: stride} if argument == "row_strides" else {},
                    output_strides={tensor: stride} if argument == "output_strides" else {},
                )
                with most_of_the_memory(self.device):
                    finding = finding_of(where, partial(_check_far_rows, make, self.variant))
                if finding.lacked_memory:
                    return
                yield finding

    def in_place(self) -> Iterator[Finding]:
        """A launch at every edge case with one array as input and output where the operator's engine has one. Where
        Triton's interpreter or torch.compile needs seconds, at the first edge case of each choice of such arrays.
        """
        interpreted, first, made = launch_counter(), launch_counter().launches, set()
        for case, point, where in self._taken("in_place"):
            if not self.operator.in_place(point):
                continue
            fixture = Fixture(self.operator, point, self.device, self.seed, case.edit, batches=2, in_place=True)
            shared = frozenset(fixture.shared)
            slow = self.variant.is_slow_to_verify or interpreted.launches > first
            if not shared or (slow and shared in made):
                continue
            self.announce(where)
            made.add(shared)
            yield finding_of(where, partial(_check_in_place, fixture, self.variant))

    def _taken(self, buffers: Buffers) -> Iterator[tuple[EdgeCase, Point, Where]]:
        """The edge cases that the variant takes, and that are wanted in such buffers."""
        for case in self.operator.edge_cases:
            point, where = self.operator.complete(case.point), _edge_case(case.name, buffers)
            if self._is_wanted(case.name, buffers) and skipped(where, self.variant, [point]) is None:
                yield case, point, where

    def _is_wanted(self, name: str, buffers: Buffers | None = None) -> bool:
        if self.only is not None:
            return self.only == (name, buffers)
        return not any(self.variant.known_failure_at(name, how) for how in (None, buffers))

    def _at(
        self,
        case: EdgeCase,
        point: Point,
        alloc_sync: bool,
        replays: int,
        shift: int = 0,
        once: bool = False,
        calls: int = 0,
    ) -> Finding:
        def check(passed_checks: set[str]) -> None:
            fixture = Fixture(
                self.operator,
                point,
                self.device,
                self.seed,
                case.edit,
                shift=shift,
                passed_checks=passed_checks,
                known=self.known,
            )
            self._bytes_at[case.name] = fixture.nbytes
            launch = verify_cell(fixture, self.variant, once, again=True)
            with unchanged_process(self.device):
                if calls and not once:
                    verify_again(fixture, launch, calls)
                if self.on_device and alloc_sync:
                    passed_checks |= self.on_device.alloc_sync(self.variant, launch)
                if replays and self._has_graph:
                    check_replays([BoundLaunch(fixture, launch)], self.on_device.capture, replays)

        return self._finding(_edge_case(case.name, "unaligned" if shift else None), check)

    def _through(self, where: Where, points: Sequence[Point], replays: int) -> Finding:
        def check(passed_checks: set[str]) -> None:
            of = self.operator, self.variant, points, self.device, self.seed
            with unchanged_process(self.device):
                verify_sequence(*of, passed_checks, self.known)
                if replays and self._has_graph:
                    replay_sequence(*of, self.on_device.capture, passed_checks, self.known, replays)

        return self._finding(where, check)

    def _finding(self, where: Where, check: Callable[[set[str]], None]) -> Finding:
        self.announce(where)

        def within(passed_checks: set[str]) -> None:
            with nullcontext() if self._compiles else no_recompilation():
                check(passed_checks)

        return finding_of(where, within)

    @property
    def _has_graph(self) -> bool:
        return self.on_device is not None and "graph_safe" not in self.variant.waives


@contextmanager
def no_recompilation() -> Iterator[None]:
    """Raises LeftOut where torch.compile would compile."""
    with torch.compiler.set_stance(NO_RECOMPILATION):
        try:
            yield
        except RuntimeError as error:  # torch gives it no class of its own, and names the stance
            if NO_RECOMPILATION in str(error):
                raise LeftOut(Reason(code=Code.RECOMPILES)) from None
            raise


def far_strides(operator: Operator, case: EdgeCase, seed: int) -> dict[tuple[str, str], int]:
    """(argument of Fixture, input or output whose rows may lie anywhere) -> a stride with which offsets exceed 2^31.

    The rows of an input may lie anywhere where the operator pads them; those of an output where it is declared as
    STRIDED, and tried where no edit may leave little to write and consumers read two thirds of them. The last row of an
    input begins 2^31 elements behind the first. Half of the rows of a byte tensor, such as a cache whose last rows may
    be unused, and of an output lie beyond that. A stride is as far from a multiple of 16 as the operator's, as variants
    take wide accesses by that.
    """
    point = operator.complete(case.point)
    inputs, outputs = operator.make_inputs(point, seed), operator.outputs.empty(point)
    views, tensors = operator.views(point, outputs), {}
    for input_field in dataclasses.fields(inputs):
        tensor = getattr(inputs, input_field.name)
        padded = isinstance(tensor, Tensor) and tensor.dim() > 1 and tensor.stride(0) > row_length(tensor)
        if padded and not input_field.metadata.get("host"):
            tensors["row_strides", input_field.name] = tensor, 2**32 if tensor.element_size() == 1 else 2**31
    for output_field in dataclasses.fields(outputs) if case.edit is None else ():
        tensor, read = getattr(outputs, output_field.name), views.get(output_field.name)
        if output_field.metadata.get("strided") and read is not None and 3 * len(read) > 2 * len(tensor):
            tensors["output_strides", output_field.name] = tensor, 2**32
    strides = {
        key: reach // (len(tensor) - 1) // 16 * 16 + 16 + tensor.stride(0) % 16
        for key, (tensor, reach) in tensors.items()
        if len(tensor) > 1
    }
    return {key: stride for key, stride in strides.items() if stride < 2**31}  # no variant promises to take more


def _check_far_rows(make: Callable[[], Fixture], variant: Variant, _: set[str]) -> None:
    """Raises OutOfMemoryError where inputs and outputs do not fit, or what the variant allocates."""
    try:
        fixture = make()
    except (RuntimeError, MemoryError):
        raise torch.OutOfMemoryError from None
    verify_cell(fixture, variant, once=True)


def _check_in_place(fixture: Fixture, variant: Variant, passed_checks: set[str]) -> None:
    try:
        verify_cell(fixture, variant, once=True)
    except Mismatch as mismatch:
        shared = ", ".join(fixture.shared)
        message = f"with {shared} in place: {mismatch.check}: {mismatch.message}"
        raise Mismatch("in_place", message, mismatch.difference) from None
    passed_checks.add("in_place")


def _edge_case(name: str, buffers: Buffers | None = None) -> Where:
    return Where(Place.EDGE_CASE, name, buffers)


def finding_of(where: Where, check: Callable[[set[str]], None]) -> Finding:
    """Run ``check``, which collects the names of the checks that passed."""
    passed: set[str] = set()
    try:
        check(passed)
        found = where.finding(Status.PASSED)
    except LeftOut as left_out:
        return where.finding(Status.SKIPPED, reason=left_out.reason)
    except Exception as error:  # a variant may raise anything
        found = wrong(where, error)
    return structs.replace(found, passed_checks=tuple(sorted((passed | {"no_crash"}) - {found.check})))


def wrong(where: Where, error: Exception, message: str | None = None) -> Finding:
    """A Mismatch is the finding of a check; anything else that a variant raises is a failure. message: instead of the
    error's own.
    """
    if isinstance(error, Mismatch):
        found = where.finding(Status.MISMATCH, check=error.check, message=message or printable(error.message))
        return structs.replace(found, difference=error.difference)
    found = where.finding(Status.FAILED, message=message or first_line(error))
    return structs.replace(found, error=type(error).__name__)


def skipped(where: Where, variant: Variant, points: Sequence[Point]) -> Finding | None:
    """The finding where ``skip`` leaves out one of the points, or raises; None where the variant takes them all."""
    try:
        reason = next((reason for point in points if (reason := reason_to_skip(variant, point))), None)
    except Exception as error:  # a variant may raise anything
        return wrong(where, error, f"its skip= raised {first_line(error)}")
    return where.finding(Status.SKIPPED, reason=reason) if reason else None


def reason_to_skip(of: Operator | Variant | Consumer, point: Point) -> Reason | None:
    """What an operator's ``redundant`` or a variant's ``skip`` returns at a point.

    Raises what it raises, and TypeError where it returns neither a reason nor None, as a record could not hold it.
    """
    if isinstance(of, Operator):
        name, code, text = "redundant=", Code.REDUNDANT, of.redundant(point)
    else:
        name, code, text = "skip=", Code.NOT_APPLICABLE, of.skip(point)
    if not isinstance(text or None, str | None):
        raise TypeError(f"{name} returned {text!r}; it must return a reason (text) or None")
    return Reason(code=code, detail=printable(text)) if text else None


def is_beyond(variant: Variant, fixture: Fixture) -> bool:
    """Whether a batch of the fixture lies beyond the variant's known failures. Raises what ``fails_on`` raises."""
    return any(variant.fails_on(fixture.point, batch.inputs) for batch in fixture.batches)


def is_unverified(findings: Iterable[Finding]) -> bool:
    """Whether the variant passed nowhere, as when ``skip`` leaves out every edge case."""
    return not any(finding.status is Status.PASSED for finding in findings)


def check_results(variant: Variant, findings: Sequence[Finding], device: str) -> Mapping[str, CheckResult]:
    """Check -> its result over all findings, in the order of CHECKS. device: "cuda" or "cpu"."""
    failed = {finding.check for finding in findings if finding.status is Status.MISMATCH}
    passed = frozenset().union(*(finding.passed_checks for finding in findings))
    ran = any(finding.status is not Status.SKIPPED for finding in findings)

    def result(check: Check) -> CheckResult:
        if check.name in failed:
            return "no"
        if ran and check.name in variant.waives:
            return "waived"
        if check.name in passed:
            return "yes"
        if ran and not check.testable_on(device):
            return "GPU" if device == "cpu" else "CPU"
        return "timed" if ran and check.timed_only else "-"

    return {check.name: result(check) for check in CHECKS}
