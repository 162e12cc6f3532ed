"""Figures derived from raw samples: medians, bootstrap intervals, graph slopes, the floor. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from harness.records.schema import Calibration, Cell, Metrics, Status

CONFIDENCE = 0.95
RESAMPLES = 1000


@dataclass(frozen=True)
class Interval:
    """A median and its bootstrap interval, in the unit of the samples."""

    median: float
    low: float
    high: float

    @property
    def relative_half_width(self) -> float:
        return (self.high - self.low) / 2 / self.median if self.median else float("inf")


def median_interval(samples: Sequence[float], seed: int = 0) -> Interval:
    """Median with its 95 % percentile-bootstrap interval (scipy.stats.bootstrap); a point for one sample."""
    values = np.asarray(samples, dtype=float)
    median = float(np.median(values))
    if len(values) < 2 or np.ptp(values) == 0:
        return Interval(median, median, median)
    bounds = scipy.stats.bootstrap(
        (values,),
        np.median,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(median, float(bounds.low), float(bounds.high))


def slopes(graph_us: Mapping[int, Sequence[float]]) -> list[float]:
    """The time of one more copy in the graph, one value per round: Theil-Sen slope b of T(k) = a + b k.

    graph_us: k, the copies in a graph -> its replay times, one per round. Empty for fewer than two k.
    """
    copies = sorted(graph_us)
    if len(copies) < 2:
        return []
    rounds = min(len(graph_us[k]) for k in copies)
    times, k = np.array([graph_us[k][:rounds] for k in copies]), np.array(copies, dtype=float)
    # Medians of all pairwise slopes, all rounds at once: scipy.stats.theilslopes takes one round per call, which
    # would take seconds for a run.
    i, j = np.triu_indices(len(k), 1)
    return np.median((times[j] - times[i]) / (k[j] - k[i])[:, None], axis=0).tolist()


@dataclass(frozen=True)
class Fit:
    """T(k) = overhead + slope k through the medians of each k, microseconds; residual: the largest deviation."""

    slope: float
    overhead: float
    residual: float


def fit(graph_us: Mapping[int, Sequence[float]]) -> Fit:
    copies = np.array(sorted(graph_us), dtype=float)
    times = np.array([np.median(graph_us[int(k)]) for k in copies])
    line = scipy.stats.theilslopes(times, copies)
    return Fit(
        float(line.slope), float(line.intercept), float(np.abs(times - line.intercept - line.slope * copies).max())
    )


#: The figures of a cell, in the order of tables; cpu_us on a CPU only.
GPU_FIGURES = ("gpu_us", "host_us", "eager_us")
FIGURES = (*GPU_FIGURES, "cpu_us")


#: Device time of one more call in a stream in which all of them are queued: what it costs where the host runs ahead.
#: Not a figure of the tables: it cross-checks gpu_us, and the model of ITL and TPOT needs it.
QUEUED = "queued_us"


def samples(metrics: Metrics, figure: str) -> list[float]:
    """Samples of one of FIGURES, or QUEUED; empty where the cell has none."""
    if figure == QUEUED:
        return slopes(metrics.stream_us)
    return _gpu_us(metrics) if figure == "gpu_us" else list(getattr(metrics, figure))


def _gpu_us(metrics: Metrics) -> list[float]:
    """The graph slope of each round, in the run's cache state.

    In a state other than hot it is the hot slope plus what the state adds to a replay of the one-copy graph. That
    difference does not contain the cost of the events and of the graph launch, which is the same in both replays.
    """
    hot = slopes(metrics.graph_us)
    if not metrics.state_us or not hot:
        return hot
    fewest = metrics.graph_us[min(metrics.graph_us)]
    return [slope + in_state - one for slope, in_state, one in zip(hot, metrics.state_us, fewest, strict=False)]


#: Microseconds between which a median of a call can lie: a nanosecond is two clock cycles, a quarter of an hour is
#: longer than any time limit.
MIN_PLAUSIBLE_US, MAX_PLAUSIBLE_US = 1e-3, 1e9


def is_plausible(us: float) -> bool:
    """Whether a median may enter a ratio or a plot; noise around zero and damaged records may not."""
    return MIN_PLAUSIBLE_US <= us <= MAX_PLAUSIBLE_US


def is_timed(cell: Cell, figure: str) -> bool:
    """Whether the cell passed and has samples of ``figure``; a slope needs calls of two sizes."""
    if cell.status != Status.PASSED or cell.metrics is None:
        return False
    if figure == QUEUED:
        return len(cell.metrics.stream_us) > 1
    return len(cell.metrics.graph_us) > 1 if figure == "gpu_us" else bool(getattr(cell.metrics, figure))


def interval(cell: Cell, figure: str) -> Interval | None:
    """The median of ``figure`` with its interval; None where the cell did not pass or has no such samples."""
    if cell.status != Status.PASSED or cell.metrics is None:
        return None
    values = samples(cell.metrics, figure)
    return median_interval(values) if values else None


def copy_bandwidth(calibration: Calibration) -> float:
    """Bytes per microsecond of a device-to-device copy; bytes read and bytes written both count."""
    return 2 * calibration.copy_bytes / float(np.median(calibration.copy_us))


def floor_us(calibration: Calibration, bytes_moved: int) -> float:
    """Graph slope of the one-block copy kernel plus bytes_moved over the copy bandwidth, microseconds.

    Both are of the same run. A reference for a call's time, no lower bound: a call whose data is in L2 can be faster.
    """
    return fit(calibration.own["block_copy"].graph_us).slope + bytes_moved / copy_bandwidth(calibration)
