"""The estimators of a call's GPU time: their constants, their calibration, and whether they agree on a cell.

Three estimators time the same work in different ways:

    graph slope      slope of T(k), the replay time of a CUDA graph of k copies of the call; ``gpu_us`` is this one
    queued events    slope over calls that are queued one by one between two events, behind a blocking kernel
    CUPTI            durations of the kernels, memcpys and memsets of one call, summed

Each adds a constant per launch: the start and end of a kernel, a gap, a place in a queue. The spin kernels of a run
read their own duration off the GPU's global timer, which gives

    constant = median over the spins of (measured - true)            residual = measured - true - constant

A run is calibrated where every residual is within the tolerance of its estimator: RESIDUAL for the graph slope,
CROSS_CHECK for those that it is only compared with: gaps in a stream vary by some 50 ns with the duration of a kernel.

To compare the estimators on a cell, each value is converted to a time in a graph, like ``gpu_us``:

    queued events    value + launches * c
    CUPTI            value + launches * c + s

c is the mean of (graph slope - estimator) per launch over the kinds of calibration kernels: an empty one, copies by one
block and by thousands, PyTorch operators, chains of those, a warp that reads many arguments or runs through much code,
some like a fused step, rows of block tables, an update of state, a thread that follows pointers, and the spins. s is 0
with a hot cache. In another cache state the first launch of a call waits for what ran before, so an estimator whose
samples are taken in that state has two constants: c, what the chain adds for each launch after the first, and s, what
kernels of one launch add to that.

The constant is not quite the same for every kind of kernel. Its spread u is the largest deviation per launch, so
a converted value is uncertain by launches * u. Two estimators disagree on a cell where they differ by more than
AGREEMENT and by more than launches * u. Large kernels deviate more, and count only for large cells: under CUPTI those
that move more than LARGE_BYTES, in queued events those of more than LARGE_GRID blocks.

On an H200, not on an H100, the gap between two launches of one kernel in a stream grows with about the square root of
its blocks; in a graph and between the different kernels of a chain it does not. So c of queued events has a part for
the root of the blocks, for large cells of one launch, up to the blocks of the largest calibration kernel. Not every
kernel has that gap ("bulk_copy" has none): all values between those with and without this part are possible.

Where a call reads the host's memory, or moves more than half of the L2, its time depends on what ran before it: another
copy in a graph, a gap in a stream, a traced kernel under CUPTI. That is named as the reason of a disagreement.

A new estimator is an entry of ESTIMATORS, a field of records.schema.EstimatorSamples, and the code that takes the
samples of that field: CudaStopwatch.sample in the process that times, or Auditor._samples in the one that uses CUPTI.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from spec_decode_bench.harness.analysis.cache_states import CACHE_STATES, cache_state_errors
from spec_decode_bench.harness.analysis.stats import fit, samples, trimmed_mean
from spec_decode_bench.harness.records.schema import Calibration, KernelTimes, Metrics
from spec_decode_bench.harness.wording import signed, significant


@dataclass(frozen=True)
class Tolerance:
    """An absolute or a relative deviation, whichever is larger."""

    us: float
    share: float

    def allowed_us(self, time_us: float) -> float:
        return max(self.us, self.share * time_us)

    def __str__(self) -> str:
        return f"max({1000 * self.us:.0f} ns, {100 * self.share:g} %)"


#: Of a calibration kernel of known duration, by the graph slope and by the other estimators; and between two estimators
#: of one cell.
RESIDUAL, CROSS_CHECK = Tolerance(us=0.05, share=0.01), Tolerance(us=0.1, share=0.01)
AGREEMENT = Tolerance(us=0.1, share=0.03)
#: A call is large for CUPTI if it moves more bytes, and in queued events if it has more blocks a launch.
LARGE_BYTES, LARGE_GRID = 2**19, 100


@dataclass(frozen=True)
class Constant:
    """What to add to an estimator's value of a call to get its time in a graph, microseconds.

    mean_us:   per launch.
    spread_us: largest deviation from it among the calibration kernels, per launch.
    once_us:   per call, for the wait of its first launch in a cache state other than hot.
    root_us:   per square root of the blocks of a call of one launch, of ``most_blocks`` where it has more.
    """

    mean_us: float
    spread_us: float
    once_us: float = 0.0
    root_us: float = 0.0
    most_blocks: int = 0

    def of(self, launches: int, blocks: int = 0) -> tuple[float, float]:
        """The least and the most that it can be: with and without the part for ``blocks``, of all launches together."""
        without = launches * self.mean_us + self.once_us
        root = math.sqrt(min(blocks, self.most_blocks)) if launches == 1 else 0.0
        return tuple(sorted((without, without + root * self.root_us)))

    def __str__(self) -> str:
        parts = [f"{signed(1000 * self.mean_us, '.0f')} ± {1000 * self.spread_us:.0f} ns a launch"]
        if self.once_us:
            parts.append(f"{signed(1000 * self.once_us, '.0f')} ns a call")
        if self.root_us:
            parts.append(f"{signed(1000 * self.root_us, '.1f')} ns times the root of its blocks")
        return ", ".join(parts)


@dataclass(frozen=True)
class Estimator:
    """One way to time a call on the GPU.

    name:      as tables, plots and messages show it.
    field:     of Metrics and KernelTimes, where its samples are.
    us_a_call: its samples -> microseconds of one call, constant included; None where there are too few.
    is_large:  whether a call's constant is that of large kernels; large: these in words.
    in_state:  whether the samples are taken in the run's cache state, and not with a hot cache.
    by_blocks: whether the constant of large kernels depends on their blocks.
    tolerance: of its residuals.
    """

    name: str
    field: str
    us_a_call: Callable[[Any], float | None]
    is_large: Callable[[Metrics | KernelTimes], bool] = lambda call: call.bytes_moved > LARGE_BYTES
    large: str = f"more than {LARGE_BYTES >> 10} KiB moved"
    in_state: bool = False
    by_blocks: bool = False
    tolerance: Tolerance = CROSS_CHECK

    def value_us(self, times: Metrics | KernelTimes) -> float | None:
        """Microseconds of one call, constant included; None where it was not taken."""
        taken = getattr(times, self.field)
        return self.us_a_call(taken) if taken else None

    def constant(self, calls: Sequence[tuple[int, int, float]], cache_is_hot: bool) -> Constant:
        """From calibration kernels, as (launches, blocks, graph slope - estimator in microseconds)."""
        launches, blocks, differences = (np.array(column, dtype=float) for column in zip(*calls, strict=True))
        most_blocks = int(blocks.max()) if self.by_blocks else 0
        columns = {"mean_us": np.ones_like(launches)}
        if most_blocks > LARGE_GRID:
            columns["root_us"] = np.sqrt(blocks) * (launches == 1)
        if self.in_state and not cache_is_hot and (launches > 1).any():
            columns["once_us"] = 1 / launches
        design = np.stack(list(columns.values()), axis=1)
        fitted = np.linalg.lstsq(design, differences / launches, rcond=None)[0]
        constant = Constant(
            spread_us=0.0, most_blocks=most_blocks, **dict(zip(columns, map(float, fitted), strict=True))
        )
        deviations = (
            float(abs(difference - np.clip(difference, *constant.of(launches, blocks))) / launches)
            for launches, blocks, difference in calls
        )
        return replace(constant, spread_us=max(deviations))


def _graph_slope(graph_us: Mapping[int, Sequence[float]]) -> float | None:
    return fit(graph_us).slope if len(graph_us) > 1 else None


def _queued_slope(stream_us: Mapping[int, Sequence[float]]) -> float | None:
    """Means, because the gaps of a stream take a few discrete values, between which a median jumps; without the fifth
    of the samples at each end, as one of six may be microseconds off.
    """
    if len(stream_us) < 2:
        return None
    fewest, most = min(stream_us), max(stream_us)
    longer, shorter = (trimmed_mean(stream_us[calls], 0.2) for calls in (most, fewest))
    return float((longer - shorter) / (most - fewest))


def _median(cupti_us: Sequence[float]) -> float:
    return float(np.median(cupti_us))


def _has_large_grid(call: Metrics | KernelTimes) -> bool:
    """By its traffic where the record is older than the numbers of blocks."""
    return call.blocks > LARGE_GRID * (call.launches or 1) if call.blocks else call.bytes_moved > LARGE_BYTES


GRAPH_SLOPE = Estimator("graph slope", "graph_us", _graph_slope, tolerance=RESIDUAL)
QUEUED_EVENTS = Estimator(
    "queued events",
    "stream_us",
    _queued_slope,
    is_large=_has_large_grid,
    large=f"more than {LARGE_GRID} blocks a launch",
    by_blocks=True,
)
CUPTI = Estimator("CUPTI", "cupti_us", _median, in_state=True)
#: The first is the one that the others are compared with.
ESTIMATORS = (GRAPH_SLOPE, QUEUED_EVENTS, CUPTI)


# --- calibration ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Residual:
    """One spin kernel under one estimator, microseconds. measured_us: without the estimator's constant."""

    estimator: Estimator
    true_us: float
    measured_us: float

    @property
    def error_us(self) -> float:
        return self.measured_us - self.true_us

    @property
    def allowed_us(self) -> float:
        return self.estimator.tolerance.allowed_us(self.true_us)


def residuals(calibration: Calibration) -> list[Residual]:
    """Every spin kernel under every estimator that was taken."""
    residuals_of_spins = []
    for estimator in ESTIMATORS:
        pairs = [
            (float(np.mean(spin.true_us)), value)
            for spin in calibration.spins.values()
            if (value := estimator.value_us(spin)) is not None
        ]
        if pairs:
            constant = float(np.median([value - true for true, value in pairs]))
            residuals_of_spins += [Residual(estimator, true, value - constant) for true, value in pairs]
    return residuals_of_spins


def calibration_errors(calibration: Calibration, cache_name: str = "hot") -> tuple[str, ...]:
    """Why a run is not calibrated, one sentence each: residuals beyond tolerance, a cache state not confirmed."""
    reasons = [
        f"{r.estimator.name}: a spin of {r.true_us:.2f} us is measured {signed(r.error_us * 1000, '.0f')} ns off, "
        f"{r.allowed_us * 1000:.0f} ns are allowed"
        for r in residuals(calibration)
        if abs(r.error_us) > r.allowed_us
    ]
    return (*reasons, *cache_state_errors(calibration, CACHE_STATES[cache_name]))


def event_quantum_us(calibration: Calibration) -> float:
    """The smallest step between two event times in this run; 0 where all were equal."""
    steps = np.diff(np.unique(np.round(calibration.empty_pair_us, 4)))
    return float(steps.min()) if len(steps) else 0.0


@cache
def constant_of(estimator: Estimator, calibration: Calibration, large: bool) -> Constant | None:
    """The constant of an estimator, where it has timed all calibration kernels. large: of large calls.

    All spins together count as one kind of kernel.
    """
    own = [kernel for kernel in calibration.own.values() if large or not estimator.is_large(kernel)]
    spins = list(calibration.spins.values())
    differences = [_to_graph_us(estimator, kernel) for kernel in (*own, *spins)]
    if None in differences:
        return None
    calls = [(kernel.launches, kernel.blocks, difference) for kernel, difference in zip(own, differences, strict=False)]
    calls.append((1, spins[0].blocks, float(np.mean(differences[len(own) :]))))
    cache_is_hot = not any(kernel.state_us for kernel in calibration.own.values())
    return estimator.constant(calls, cache_is_hot)


def _to_graph_us(estimator: Estimator, kernel: KernelTimes) -> float | None:
    """Time in a graph minus this estimator's value, both in the cache state of the estimator; None if not taken."""
    value = estimator.value_us(kernel)
    if value is None:
        return None
    state_adds = 0.0
    if estimator.in_state and kernel.state_us:
        state_adds = float(np.median(kernel.state_us) - np.median(kernel.graph_us[min(kernel.graph_us)]))
    return GRAPH_SLOPE.value_us(kernel) - value + state_adds


# --- agreement on a cell ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimates:
    """A cell's times in a graph, microseconds.

    graph:  the median of its gpu_us.
    others: the other estimators that were taken -> (the possible value nearest to ``graph``, allowed difference).
    """

    graph: float
    others: Mapping[Estimator, tuple[float, float]]

    @property
    def agree(self) -> bool:
        return all(abs(value - self.graph) <= allowed for value, allowed in self.others.values())

    def __str__(self) -> str:
        values = {GRAPH_SLOPE: self.graph} | {estimator: value for estimator, (value, _) in self.others.items()}
        return ", ".join(f"{estimator.name} {significant(value, 4)}" for estimator, value in values.items()) + " us"


def estimates(metrics: Metrics | None, calibration: Calibration | None) -> Estimates | None:
    """None where the cell has no gpu_us, or the run no calibration."""
    gpu = samples(metrics, "gpu_us") if metrics is not None else []
    if not gpu or calibration is None or metrics.launches is None:
        return None
    graph, launches = float(np.median(gpu)), metrics.launches
    state_adds = graph - fit(metrics.graph_us).slope if metrics.state_us else 0.0
    others = {}
    for estimator in ESTIMATORS[1:]:
        value, constant = estimator.value_us(metrics), constant_of(estimator, calibration, estimator.is_large(metrics))
        if value is not None and constant is not None:
            value += 0.0 if estimator.in_state else state_adds
            allowed = max(AGREEMENT.allowed_us(graph), launches * constant.spread_us)
            least, most = constant.of(launches, metrics.blocks)
            others[estimator] = float(np.clip(graph, value + least, value + most)), allowed
    return Estimates(graph, others)


def disagreement(metrics: Metrics | None, calibration: Calibration | None, l2_bytes: int | None = None) -> str | None:
    """The estimators' values in words where they disagree, with the reason if it is known; None where they agree or
    cannot be compared.
    """
    estimated = estimates(metrics, calibration)
    if estimated is None or estimated.agree:
        return None
    reason = reason_to_disagree(metrics, l2_bytes)
    return f"estimators disagree: {estimated}" + (f" ({reason})" if reason else "")


def reason_to_disagree(metrics: Metrics, l2_bytes: int | None) -> str | None:
    """Why the time of a call depends on what runs before it, which differs from estimator to estimator."""
    if metrics.uses_bus:
        return "host memory over the bus"
    if l2_bytes and metrics.bytes_moved > l2_bytes / 2:
        return "traffic of more than half of the L2"
    return None
