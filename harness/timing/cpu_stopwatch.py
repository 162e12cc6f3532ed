"""Wall time on a CPU. What it measures is labelled cpu_us and never stands beside a GPU time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter, process_time, thread_time
from typing import TYPE_CHECKING, Any

from harness.checks import Mismatch

if TYPE_CHECKING:
    from harness.verify.output_probe import OutputProbe

#: A sample covers at least this long, so that the clock's resolution and the loop's own cost do not show.
SAMPLE_S = 2e-4
WARMUP_CALLS = 3
#: CPU seconds of other threads, as a share of this one's, from which on a launch counts as working behind its own back.
#: Below THREADS_S the process clock is too coarse to say.
THREADS_SHARE, THREADS_S = 0.5, 2e-3


class CpuStopwatch:
    """Times one launch on a CPU; see Stopwatch in timing.py. It holds no graph."""

    leading = "cpu_us"
    replay = None

    def __init__(self, launch: Callable[[], Any], output_probe: OutputProbe | None = None) -> None:
        self._launch, self._witness = launch, output_probe
        self._mine_s = self._others_s = 0.0
        # The fastest call: by one that the machine held up, a sample would be a single call.
        fastest = min(self._seconds() for _ in range(WARMUP_CALLS))
        self._calls = max(1, int(SAMPLE_S / max(fastest, 1e-9)))

    def _seconds(self) -> float:
        start = perf_counter()
        self._launch()
        return perf_counter() - start

    def sample(self) -> Mapping[str, float]:
        """Raises Mismatch where the timed calls did not do the work, or had it done by other threads."""
        launch, calls = self._launch, range(self._calls)
        if self._witness is not None:
            self._witness.arm()
        mine, everyone = thread_time(), process_time()
        start = perf_counter()
        for _ in calls:
            launch()
        elapsed = perf_counter() - start
        if self._witness is not None:
            self._witness.check("timed")
        mine, everyone = thread_time() - mine, process_time() - everyone
        self._mine_s += mine
        self._others_s += max(everyone - mine, 0.0)
        if self._others_s > max(THREADS_S, THREADS_SHARE * self._mine_s):
            raise Mismatch(
                "one_thread",
                f"other threads worked {self._others_s * 1e3:.1f} ms while the launches took {self._mine_s * 1e3:.1f} ms",
            )
        return {"cpu_us": elapsed * 1e6 / self._calls}

    def facts(self) -> Mapping[str, Any]:
        return {}
