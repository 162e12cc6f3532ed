"""Device time of queued work between two events, free of the host: a kernel spins in front until all of it is
queued.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

#: The spin lasts twice as long as queueing took before, plus this. Where the GPU finds the last launches only just
#: queued, the gaps between them come out up to 0.2 us shorter or longer.
SPIN_MARGIN_US = 40.0
#: What began before all was queued is repeated behind a longer spin, this many times at most.
SPIN_TRIES = 6


class QueuedEvents:
    """One pair of events. ``spin(microseconds)`` queues a kernel that waits."""

    def __init__(self, spin: Callable[[float], None]) -> None:
        self._spin = spin
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._queueing_us: dict[Any, float] = {}

    def queue(self, work: Callable[[], Any]) -> float:
        """Queue work between the events; the host time that took, in microseconds."""
        start = perf_counter()
        self._start.record()
        work()
        self._end.record()
        return (perf_counter() - start) * 1e6

    def microseconds(self, name: Any, work: Callable[[], Any], prepare: Callable[[], None] = lambda: None) -> float:
        """Device time of work that was queued as a whole before any of it began. ``name`` remembers how long queueing
        takes; ``prepare`` queues what must have run before, outside of the time. Raises RuntimeError where the host
        is never in time.
        """
        for attempt in range(SPIN_TRIES):
            prepare()
            spin_us = (2 * self._queueing_us.get(name, 0.0) + SPIN_MARGIN_US) * 2**attempt
            self._spin(spin_us)
            queueing_us = self.queue(work)
            in_time = name in self._queueing_us and not self._start.query()
            # The shortest: one hiccup of the host would make every later spin as long.
            self._queueing_us[name] = min(self._queueing_us.get(name, queueing_us), queueing_us)
            self._end.synchronize()
            if in_time:
                return self._start.elapsed_time(self._end) * 1e3
        raise RuntimeError(
            f"the host took longer than {spin_us:.0f} us to queue the work, {SPIN_TRIES} times in a row; "
            "does the launch wait for the device?"
        )
