"""Wall time of a launch on a CPU, cpu_us; never compared with a GPU time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from statistics import median
from time import perf_counter, process_time, thread_time
from typing import TYPE_CHECKING, Any

from spec_decode_bench.harness.checks import Mismatch
from spec_decode_bench.harness.host_lock import Lock

if TYPE_CHECKING:
    from spec_decode_bench.harness.verify.output_probe import OutputProbe

#: Least duration of a sample, so that the resolution of the clock and the cost of the loop do not matter.
SAMPLE_S = 2e-4
WARMUP_CALLS = 3
#: By how much a sample may have more calls than the one before it.
MOST_GROWTH = 10
#: A launch is rejected where other threads use more CPU time than this share of the calling thread's, and more than
#: these seconds, below which the process clock is too coarse.
OTHER_THREADS_SHARE, OTHER_THREADS_S = 0.5, 2e-3
#: Calls alone after each sample. From some number of samples on, a launch is rejected where the fastest of these calls
#: takes so many times as long as a call of the median sample, and so many seconds longer: then most calls of a sample
#: skip their work.
CALLS_ALONE, LEAST_SAMPLES, ALONE_TIMES, ALONE_S = 2, 3, 3.0, 2e-6


class CpuStopwatch:
    """Times one launch on a CPU. A Stopwatch (harness/timing/rounds.py) without a graph, on one set of buffers."""

    leading = "cpu_us"
    buffer_set = 0
    replay = None

    def __init__(
        self, launch: Callable[[], Any], output_probe: OutputProbe | None = None, host_lock: Lock = nullcontext
    ) -> None:
        """host_lock: makes the lock to hold while a sample is taken."""
        self.launch, self._output_probe, self._host_lock = launch, output_probe, host_lock
        self._own_s = self._others_s = 0.0
        self._in_a_row_s: list[float] = []
        self._alone_s = math.inf
        # By the fastest call: after a call that something interrupted, a sample would be too short.
        fastest = min(self._seconds() for _ in range(WARMUP_CALLS))
        self._calls = max(1, int(SAMPLE_S / max(fastest, 1e-9)))

    def _seconds(self) -> float:
        start = perf_counter()
        self.launch()
        return perf_counter() - start

    def sample(self, round_number: int = 0) -> Mapping[str, float]:
        """Raises Mismatch where the timed calls did not do the work, or other threads did it."""
        launch, calls = self.launch, range(self._calls)
        with self._host_lock():
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
            seconds = elapsed / self._calls
            self._compare_alone(seconds)
        if elapsed < SAMPLE_S:  # the calls before the first sample were slow
            self._calls = min(int(SAMPLE_S / max(seconds, 1e-9)) + 1, MOST_GROWTH * self._calls)
        return {"cpu_us": seconds * 1e6}

    def _compare_alone(self, seconds: float) -> None:
        """Calls alone, whose outputs are probed, against those of samples. seconds: of a call of the last sample."""
        if self._output_probe is None:
            return
        self._in_a_row_s.append(seconds)
        for _ in range(CALLS_ALONE):
            self._output_probe.arm()
            self._alone_s = min(self._alone_s, self._seconds())
            self._output_probe.check("single")
        if len(self._in_a_row_s) < LEAST_SAMPLES:
            return
        in_a_row_s = median(self._in_a_row_s)  # neither a sample that something interrupted nor a lucky one
        if self._alone_s > max(ALONE_TIMES * in_a_row_s, in_a_row_s + ALONE_S):
            raise Mismatch(
                "every_call",
                f"a call alone takes {self._alone_s * 1e6:.2f} us, one of many in a row {in_a_row_s * 1e6:.2f}: "
                "not all of them do the work",
            )

    def facts(self) -> Mapping[str, Any]:
        return {}
