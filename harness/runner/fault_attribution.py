"""Who had control of a worker when: which variant is to blame where its process died. Never imports torch."""

from __future__ import annotations

from harness.records.schema import Cell
from harness.runner.protocol import Begin


class FaultAttribution:
    """Which variant of a batch had control when, from the events of a worker: who is to blame for the death of the
    process.

    control: the variant that got it last. timed: those that are being timed in turns; timing_s: how long they have been.
    """

    def __init__(self) -> None:
        self.control: str | None = None
        self.timed: set[str] = set()
        self._rejected: str | None = None
        self._began_s = self._latest_s = 0.0

    def saw(self, event: Begin | Cell, now_s: float) -> None:
        self._rejected = None
        if isinstance(event, Cell):
            self._rejected = event.variant if event.status in ("mismatch", "failed") else None
        else:
            self.control = event.variant
            if event.phase == "measure":
                self._began_s = self._began_s if self.timed else now_s
                self.timed.add(event.variant)
        self._latest_s = now_s

    @property
    def timing_s(self) -> float:
        """Silence before a death is not counted: a hanging variant must not use up the time of the others."""
        return self._latest_s - self._began_s if self.timed else 0.0

    @property
    def guilty(self) -> str | None:
        """None where nobody had control, or where several variants took turns and none was rejected as the last
        thing heard.
        """
        if self._rejected is not None:
            return self._rejected
        return None if len(self.timed) > 1 else self.control
