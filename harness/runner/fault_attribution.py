"""Which variant is to blame when a worker process dies. Never imports torch."""

from __future__ import annotations

from typing import Any

from harness.records.schema import Cell
from harness.runner.protocol import Heartbeat


class FaultAttribution:
    """Follows the events of one task to know which variant had control, and for how long variants were timed.

    control: the variant of the last heartbeat, None before the first one.
    """

    def __init__(self) -> None:
        self.control: str | None = None
        self._timed: set[str] = set()
        self._rejected: str | None = None
        self._timing_began_s = self._latest_s = 0.0
        self._heard = False

    def observe(self, event: Any, now_s: float) -> None:
        self._rejected = event.variant if isinstance(event, Cell) and event.status.is_bad else None
        heartbeat = isinstance(event, Heartbeat)
        if heartbeat or self._heard:
            self._latest_s = now_s
        self._heard = heartbeat
        if heartbeat:
            self.control = event.variant
            if event.phase == "measure":
                self._timing_began_s = self._timing_began_s if self._timed else now_s
                self._timed.add(event.variant)

    @property
    def timing_s(self) -> float:
        """From the first heartbeat of the timing phase to the first event after the last one: without the checks that
        follow, and without silence before a death, so that a hanging variant does not use up the budget of the others.
        """
        return self._latest_s - self._timing_began_s if self._timed else 0.0

    @property
    def timing_began(self) -> bool:
        return bool(self._timed)

    @property
    def culprit(self) -> str | None:
        """The variant to blame if the process died after the last event.

        A variant reported as mismatch or failed in that event, because the process checks its CUDA context right
        after; else the one in control. None where no variant had control, or where several were timed in turns and
        any of them may have done it.
        """
        if self._rejected is not None:
            return self._rejected
        return None if len(self._timed) > 1 else self.control
