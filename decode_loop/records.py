"""Lines of a record that hold a decode loop: one line per stack and loop, with its raw samples."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from spec_decode_bench.harness.records.schema import Finding, Metrics, Outcome, Proof, Reason, Run, Status, Us


class LoopRequest(msgspec.Struct, frozen=True, array_like=True):
    """What one request received in a block: in the ``steps`` intervals from ``first`` on, ``tokens`` in all."""

    request: int
    first: int
    steps: int
    tokens: int


class LoopBlock(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn of a stack over a block of steps; all stacks replay the same requests in the block of the same number.

    number:       of the block. turn: when this stack ran it, counted over all stacks of the loop.
    itl_us:       from the end of one model step to the end of the next, by CUDA events (on a CPU: by its clock).
    host_itl_us:  between the moments at which the host knew the tokens of consecutive steps.
    gap_us:       from the end of a model step to the beginning of the next one, by the device's clock.
    host_busy_us: in which the host prepared and submitted a step, waiting not included.
    late:         steps whose model step the host submitted after the device had finished the step before.
    requests:     what the requests received in these intervals.
    """

    number: int
    turn: int
    itl_us: list[Us]
    host_itl_us: list[Us]
    gap_us: list[Us]
    host_busy_us: list[Us]
    late: int = 0
    requests: list[LoopRequest] = []


class LoopSpan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that host or device did in a traced step, microseconds from the beginning of the trace."""

    lane: Literal["host", "device"]
    name: str
    step: int
    start_us: Us
    end_us: Us


class Loop(Outcome, frozen=True, kw_only=True, tag="loop", tag_field="line", omit_defaults=True):
    """One stack in one decode loop.

    stack:     its name. reference: name of the stack that deltas refer to.
    point:     label of the loop, axes: all that sets it apart from the others of the run.
    operators: operator -> variant, in the order of a step.
    finding:   what is wrong where the status is "mismatch" or "failed"; reason: why it was skipped or is unavailable.
    blocks:    the samples; empty unless it passed.
    alone:     the operators of a step one after another, timed outside of the loop, for the model of ITL and TPOT.
    waited_us: the same from submission to completion, after the host waited for a model step; some after each block.
    trace:     a few steps after the last block, on the lanes of host and device.
    known_failures: ``OPERATOR/VARIANT at 'GLOB'`` -> why a variant fails at these edge cases and sequences.
    process:   as of a cell.
    seconds:   as of a cell; verification counts for the first stack that needs it.
    proofs:    in older records: "operator/variant" -> where it passed its edge cases, if an earlier run verified them.
    """

    stack: str
    reference: str
    point: str
    axes: dict[str, Any]
    operators: dict[str, str]
    status: Status
    finding: Finding | None = None
    reason: Reason | None = None
    blocks: list[LoopBlock] = []
    alone: Metrics | None = None
    waited_us: list[Us] = []
    trace: list[LoopSpan] = []
    known_failures: dict[str, str] = {}
    process: int = 0
    proofs: dict[str, Proof] = {}
    seconds: dict[str, float] = {}

    @property
    def variant(self) -> str:
        """The name by which an item asks for this line."""
        return self.stack

    @property
    def key(self) -> str:
        return loop_key(self.stack, self.point)


def loops_of(run: Run) -> list[Loop]:
    """The decode loops of a record."""
    return [line for line in run.others if isinstance(line, Loop)]


def loop_key(stack: str, point: str) -> str:
    """``loop/STACK/POINT``: the name of its NVTX ranges, and what ``--resume`` goes by."""
    return f"loop/{stack}/{point}"
