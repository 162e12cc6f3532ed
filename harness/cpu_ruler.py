"""Wall time on a CPU. What it measures is labelled cpu_us and never stands beside a GPU time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

#: A sample covers at least this long, so that the clock's resolution and the loop's own cost do not show.
SAMPLE_S = 2e-4
WARMUP_CALLS = 3


class CpuStopwatch:
    leading = "cpu_us"
    replay = None

    def __init__(self, launch: Callable[[], Any]) -> None:
        self._launch = launch
        for _ in range(WARMUP_CALLS):
            launch()
        start = time.perf_counter()
        launch()
        self._calls = max(1, int(SAMPLE_S / max(time.perf_counter() - start, 1e-9)))

    def sample(self) -> Mapping[str, float]:
        launch, calls = self._launch, range(self._calls)
        start = time.perf_counter()
        for _ in calls:
            launch()
        return {"cpu_us": (time.perf_counter() - start) * 1e6 / self._calls}

    def facts(self) -> Mapping[str, Any]:
        return {}
