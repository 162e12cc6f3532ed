"""Device time of work between two events, free of host time: a kernel spins in front until all work is queued."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

#: The spin lasts twice as long as queueing took before, plus this. Without a margin the last launches arrive only just
#: in time, which changes the gaps between them.
SPIN_MARGIN_US = 40.0
#: Work that began before all of it was queued is repeated behind a longer spin; this many tries in all.
SPIN_TRIES = 6


class QueuedEvents:
    """A pair of events. spin: queues a kernel that waits for so many microseconds."""

    def __init__(self, spin: Callable[[float], None]) -> None:
        self._spin = spin
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._queueing_us: dict[Any, float] = {}

    def queue(self, work: Callable[[], Any]) -> float:
        """Queue work between the events. Returns the host time of queueing, microseconds."""
        start = perf_counter()
        self._start.record()
        work()
        self._end.record()
        return (perf_counter() - start) * 1e6

    def microseconds(self, name: Any, work: Callable[[], Any], prepare: Callable[[], None] = lambda: None) -> float:
        """Device time of ``work``, all of which was queued before any of it began.

        name:    key under which the duration of queueing is remembered.
        prepare: queues what must have run before, outside of the timed span.

        Raises RuntimeError where the host is too late in every try.
        """
        for attempt in range(SPIN_TRIES):
            prepare()
            spin_us = (2 * self._queueing_us.get(name, 0.0) + SPIN_MARGIN_US) * 2**attempt
            self._spin(spin_us)
            queueing_us = self.queue(work)
            in_time = name in self._queueing_us and not self._start.query()
            # The shortest: after one interruption of the host every later spin would be as long.
            self._queueing_us[name] = min(self._queueing_us.get(name, queueing_us), queueing_us)
            self._end.synchronize()
            if in_time:
                return self._start.elapsed_time(self._end) * 1e3
        raise RuntimeError(
            f"the host took longer than {spin_us:.0f} us to queue the work {SPIN_TRIES} times in a row; "
            "does the launch wait for the device?"
        )
