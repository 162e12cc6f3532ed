"""Wall time of a launch on a CPU, cpu_us; never compared with a GPU time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from time import perf_counter, process_time, thread_time
from typing import TYPE_CHECKING, Any

from harness.checks import Mismatch
from harness.timing.host_lock import Lock

if TYPE_CHECKING:
    from harness.verify.output_probe import OutputProbe

#: Least duration of a sample, so that the resolution of the clock and the cost of the loop do not matter.
SAMPLE_S = 2e-4
WARMUP_CALLS = 3
#: A launch is rejected where other threads use more CPU time than this share of the calling thread's, and more than
#: these seconds, below which the process clock is too coarse.
OTHER_THREADS_SHARE, OTHER_THREADS_S = 0.5, 2e-3


class CpuStopwatch:
    """Times one launch on a CPU. A Stopwatch (harness/timing/rounds.py) without a graph, on one set of buffers."""

    leading = "cpu_us"
    place = 0
    replay = None

    def __init__(
        self, launch: Callable[[], Any], output_probe: OutputProbe | None = None, host_lock: Lock = nullcontext
    ) -> None:
        """host_lock: makes the lock to hold while a sample is taken."""
        self.launch, self._output_probe, self._host_lock = launch, output_probe, host_lock
        self._own_s = self._others_s = 0.0
        # By the fastest call: after a call that something interrupted, a sample would be too short.
        fastest = min(self._seconds() for _ in range(WARMUP_CALLS))
        self._calls = max(1, int(SAMPLE_S / max(fastest, 1e-9)))

    def _seconds(self) -> float:
        start = perf_counter()
        self.launch()
        return perf_counter() - start

    def sample(self, round_number: int = 0) -> Mapping[str, float]:
        """Raises Mismatch where the timed calls did not do the work, or other threads did it."""
        with self._host_lock():
            return self._sample()

    def _sample(self) -> Mapping[str, float]:
        launch, calls = self.launch, range(self._calls)
        if self._output_probe is not None:
            self._output_probe.arm()
        own_s, process_s = thread_time(), process_time()
        start = perf_counter()
        for _ in calls:
            launch()
        elapsed = perf_counter() - start
        if self._output_probe is not None:
            self._output_probe.check("timed")
        own_s, process_s = thread_time() - own_s, process_time() - process_s
        self._own_s += own_s
        self._others_s += max(process_s - own_s, 0.0)
        if self._others_s > max(OTHER_THREADS_S, OTHER_THREADS_SHARE * self._own_s):
            raise Mismatch(
                "one_thread",
                f"other threads ran for {self._others_s * 1e3:.1f} ms while the launches took "
                f"{self._own_s * 1e3:.1f} ms",
            )
        return {"cpu_us": elapsed * 1e6 / self._calls}

    def facts(self) -> Mapping[str, Any]:
        return {}
