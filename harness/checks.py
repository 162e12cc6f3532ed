"""The checks that can reject a variant: the columns of ``list`` and ``verify``. docs/verification.md explains them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec


@dataclass(frozen=True)
class Check:
    """A property that every launch must have.

    device:     the kind of device it can be tested on.
    timed_only: tested while a variant is timed; ``verify`` does not reach it.
    waivable:   a variant may opt out with ``waives=``, as chains of PyTorch operators that allocate do.
    """

    name: str
    meaning: str
    device: Literal["any", "cuda", "cpu"] = "any"
    timed_only: bool = False
    waivable: bool = False

    def testable_on(self, device: str) -> bool:
        """device: "cuda" or "cpu"."""
        return self.device in ("any", device)

    @property
    def tested(self) -> str:
        """Where and when, in words."""
        where = {"any": "everywhere", "cuda": "GPU", "cpu": "CPU"}[self.device]
        return f"{where}, timed runs" if self.timed_only else where


CHECKS = (
    Check("exact", "every element that a consumer reads equals the scalar reference"),
    Check(
        "return_value",
        "launch() returns None or a mapping of the operator's view names to tensors of their shape and dtype",
    ),
    Check("contiguous", "a returned tensor has the strides of its persistent view"),
    Check("stable_address", "a returned tensor lies in its persistent buffer, at the same address in every step"),
    Check("in_bounds", "nothing is written outside a buffer or between its rows"),
    Check("inputs_unchanged", "inputs hold what they held before the launch"),
    Check("in_place", "a launch is right where one array is input and output, as engines pass it"),
    Check(
        "process_state",
        "functions of torch, the clock and this harness, threads, default dtype and device, grad mode, garbage "
        "collection, profile and trace functions, torch function modes and the current stream are not changed",
    ),
    Check("no_crash", "the process neither ends nor hangs; a run records this as failed"),
    Check("no_alloc", "a launch allocates no device memory", device="cuda", waivable=True),
    Check("no_sync", "a launch never waits for the device", device="cuda", waivable=True),
    Check("stream_ordered", "all work is ordered by the current stream", device="cuda"),
    Check(
        "graph_safe",
        "a graph captured once is right in every replay, although other memory is written and freed in between",
        device="cuda",
        waivable=True,
    ),
    Check(
        "same_work",
        "k copies in a graph, and eager calls, run k times the operations of one",
        device="cuda",
        timed_only=True,
    ),
    Check(
        "every_call",
        "timed calls write their outputs, checked on random elements around every sample",
        timed_only=True,
    ),
    Check("one_thread", "a launch does its work on the calling thread", device="cpu", timed_only=True),
)
NAMES = tuple(check.name for check in CHECKS)
WAIVABLE = tuple(check.name for check in CHECKS if check.waivable)


class Difference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a buffer is wrong.

    tensor, index: the first wrong element; expected, got: its values; wrong: how many elements are wrong.
    elements:      the first wrong ones as consumers index them, for people.
    stale:         the outputs are right for inputs that were replaced after set-up.
    inputs:        the small ones of the launch, for people.
    """

    tensor: str
    index: tuple[int, ...]
    expected: int | float | bool
    got: int | float | bool
    wrong: int
    elements: tuple[str, ...] = ()
    stale: bool = False
    inputs: tuple[str, ...] = ()


class Mismatch(Exception):
    """A launch failed a check; the message says where. Raises ValueError for a check that is not in CHECKS."""

    def __init__(self, check: str, message: str, difference: Difference | None = None) -> None:
        if check not in NAMES:
            raise ValueError(f"{check!r} is not listed in harness/checks.py")
        super().__init__(message)
        self.check, self.difference = check, difference

    @property
    def message(self) -> str:
        return self.args[0]

    def within(self, where: str) -> Mismatch:
        """The same, with where it was found in front of its message."""
        return Mismatch(self.check, f"{where}: {self.message}", self.difference)

    def __str__(self) -> str:
        elements = self.difference.elements if self.difference else ()
        return f"{self.check}: {'; '.join((self.message, *elements))}"
