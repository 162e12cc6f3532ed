"""Verifies a variant away from the timed points: at hard points, in sequences of steps, and by the checks that need a
device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from harness.checks import CHECKS, Check, Mismatch
from harness.contract import UNALIGNED, HardPoint, Operator, Point, Variant
from harness.verify.alloc_sync_checks import check_alloc_sync
from harness.verify.fixture import Fixture, verify_cell, verify_sequence
from harness.verify.graph_replay import BoundLaunch, Capture, check_replays, replay_sequence
from harness.verify.process_state import unchanged_process
from harness.wording import first_line

#: Result of a check over all findings of a variant. yes: passed wherever it was tested; GPU, CPU, timed: not tested, as
#: that takes such a device, or a timed run; "-": no launch reached this check.
CheckResult = Literal["yes", "no", "waived", "GPU", "CPU", "timed", "-"]


#: Why a variant is not run at a point at capacity, or on a random batch.
BEYOND = "beyond its declared limits"


@dataclass(frozen=True)
class Finding:
    """What happened at one hard point or in one sequence, at one point at capacity, or on one random batch.

    check:         the check that rejected the variant, or the type of the exception that it failed with.
    passed_checks: the checks that were tested there and passed, even where another one rejected the variant.
    outcome:       "limited" where it failed as its ``limits=`` declare.
    """

    name: str
    outcome: Literal["passed", "rejected", "failed", "skipped", "limited"]
    check: str | None = None
    message: str | None = None
    passed_checks: frozenset[str] = frozenset()
    kind: Literal["hard point", "capacity point", "random batch"] = "hard point"


class LeftOut(Exception):
    """A launch was ended because this device takes too long for it. The message says how long it may take."""


@dataclass(frozen=True)
class DeviceChecks:
    """How the checks that need a device are made.

    alloc_sync: tests no_alloc and no_sync of a launch and returns the names of those it passed; see check_alloc_sync.
    capture:    captures a graph of a launch, for graph_safe.
    """

    alloc_sync: Callable[[Variant, Callable[[], Any]], set[str]]
    capture: Capture


@lru_cache(maxsize=1)
def cuda_checks() -> DeviceChecks:
    from harness.cuda_graph import GraphCapture

    return DeviceChecks(check_alloc_sync, GraphCapture())


def check_variant(
    operator: Operator,
    variant: Variant,
    device: str,
    seed: int,
    thorough: bool = True,
    checks: DeviceChecks | None = None,
    only: str | None = None,
) -> Iterator[Finding]:
    """One finding for each hard point and each sequence. An exception of the variant is a finding, too.

    Those at which the variant declares a limit are left out, as they may end the process; see limited_names.

    Two of the hard points that the variant takes run once more with buffers that start one element past an aligned
    address, where a 16-byte access faults: the first one, and the one with the most bytes, as a variant may use wide
    accesses from some size on only.

    thorough: make the checks that need a device everywhere. Otherwise allocations and waits are checked at the first
              hard point only, and replays in the first sequence only.
    checks:   how these checks are made; by default cuda_checks() on a GPU, and not at all elsewhere.
    only:     the name of the only one to run, whether the variant declares a limit there or not.
    """
    if checks is None and device == "cuda":
        checks = cuda_checks()
    return _VariantChecks(operator, variant, device, seed, checks, thorough, only).findings()


def limited_names(operator: Operator, variant: Variant) -> list[str]:
    """Names of the hard points and sequences at which the variant declares a limit.

    A limit in unaligned buffers only is tried at the first hard point that has no other limit.
    """
    if not variant.limits:
        return []
    hard = [one.name for one in operator.hard_points]
    limited = [name for name in (*hard, *operator.sequences) if variant.limit_at(name)]
    first = next((name for name in hard if name not in limited), None)
    unaligned = [f"{first}{UNALIGNED}"] if first and variant.limit_at(f"{first}{UNALIGNED}") else []
    return [*limited, *unaligned]


def judged_limit(variant: Variant, name: str, finding: Finding) -> Finding:
    """What was found where the variant declares a limit: it must fail there, or the declaration is wrong."""
    if finding.outcome in ("rejected", "failed"):
        return replace(finding, outcome="limited", passed_checks=frozenset())
    if finding.outcome == "passed":
        wrong = (
            f"passes, although its limits= say that it does not hold there ({variant.limit_at(name)}); drop the limit"
        )
        return Finding(name, "failed", "limits", wrong)
    return finding


@dataclass(frozen=True)
class _VariantChecks:
    """The checks of one variant. bytes_at: hard point -> bytes of its inputs and outputs."""

    operator: Operator
    variant: Variant
    device: str
    seed: int
    device_checks: DeviceChecks | None
    thorough: bool
    only: str | None = None
    bytes_at: dict[str, int] = field(default_factory=dict)

    def findings(self) -> Iterator[Finding]:
        yield from self._hard_points()
        yield from self._sequences()

    def _hard_points(self) -> Iterator[Finding]:
        operator, thorough = self.operator, self.thorough
        taken: list[tuple[HardPoint, Point]] = []
        for hard in operator.hard_points:
            point = operator.complete(hard.point)
            if self.only == f"{hard.name}{UNALIGNED}":
                yield self._at(self.only, hard, point, alloc_sync=False, replays=thorough, shift=1)
            if not self._is_wanted(hard.name):
                continue
            if found := skipped(hard.name, self.variant, [point]):
                yield found
                continue
            first = not taken
            taken.append((hard, point))
            # Sequences replay graphs too, so unless thorough the first of them is enough.
            replays = thorough or (first and not operator.sequences)
            yield self._at(hard.name, hard, point, alloc_sync=thorough or first, replays=replays)
        if taken and self.only is None:
            first, largest = taken[0], max(taken, key=lambda one: self.bytes_at.get(one[0].name, 0))
            for hard, point in [first] if largest is first else [first, largest]:
                name = f"{hard.name}{UNALIGNED}"
                if self._is_wanted(name):
                    yield self._at(name, hard, point, alloc_sync=False, replays=thorough, shift=1)

    def _sequences(self) -> Iterator[Finding]:
        replays = True
        for name, steps in self.operator.sequences.items():
            if not self._is_wanted(name):
                continue
            points = [self.operator.complete(step) for step in steps]
            if found := skipped(name, self.variant, points):
                yield found
            else:
                yield self._through(name, points, replays)
                replays = self.thorough

    def _is_wanted(self, name: str) -> bool:
        return self.variant.limit_at(name) is None if self.only is None else name == self.only

    def _at(self, name: str, hard: HardPoint, point: Point, alloc_sync: bool, replays: bool, shift: int = 0) -> Finding:
        def check(passed_checks: set[str]) -> None:
            fixture = Fixture(
                self.operator, point, self.device, self.seed, hard.edit, shift=shift, passed_checks=passed_checks
            )
            self.bytes_at[name] = fixture.nbytes
            launch = verify_cell(fixture, self.variant)
            with unchanged_process(self.device):
                if self.device_checks and alloc_sync:
                    passed_checks |= self.device_checks.alloc_sync(self.variant, launch)
                if replays and self._has_graph:
                    check_replays([BoundLaunch(fixture, launch)], self.device_checks.capture)

        return finding_of(name, check)

    def _through(self, name: str, points: Sequence[Point], replays: bool) -> Finding:
        def check(passed_checks: set[str]) -> None:
            of = self.operator, self.variant, points, self.device, self.seed
            with unchanged_process(self.device):
                verify_sequence(*of, passed_checks)
                if replays and self._has_graph:
                    replay_sequence(*of, self.device_checks.capture, passed_checks)

        return finding_of(name, check)

    @property
    def _has_graph(self) -> bool:
        return self.device_checks is not None and "graph_safe" not in self.variant.waives


def finding_of(name: str, check: Callable[[set[str]], None]) -> Finding:
    """Run ``check``, which collects the names of the checks that passed."""
    passed: set[str] = set()
    try:
        check(passed)
    except Mismatch as mismatch:
        passed_checks = frozenset(passed | {"no_crash"}) - {mismatch.check}
        return Finding(name, "rejected", mismatch.check, mismatch.message, passed_checks)
    except LeftOut as reason:
        return Finding(name, "skipped", message=str(reason))
    except Exception as error:  # a variant may raise anything
        return Finding(name, "failed", type(error).__name__, first_line(error), frozenset(passed | {"no_crash"}))
    return Finding(name, "passed", passed_checks=frozenset(passed | {"no_crash"}))


def skipped(name: str, variant: Variant, points: Sequence[Point]) -> Finding | None:
    """The finding where ``skip`` leaves out one of the points, or raises; None where the variant takes them all."""
    try:
        reason = next((reason for point in points if (reason := reason_to_skip(variant, point))), None)
    except Exception as error:  # a variant may raise anything
        return Finding(name, "failed", type(error).__name__, f"its skip= raised {first_line(error)}")
    return Finding(name, "skipped", message=reason) if reason else None


def reason_to_skip(of: Operator | Variant, point: Point) -> str | None:
    """What an operator's ``redundant`` or a variant's ``skip`` returns at a point.

    Raises what it raises, and TypeError where it returns neither a reason nor None, as a record could not hold it.
    """
    name, reason = ("redundant=", of.redundant(point)) if isinstance(of, Operator) else ("skip=", of.skip(point))
    if not isinstance(reason or None, str | None):
        raise TypeError(f"{name} returned {reason!r}; it must return a reason in words, or None")
    return reason or None


def is_beyond(variant: Variant, fixture: Fixture) -> bool:
    """Whether a batch of the fixture lies beyond the variant's declared limits. Raises what ``beyond`` raises."""
    return any(variant.beyond(fixture.point, batch.inputs) for batch in fixture.batches)


def is_unverified(findings: Iterable[Finding]) -> bool:
    """Whether the variant passed nowhere, as when ``skip`` leaves out every hard point."""
    return not any(finding.outcome == "passed" for finding in findings)


def check_results(variant: Variant, findings: Sequence[Finding], device: str) -> Mapping[str, CheckResult]:
    """Check -> its result over all findings, in the order of CHECKS. device: "cuda" or "cpu"."""
    failed = {finding.check for finding in findings if finding.outcome == "rejected"}
    passed = frozenset().union(*(finding.passed_checks for finding in findings))
    ran = any(finding.outcome != "skipped" for finding in findings)

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
