"""The timing loop: which sample is taken when, and when to stop.

The variants of a point are interleaved (A B C, C B A, ...), so that a drifting clock or a noisy neighbor affects all
of them alike. A cell stops when the bootstrap interval of its leading metric's median is within SETTLED of the median,
when the time budget of its point is spent, or after max_rounds; the record says which. No sample is dropped because of
its value. A sample taken while the GPU was throttled is repeated, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from spec_decode_bench.harness.analysis.stats import median_interval, samples
from spec_decode_bench.harness.records.schema import Metrics

if TYPE_CHECKING:
    from spec_decode_bench.harness.verify.output_probe import OutputProbe

#: Relative half-width of its interval at which a median counts as settled.
SETTLED = 0.01
#: Decimals of a sample in microseconds: 0.1 ns, far below the resolution of any clock here.
SAMPLE_DECIMALS = 4
#: How often a sample is repeated while the GPU is throttled; the last one is kept and counted as disturbed.
RETRIES = 3
#: Sets of buffers that the rounds cycle through, unless they are large. Whether a median has settled is checked after
#: as many rounds, so that it weights all sets alike.
PLACEMENTS = 10
#: Rounds with stream_us on a GPU: the cross-check needs fewer samples than the metric, and takes a quarter of a round.
STREAM_ROUNDS = 6


@dataclass(frozen=True)
class PlacedLaunch:
    """A launch on one set of buffers.

    output_probe:   checks that timed calls write their outputs.
    rewrite_inputs: queues what writes the inputs, for a cache state that needs it.
    """

    launch: Callable[[], Any]
    output_probe: OutputProbe | None = None
    rewrite_inputs: Callable[[], None] = lambda: None


class Stopwatch(Protocol):
    """One prepared launch, of which samples can be taken.

    leading: the metric that decides when the cell has settled.
    launch:  what is timed; buffer_set: on which it was timed last, by index.
    replay:  replays the largest graph that was timed, so that its result can be checked; None where there is no graph.
    """

    leading: str
    launch: Callable[[], Any]
    buffer_set: int
    replay: Callable[[], None] | None

    def sample(self, round_number: int = 0) -> Mapping[str, Any]:
        """Metric -> microseconds of one sample; of ``graph_us`` and ``stream_us`` by number of calls.

        round_number: determines on which set of buffers, if the stopwatch has several.
        """

    def facts(self) -> Mapping[str, Any]:
        """Other fields of Metrics: ``launches`` and ``graph_nodes``, or ``no_graph``."""


@dataclass
class CellTimings:
    """The samples of one variant at one point, as they come in.

    samples:   metric -> samples, or number of calls -> samples; as fields of Metrics.
    stopped:   why no more samples are taken: "settled", "budget", "rounds" or "error"; None while they are.
    error:     what a sample raised.
    discarded: throttle reason -> samples that were repeated.
    disturbed: samples that were kept although the GPU was still throttled during the last repetition.
    """

    stopwatch: Stopwatch
    samples: dict[str, Any] = field(default_factory=dict)
    rounds: int = 0
    stopped: str | None = None
    error: BaseException | None = None
    discarded: dict[str, int] = field(default_factory=dict)
    disturbed: int = 0

    def add_sample(self, throttle_reason: Callable[[], str | None] = lambda: None) -> None:
        """Take one sample. throttle_reason: why the one just taken must be repeated, None where it counts."""
        for retries_left in range(RETRIES, -1, -1):
            sample = self.stopwatch.sample(self.rounds)
            reason = throttle_reason()
            if reason is None:
                break
            if retries_left:
                self.discarded[reason] = self.discarded.get(reason, 0) + 1
            else:
                self.disturbed += 1
        for metric, value in sample.items():
            if isinstance(value, Mapping):
                series = self.samples.setdefault(metric, {})
                for calls, us in value.items():
                    series.setdefault(calls, []).append(round(us, SAMPLE_DECIMALS))
            else:
                self.samples.setdefault(metric, []).append(round(value, SAMPLE_DECIMALS))
        self.rounds += 1

    def metrics(
        self, bytes_moved: int, placements: int = 1, sm_clock_mhz: Sequence[int] = (), power_w: Sequence[float] = ()
    ) -> Metrics:
        """The arguments: as fields of Metrics."""
        return Metrics(
            bytes_moved=bytes_moved,
            rounds=self.rounds,
            stopped=self.stopped,
            discarded=self.discarded,
            disturbed=self.disturbed,
            placements=placements,
            sm_clock_mhz=list(sm_clock_mhz),
            power_w=list(power_w),
            **self.samples,
            **self.stopwatch.facts(),
        )

    def settled(self) -> bool:
        leading = samples(Metrics(bytes_moved=0, **self.samples), self.stopwatch.leading)
        return len(leading) > 1 and median_interval(leading).relative_half_width <= SETTLED


def interleave(
    stopwatches: Mapping[str, Stopwatch],
    *,
    min_rounds: int,
    max_rounds: int,
    budget_s: float,
    now_s: Callable[[], float],
    around: Callable[[str], AbstractContextManager] = lambda name: nullcontext(),
    throttle_reason: Callable[[], str | None] = lambda: None,
) -> Iterator[dict[str, CellTimings]]:
    """Sample the variants of one point in interleaved rounds until each has stopped; yields all timings after every
    round.

    min_rounds:      rounds that are taken even if the budget is spent before.
    around:          variant -> context manager around each of its samples (an NVTX range, checks).
    throttle_reason: see CellTimings.add_sample.

    An exception in a sample ends only its variant, and is kept in ``error``.
    """
    timings = {name: CellTimings(stopwatch) for name, stopwatch in stopwatches.items()}
    start = now_s()
    for round_number in range(1, max_rounds + 1):
        active = [name for name, timing in timings.items() if timing.stopped is None]
        if not active:
            break
        for name in active if round_number % 2 else reversed(active):
            timing = timings[name]
            try:
                with around(name):
                    timing.add_sample(throttle_reason)
            except Exception as error:  # a variant's launch may raise anything; the others go on
                timing.error, timing.stopped = error, "error"
        if round_number >= min_rounds:
            spent = now_s() - start > budget_s
            check = (round_number - min_rounds) % PLACEMENTS == 0 or spent
            for timing in timings.values():
                if timing.stopped is None and check and timing.settled():
                    timing.stopped = "settled"
                elif timing.stopped is None and spent:
                    timing.stopped = "budget"
        yield timings
    for timing in timings.values():
        timing.stopped = timing.stopped or "rounds"
    yield timings
