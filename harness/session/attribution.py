"""Decides what a worker's death means: which variant is blamed, and what runs again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spec_decode_bench.harness.records.schema import Outcome
from spec_decode_bench.harness.session.messages import Heartbeat


class FaultAttribution:
    """Follows the events of one work item: which variant has control, and how long variants were timed.

    heartbeat: the last one, whose variant has control; None before the first one.
    """

    def __init__(self) -> None:
        self.heartbeat: Heartbeat | None = None
        self._in_turns: set[str] = set()
        self._rejected: str | None = None
        self._timing_began_s: float | None = None
        self._latest_s = 0.0
        self._heard = False

    def observe(self, event: Any, now_s: float) -> None:
        bad = isinstance(event, Outcome) and event.status.is_bad
        self._rejected = event.variant if bad else None
        heartbeat = isinstance(event, Heartbeat)
        if heartbeat or self._heard:
            self._latest_s = now_s
        self._heard = heartbeat
        if heartbeat:
            self.heartbeat = event
            if event.phase in ("measure", "block") and self._timing_began_s is None:
                self._timing_began_s = now_s
            if event.phase == "measure":
                self._in_turns.add(event.variant)

    @property
    def timing_s(self) -> float:
        """From the first heartbeat of the timing phase to the first event after the last one: without the checks that
        follow, and without silence before a death, so that a hanging variant does not use up the budget of the others.
        """
        return 0.0 if self._timing_began_s is None else self._latest_s - self._timing_began_s

    @property
    def timed_in_turns(self) -> bool:
        return len(self._in_turns) > 1

    @property
    def culprit(self) -> str | None:
        """The variant to blame if the process dies now.

        If the last event reported a variant as mismatch or failed, that variant, because the process checks its CUDA
        context right afterwards; else the one in control. None if no variant had control, or if several were being
        timed in interleaved rounds and any of them may be the cause.
        """
        if self._rejected is not None:
            return self._rejected
        return None if self.timed_in_turns or self.heartbeat is None else self.heartbeat.variant


def on_death(
    batch: Sequence[str], attribution: FaultAttribution, died_before: bool
) -> tuple[str | None, list[list[str]]]:
    """(the variant that failed with its process, the batches to run again).

    If several were timed in interleaved rounds, they run again one by one, so that only the culprit dies again. If no
    variant had control, none fails the first time, as it may not happen again; the second time the first variant does,
    or this might never end. died_before: whether the item has ended a process while no variant had control.
    """
    culprit = attribution.culprit
    if culprit is None and attribution.timed_in_turns and len(batch) > 1:
        return None, [[name] for name in batch]
    if culprit is None and not died_before:
        return None, [list(batch)]
    failed = culprit if culprit in batch else batch[0]
    return failed, [rest] if (rest := [name for name in batch if name != failed]) else []
