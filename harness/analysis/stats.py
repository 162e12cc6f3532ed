"""Figures from raw samples: medians, bootstrap intervals, graph slopes. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats as scipy_stats

from harness.records.schema import Calibration, Cell, Metrics

CONFIDENCE = 0.95
RESAMPLES = 1000


@dataclass(frozen=True)
class Interval:
    """A median with the bounds of its bootstrap interval, in the unit of the samples."""

    median: float
    low: float
    high: float

    @property
    def relative_half_width(self) -> float:
        return (self.high - self.low) / 2 / self.median if self.median else float("inf")


def median_interval(samples: Sequence[float], seed: int = 0) -> Interval:
    """Median and percentile-bootstrap interval (scipy.stats.bootstrap) at 95 %. One sample gives a point."""
    values = np.asarray(samples, dtype=float)
    median = float(np.median(values))
    if len(values) < 2 or np.ptp(values) == 0:
        return Interval(median, median, median)
    bounds = scipy_stats.bootstrap(
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
    """Marginal time of one more copy in the graph, one value per round: Theil-Sen slope of T(k) = a + b k.

    graph_us maps k, the copies in a graph, to the replay times of all rounds; round i is the i-th entry of each.
    """
    copies = sorted(graph_us)
    if len(copies) < 2:
        return []
    rounds = min(len(graph_us[k]) for k in copies)
    times, k = np.array([graph_us[k][:rounds] for k in copies]), np.array(copies, dtype=float)
    # Medians of all pairwise slopes, all rounds at once: scipy.stats.theilslopes takes one round a call, and seconds
    # for a run.
    i, j = np.triu_indices(len(k), 1)
    return np.median((times[j] - times[i]) / (k[j] - k[i])[:, None], axis=0).tolist()


@dataclass(frozen=True)
class Fit:
    """T(k) = overhead + slope k over the medians of each k; residual is the largest absolute deviation, all in us."""

    slope: float
    overhead: float
    residual: float


def fit(graph_us: Mapping[int, Sequence[float]]) -> Fit:
    copies = np.array(sorted(graph_us), dtype=float)
    times = np.array([np.median(graph_us[int(k)]) for k in copies])
    line = scipy_stats.theilslopes(times, copies)
    return Fit(
        float(line.slope), float(line.intercept), float(np.abs(times - line.intercept - line.slope * copies).max())
    )


#: What a table shows for a cell, in this order. cpu_us stands alone on a CPU.
GPU_FIGURES = ("gpu_us", "host_us", "eager_us")
FIGURES = (*GPU_FIGURES, "cpu_us")


def samples(metrics: Metrics, figure: str) -> list[float]:
    """Samples of one of FIGURES; empty where the cell has none."""
    return _gpu_us(metrics) if figure == "gpu_us" else list(getattr(metrics, figure))


def _gpu_us(metrics: Metrics) -> list[float]:
    """The slope of each round. In a cache state other than hot, plus what that state adds to a replay of the one-copy
    graph: that difference is free of the cost of the events and of the graph's own launch, which both replays pay.
    """
    hot = slopes(metrics.graph_us)
    if not metrics.state_us or not hot:
        return hot
    fewest = metrics.graph_us[min(metrics.graph_us)]
    return [slope + in_state - one for slope, in_state, one in zip(hot, metrics.state_us, fewest, strict=False)]


#: No median of a call lies outside, us: a nanosecond is two clock cycles, and no call is waited for longer than a
#: quarter of an hour.
LEAST_US, MOST_US = 1e-3, 1e9


def is_plausible(us: float) -> bool:
    """Whether a median may enter a ratio or a plot. Noise around nothing falls below, a damaged record anywhere."""
    return LEAST_US <= us <= MOST_US


def is_timed(cell: Cell, figure: str) -> bool:
    """Whether the cell passed and has samples of ``figure``. A slope (gpu_us) needs graphs of two lengths."""
    if cell.status != "passed" or cell.metrics is None:
        return False
    return len(cell.metrics.graph_us) > 1 if figure == "gpu_us" else bool(getattr(cell.metrics, figure))


def interval(cell: Cell, figure: str) -> Interval | None:
    """None where the cell did not pass or has no such samples."""
    if cell.status != "passed" or cell.metrics is None:
        return None
    values = samples(cell.metrics, figure)
    return median_interval(values) if values else None


def copy_bandwidth(calibration: Calibration) -> float:
    """Bytes per microsecond of a device-to-device copy, read and written bytes both counted."""
    return 2 * calibration.copy_bytes / float(np.median(calibration.copy_us))


def floor_us(calibration: Calibration, bytes_moved: int) -> float:
    """Slope of a one-block copy plus the bytes over the copy bandwidth of the run, microseconds: what a launch is
    measured against.

    No bound: a call whose data stay in L2 can lie below it.
    """
    return fit(calibration.own["block_copy"].graph_us).slope + bytes_moved / copy_bandwidth(calibration)
