"""All an operator demands of a variant apart from the timed points: hard points, sequences of steps, and the
contracts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from harness.checks import CHECKS, Mismatch
from harness.contract import HardPoint, Operator, Point, Variant
from harness.verify.alloc_sync_checks import check_alloc_sync
from harness.verify.fixture import Fixture, verify_cell, verify_sequence
from harness.verify.graph_replay import Capture, Size, check_replays, replay_sequence
from harness.wording import first_line

#: What is said of a contract: kept wherever it was put to the test, broken, not promised, testable on a GPU alone,
#: never met.
Outcome = Literal["yes", "no", "waived", "not checked", "-"]


@dataclass(frozen=True)
class Finding:
    """Outcome of one hard point or sequence. ``check`` names what rejected the variant, e.g. "exact", "in_bounds".

    held: the contracts that were put to the test there and kept, whether or not another one was broken.
    """

    name: str
    outcome: Literal["passed", "rejected", "failed", "skipped"]
    check: str | None = None
    message: str | None = None
    held: frozenset[str] = frozenset()


@dataclass(frozen=True)
class DeviceChecks:
    """What the contracts that need a device are checked with.

    promises: no_alloc and no_sync of a launch, see check_promises. capture: makes a graph of a launch.
    """

    promises: Callable[[Variant, Callable[[], Any]], set[str]]
    capture: Capture


@lru_cache(maxsize=1)
def _on_cuda() -> DeviceChecks:
    from harness.cuda_graph import Recorder

    return DeviceChecks(check_alloc_sync, Recorder())


def check_variant(
    operator: Operator,
    variant: Variant,
    device: str,
    seed: int,
    thorough: bool = True,
    checks: DeviceChecks | None = None,
) -> Iterator[Finding]:
    """Every hard point and every sequence, one finding each; an exception of the variant is a finding too.

    The hard points a variant takes are followed by two of them once more, with buffers that start one element past an
    aligned address, where a 16-byte access would fault: the first, and the one with the most bytes of inputs and
    outputs, as a wide access may begin at a size alone.

    thorough: put the contracts that need a device to the test everywhere, not only at the first hard point (allocations and
    waits) and in the first sequence (replays).
    """
    checks = checks or (_on_cuda() if device == "cuda" else None)
    proof = _VariantChecks(operator, variant, device, seed, checks)
    taken: list[tuple[HardPoint, Point]] = []
    for hard in operator.hard_points:
        point = operator.complete(hard.point)
        if left_out := _left_out(hard.name, variant, [point]):
            yield left_out
        else:
            everything = thorough or not taken
            taken.append((hard, point))
            replays = thorough or (everything and not operator.sequences)
            yield proof.at(hard.name, hard, point, promises=everything, replays=replays)
    if taken:
        first, largest = taken[0], max(taken, key=lambda one: proof.sizes.get(one[0].name, 0))
        for hard, point in [first] if largest is first else [first, largest]:
            yield proof.at(f"{hard.name}, unaligned buffers", hard, point, promises=False, replays=thorough, shift=1)
    replays = True
    for name, steps in operator.sequences.items():
        points = [operator.complete(step) for step in steps]
        if left_out := _left_out(name, variant, points):
            yield left_out
        else:
            yield proof.through(name, points, replays)
            replays = thorough


def reason_to_skip(of: Operator | Variant, point: Point) -> str | None:
    """What an operator's ``redundant`` or a variant's ``skip`` says of a point. Raises what it raises, and TypeError
    where it says what no record can hold.
    """
    name, said = ("redundant=", of.redundant(point)) if isinstance(of, Operator) else ("skip=", of.skip(point))
    if not isinstance(said or None, str | None):
        raise TypeError(f"{name} said {said!r} where it has to give a reason in words, or None")
    return said or None


def _left_out(name: str, variant: Variant, points: Sequence[Point]) -> Finding | None:
    """The finding where skip= leaves one of the points out, or raises; None where it takes them all."""
    try:
        reason = next((said for point in points if (said := reason_to_skip(variant, point))), None)
    except Exception as error:  # a variant may raise anything
        return Finding(name, "failed", type(error).__name__, f"its skip= raised {first_line(error)}")
    return Finding(name, "skipped", message=reason) if reason else None


def nothing_checked(findings: Iterable[Finding]) -> bool:
    """Whether ``skip`` left out everything: such a variant is unverified, whatever it computes at other points."""
    return not any(finding.outcome == "passed" for finding in findings)


def outcomes(variant: Variant, findings: Sequence[Finding], device: str) -> Mapping[str, Outcome]:
    """Contract -> what all findings together say of it, in the order of CONTRACTS."""
    broken = {finding.check for finding in findings if finding.outcome == "rejected"}
    held = frozenset().union(*(finding.held for finding in findings))
    ran = any(finding.outcome != "skipped" for finding in findings)
    found: dict[str, Outcome] = {}
    for contract in CHECKS:
        if contract.name in broken:
            found[contract.name] = "no"
        elif ran and contract.name in variant.waives:
            found[contract.name] = "waived"
        elif contract.name in held:
            found[contract.name] = "yes"
        else:
            found[contract.name] = "not checked" if ran and contract.needs_device and device == "cpu" else "-"
    return found


@dataclass(frozen=True)
class _VariantChecks:
    """The proof of one variant: what is done at each hard point and in each sequence. sizes: bytes of the buffers of
    a hard point.
    """

    operator: Operator
    variant: Variant
    device: str
    seed: int
    checks: DeviceChecks | None
    sizes: dict[str, int] = field(default_factory=dict)

    def _replayed(self, wanted: bool) -> bool:
        return wanted and self.checks is not None and "graph_safe" not in self.variant.waives

    def at(self, name: str, hard: HardPoint, point: Point, promises: bool, replays: bool, shift: int = 0) -> Finding:
        def attempt(held: set[str]) -> None:
            bench = Fixture(self.operator, point, self.device, self.seed, hard.edit, shift=shift, held=held)
            self.sizes[name] = sum(
                b.tensor.nbytes for guard in (bench.inputs, bench.outputs) for b in guard.buffers.values()
            )
            launch = verify_cell(bench, self.variant)
            if promises and self.checks:
                held |= self.checks.promises(self.variant, launch)
            if self._replayed(replays):
                check_replays([Size(bench, launch)], self.checks.capture)

        return _try(name, attempt)

    def through(self, name: str, points: Sequence[Point], replays: bool) -> Finding:
        def attempt(held: set[str]) -> None:
            verify_sequence(self.operator, self.variant, points, self.device, self.seed, held)
            if self._replayed(replays):
                replay_sequence(self.operator, self.variant, points, self.device, self.seed, self.checks.capture, held)

        return _try(name, attempt)


def _try(name: str, attempt: Callable[[set[str]], None]) -> Finding:
    held: set[str] = set()
    try:
        attempt(held)
    except Mismatch as mismatch:
        return Finding(name, "rejected", mismatch.check, str(mismatch.args[0]), frozenset(held - {mismatch.check}))
    except Exception as error:  # a variant may raise anything
        return Finding(name, "failed", type(error).__name__, first_line(error), frozenset(held))
    return Finding(name, "passed", held=frozenset(held))
