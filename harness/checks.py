"""Every check that can reject a variant, in one table: the columns of `list` and `verify`.

Never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """A property that every launch must have.

    needs_device: can be tested on a GPU only.
    needs_timing: is tested while a variant is timed, not by `verify`.
    waivable:     a variant may opt out with ``waives=``, as PyTorch-op chains do that allocate.
    """

    name: str
    meaning: str
    needs_device: bool = False
    needs_timing: bool = False
    waivable: bool = False


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
    Check(
        "process_state",
        "threads, default dtype and device, grad mode, garbage collection and the current stream are left alone",
    ),
    Check("no_tampering", "functions that time and check variants are not replaced"),
    Check("no_alloc", "a launch allocates no device memory", needs_device=True, waivable=True),
    Check("no_sync", "a launch never waits for the device", needs_device=True, waivable=True),
    Check("stream_ordered", "all work is ordered by the current stream", needs_device=True),
    Check(
        "graph_safe",
        "captured once, right in every replay, whatever was written or freed since",
        needs_device=True,
        waivable=True,
    ),
    Check(
        "same_work",
        "k copies in a graph, and eager calls, run k times the operations of one",
        needs_device=True,
        needs_timing=True,
    ),
    Check(
        "every_call",
        "timed calls write their outputs, checked on random elements around every sample",
        needs_timing=True,
    ),
    Check("one_thread", "on a CPU, a launch does its work on the calling thread", needs_timing=True),
)
WAIVABLE = tuple(check.name for check in CHECKS if check.waivable)


class Mismatch(Exception):
    """A launch failed a check of CHECKS; the message says where, with expected and actual values."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(message)
        self.check = check

    def __str__(self) -> str:
        return f"{self.check}: {self.args[0]}"
