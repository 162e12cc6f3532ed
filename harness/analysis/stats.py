"""Metrics derived from raw samples: medians, bootstrap intervals, graph slopes, the copy bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from spec_decode_bench.harness.records.schema import Calibration, Cell, KernelTimes, Metrics, Status

CONFIDENCE = 0.95
RESAMPLES = 1000
#: Share of the samples left out of a trimmed mean at either end: two of twenty, none of six.
TRIMMED_SHARE = 0.1


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
    """Median with its 95 % percentile-bootstrap interval; a point for one sample.

    As scipy.stats.bootstrap has it, the import of which would take half a second of every start.
    """
    values = np.asarray(samples, dtype=float)
    median = float(np.median(values))
    if len(values) < 2 or np.ptp(values) == 0:
        return Interval(median, median, median)
    drawn = values[np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.median(drawn, axis=1), [tail, 1 - tail])
    return Interval(median, float(low), float(high))


def slopes(graph_us: Mapping[int, Sequence[float]]) -> list[float]:
    """The time of one more copy in the graph, one value per round: Theil-Sen slope b of T(k) = a + b k.

    graph_us: k, the copies in a graph -> its replay times, one per round. Empty for fewer than two k.
    """
    copies = sorted(graph_us)
    if len(copies) < 2:
        return []
    rounds = min(len(graph_us[k]) for k in copies)
    times = np.array([graph_us[k][:rounds] for k in copies])
    return _theil_sen(np.array(copies, dtype=float), times).tolist()


def _theil_sen(k: np.ndarray, times: np.ndarray) -> np.ndarray:
    """For each column of ``times``, which has a row for each k, the median of all pairwise slopes. k ascends."""
    i, j = np.triu_indices(len(k), 1)
    return np.median((times[j] - times[i]) / (k[j] - k[i])[:, None], axis=0)


@dataclass(frozen=True)
class Fit:
    """T(k) = overhead + slope k through the medians of each k, microseconds; residual: the largest deviation."""

    slope: float
    overhead: float
    residual: float


def fit(graph_us: Mapping[int, Sequence[float]]) -> Fit:
    copies = np.array(sorted(graph_us), dtype=float)
    times = np.array([np.median(graph_us[int(k)]) for k in copies])
    slope = float(_theil_sen(copies, times[:, None])[0])
    overhead = float(np.median(times) - slope * np.median(copies))
    return Fit(slope, overhead, float(np.abs(times - overhead - slope * copies).max()))


#: The metrics of a cell, in the order of tables; cpu_us on a CPU only.
GPU_METRICS = ("gpu_us", "host_us", "eager_us")
METRICS = (*GPU_METRICS, "cpu_us")


#: Device time of one more call in a stream in which all of them are queued: what it costs where the host runs ahead.
#: Not a metric of the tables: it cross-checks gpu_us, and the model of ITL and TPOT needs it.
QUEUED = "queued_us"


def samples(metrics: Metrics | KernelTimes, metric: str) -> list[float]:
    """Samples of one of METRICS, or QUEUED; empty where the cell has none."""
    if metric == QUEUED:
        return slopes(metrics.stream_us)
    return _gpu_us(metrics) if metric == "gpu_us" else list(getattr(metrics, metric))


def _gpu_us(metrics: Metrics | KernelTimes) -> list[float]:
    """The graph slope of each round, in the run's cache state.

    In a state other than hot it is the hot slope plus what the state adds to a replay of the one-copy graph. That
    difference does not contain the cost of the events and of the graph launch, which is the same in both replays.
    """
    hot, added = slopes(metrics.graph_us), _added_by_state_us(metrics)
    return [slope + more for slope, more in zip(hot, added, strict=False)] if added and hot else hot


def _added_by_state_us(metrics: Metrics | KernelTimes) -> list[float]:
    """What the run's cache state adds in each round; empty where it is hot."""
    fewest = metrics.graph_us[min(metrics.graph_us)] if metrics.state_us and metrics.graph_us else []
    return [in_state - replay for in_state, replay in zip(metrics.state_us, fewest, strict=False)]


#: Least median of a call in microseconds: a nanosecond is two clock cycles. A difference of two times may be less.
MIN_PLAUSIBLE_US = 1e-3


def is_plausible(us: float) -> bool:
    """Whether a median may enter a ratio or a plot; noise around zero may not."""
    return us >= MIN_PLAUSIBLE_US


def is_timed(cell: Cell, metric: str) -> bool:
    """Whether the cell passed and has samples of ``metric``; a slope needs calls of two sizes."""
    if cell.status != Status.PASSED or cell.metrics is None:
        return False
    if metric == QUEUED:
        return len(cell.metrics.stream_us) > 1
    return len(cell.metrics.graph_us) > 1 if metric == "gpu_us" else bool(getattr(cell.metrics, metric))


def timed_samples(cell: Cell, metric: str) -> list[float]:
    """The samples of ``metric``; empty where the cell did not pass or has none."""
    return samples(cell.metrics, metric) if is_timed(cell, metric) else []


def interval(cell: Cell, metric: str) -> Interval | None:
    """The median of ``metric`` with its interval; None where the cell did not pass or has no such samples."""
    values = timed_samples(cell, metric)
    return median_interval(values) if values else None


def median_us(cell: Cell, metric: str) -> float | None:
    """The median of ``metric``; None where the cell has no such samples, or it is not plausible."""
    return _plausible(np.median, cell, metric)


def trimmed_mean(values: Any, share: float = TRIMMED_SHARE) -> Any:
    """Over the last axis, without ``share`` of the values at each end."""
    count = np.shape(values)[-1]
    cut = int(share * count)
    return np.mean(np.sort(values, axis=-1)[..., cut : count - cut], axis=-1)


#: Of so many paired observations the median counts.
FOR_A_MEDIAN = 5


def middle(values: Any) -> Any:
    """Over the last axis, of observations that are pairs, such as the differences of two variants by process, or of two
    stacks by block: the median, so that an interruption in some of them does not count; of fewer than FOR_A_MEDIAN the
    mean.
    """
    return (np.mean if np.shape(values)[-1] < FOR_A_MEDIAN else np.median)(values, axis=-1)


def process_us(cell: Cell, metric: str) -> float | None:
    """What a process says of ``metric`` where processes are compared: the trimmed mean of its samples. Placements can
    give two times, between which a median jumps. None as for the median.
    """
    return _plausible(trimmed_mean, cell, metric)


def _plausible(statistic: Callable[[Sequence[float]], Any], cell: Cell, metric: str) -> float | None:
    values = timed_samples(cell, metric)
    value = float(statistic(values)) if values else math.nan
    return value if is_plausible(value) else None


def geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def copy_bandwidth(calibration: Calibration) -> float:
    """Bytes per microsecond of a device-to-device copy; bytes read and bytes written both count."""
    return 2 * calibration.copy_bytes / float(np.median(calibration.copy_us))


@cache
def copy_bound_curve(calibration: Calibration) -> tuple[np.ndarray, np.ndarray]:
    """(bytes read and written, microseconds of the fastest copy kernel that moves at least as many, where its buffers
    lie best), both ascending; in the run's cache state.
    """
    sizes = sorted(calibration.copies)
    best = [min(map(_best_us, calibration.copies[size].values())) for size in sizes]
    return np.array(sizes, dtype=float), np.minimum.accumulate(np.array(best)[::-1])[::-1]


def _best_us(times: KernelTimes) -> float:
    """Of the fastest placement. What the cache state adds is a difference of two replays, of which the least is noise:
    its median counts.
    """
    added = _added_by_state_us(times)
    return min(slopes(times.graph_us)) + (float(np.median(added)) if added else 0.0)


def copy_bound_us(calibration: Calibration, bytes_moved: int) -> float:
    """What the fastest copy kernel of the same run takes for ``bytes_moved``, microseconds: between the sizes that were
    measured linear, or as the lines of the neighbouring sizes go on where that is less, since the curve bends upwards
    at the end of the L2; at the bandwidth of the largest beyond it.
    """
    sizes, times = copy_bound_curve(calibration)
    between = float(np.interp(bytes_moved, sizes, times))
    after = int(np.searchsorted(sizes, bytes_moved))
    if 2 <= after < len(sizes) - 1:
        lines = [(sizes[i : i + 2], times[i : i + 2]) for i in (after - 2, after)]
        continued = [y[0] + (bytes_moved - x[0]) * (y[1] - y[0]) / (x[1] - x[0]) for x, y in lines]
        between = min(between, float(max(continued)))
    return between * max(1.0, bytes_moved / float(sizes[-1]))


COPY_BOUND = "copy bound: the run's fastest copy kernel that moves as many bytes, in its cache state"
