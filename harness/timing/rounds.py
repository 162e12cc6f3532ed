"""The timing loop: which sample is taken when, and when to stop. It knows neither torch nor CUDA.

Variants of a point take turns (A B C, C B A, ...), so that a drifting clock or a noisy neighbour meets all of them
alike. A cell ends when the bootstrap interval of its leading figure's median is within SETTLED of the median, when the
point's time budget is spent, or after max_rounds; the record says which. No sample is dropped for its value; one taken
while the GPU held back is taken again, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.analysis.stats import median_interval, samples
from harness.records.schema import Metrics

#: Relative half-width of the interval at which a median counts as settled.
SETTLED = 0.01
#: Decimals of a microsecond that a sample keeps: 0.1 ns, far below any clock here, and half the size of a record.
DIGITS = 4
#: How often one sample is taken again while the GPU holds back; the last one is kept, and counted as disturbed.
RETRIES = 3
#: Rounds between two looks at the intervals; a look costs about as much as a round.
LOOK_EVERY = 5


class Stopwatch(Protocol):
    """One prepared launch, able to take one sample of everything that is measured of it."""

    leading: str
    #: One replay of the graph that was timed, so that its answer can be checked; None where there is no graph.
    replay: Callable[[], None] | None

    def sample(self) -> Mapping[str, Any]:
        """Figure -> microseconds of one sample; ``graph_us`` -> {copies: microseconds}."""

    def facts(self) -> Mapping[str, Any]:
        """Counted once: ``launches``, ``graph_nodes``, ``no_graph``."""


@dataclass
class Timing:
    """Samples of one variant at one point as they come in."""

    stopwatch: Stopwatch
    figures: dict[str, Any] = field(default_factory=dict)
    rounds: int = 0
    stopped: str | None = None
    error: BaseException | None = None
    discarded: dict[str, int] = field(default_factory=dict)
    disturbed: int = 0

    def take(self, throttle_reason: Callable[[], str | None]) -> None:
        """One sample; again while ``trouble`` gives a reason why the one just taken does not count."""
        for left in range(RETRIES, -1, -1):
            sample = self.stopwatch.sample()
            reason = throttle_reason()
            if reason is None:
                break
            if left:
                self.discarded[reason] = self.discarded.get(reason, 0) + 1
            else:
                self.disturbed += 1
        for figure, value in sample.items():
            if isinstance(value, Mapping):
                series = self.figures.setdefault(figure, {})
                for copies, one in value.items():
                    series.setdefault(copies, []).append(round(one, DIGITS))
            else:
                self.figures.setdefault(figure, []).append(round(value, DIGITS))
        self.rounds += 1

    def metrics(self, bytes_moved: int, **more: Any) -> Metrics:
        return Metrics(
            bytes_moved=bytes_moved,
            rounds=self.rounds,
            stopped=self.stopped,
            discarded=self.discarded,
            disturbed=self.disturbed,
            **self.figures,
            **self.stopwatch.facts(),
            **more,
        )

    def settled(self) -> bool:
        leading = samples(Metrics(bytes_moved=0, **self.figures), self.stopwatch.leading)
        return len(leading) > 1 and median_interval(leading).relative_half_width <= SETTLED


def rounds(
    stopwatches: Mapping[str, Stopwatch],
    *,
    min_rounds: int,
    max_rounds: int,
    budget_s: float,
    now_s: Callable[[], float],
    around: Callable[[str], AbstractContextManager] = lambda name: nullcontext(),
    throttle_reason: Callable[[], str | None] = lambda: None,
) -> Iterator[dict[str, Timing]]:
    """Sample all variants of one point in interleaved rounds until each has stopped; yields the timings after every
    round.

    around(name): a context manager around each sample (an NVTX range, checks). trouble(): why the sample just taken
    must be taken again. An exception inside a sample ends that variant alone and is kept in ``error``. min_rounds are
    taken even when the budget is spent already.
    """
    timings = {name: Timing(stopwatch) for name, stopwatch in stopwatches.items()}
    start = now_s()
    for round_number in range(1, max_rounds + 1):
        active = [name for name, timing in timings.items() if timing.stopped is None]
        if not active:
            break
        for name in active if round_number % 2 else reversed(active):
            timing = timings[name]
            try:
                with around(name):
                    timing.take(throttle_reason)
            except Exception as error:  # a variant's launch may raise anything; the others go on
                timing.error, timing.stopped = error, "error"
        if round_number >= min_rounds:
            spent = now_s() - start > budget_s
            look = round_number % LOOK_EVERY == 0 or spent
            for timing in timings.values():
                if timing.stopped is None and look and timing.settled():
                    timing.stopped = "settled"
                elif timing.stopped is None and spent:
                    timing.stopped = "budget"
        yield timings
    for timing in timings.values():
        timing.stopped = timing.stopped or "rounds"
    yield timings
