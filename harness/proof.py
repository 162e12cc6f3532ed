"""All an operator demands of a variant apart from the timed points: hard points and sequences of steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from harness.contract import Operator, Variant
from harness.verify import Bench, Mismatch, verify_cell, verify_sequence
from harness.wording import first_line


@dataclass(frozen=True)
class Finding:
    """Outcome of one hard point or sequence. ``check`` names what rejected the variant, e.g. "exact", "in_bounds"."""

    name: str
    outcome: Literal["passed", "rejected", "failed", "skipped"]
    check: str | None = None
    message: str | None = None


def prove(operator: Operator, variant: Variant, device: str, seed: int) -> Iterator[Finding]:
    """Every hard point and every sequence, one finding each; an exception of the variant is a finding too.

    The hard points a variant takes are followed by the first of them once more, with buffers that start one element
    past an aligned address, where a 16-byte access would fault.
    """
    shifted = None
    for hard in operator.hard_points:
        point = operator.complete(hard.point)
        reason = variant.skip(point)
        if reason:
            yield Finding(hard.name, "skipped", message=reason)
        else:
            shifted = shifted or (hard, point)
            yield _try(hard.name, lambda h=hard, p=point: verify_cell(Bench(operator, p, device, seed, h.edit), variant))
    if shifted:
        hard, point = shifted
        unaligned = lambda: Bench(operator, point, device, seed, hard.edit, shift=1)  # noqa: E731
        yield _try(f"{hard.name}, unaligned buffers", lambda: verify_cell(unaligned(), variant))
    for name, steps in operator.sequences.items():
        points = [operator.complete(step) for step in steps]
        reason = next((r for p in points if (r := variant.skip(p))), None)
        if reason:
            yield Finding(name, "skipped", message=reason)
        else:
            yield _try(name, lambda p=points: verify_sequence(operator, variant, p, device, seed))


def proved_nothing(findings: Iterable[Finding]) -> bool:
    """Whether ``skip`` left out everything: such a variant is unverified, whatever it computes at other points."""
    return not any(finding.outcome == "passed" for finding in findings)


def _try(name: str, attempt) -> Finding:
    try:
        attempt()
    except Mismatch as mismatch:
        return Finding(name, "rejected", mismatch.check, str(mismatch.args[0]))
    except Exception as error:  # a variant may raise anything
        return Finding(name, "failed", type(error).__name__, first_line(error))
    return Finding(name, "passed")
