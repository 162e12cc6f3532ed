"""The estimators of a call's GPU time: their errors on known times, and whether a second one confirms a cell's time.

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

    value + launches * c            c = (graph slope - value of the chain) / launches of the chain

The chain is a calibration kernel of the run: five PyTorch operators. Other kernels have other constants, but rarely for
both estimators: ``gpu_us`` is confirmed where at least one is within AGREEMENT of it, and doubted where both were taken
and neither is.

A new estimator is an entry of ESTIMATORS, a field of records.schema.EstimatorSamples, and the code that takes the
samples of that field: CudaStopwatch.sample in the process that times, or Auditor._samples in the one that uses CUPTI.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from spec_decode_bench.harness.analysis.cache_states import CACHE_STATES, cache_state_errors
from spec_decode_bench.harness.analysis.stats import fit, samples, trimmed_mean
from spec_decode_bench.harness.numbers import signed, significant
from spec_decode_bench.harness.records.schema import Calibration, KernelTimes, Metrics


@dataclass(frozen=True)
class Tolerance:
    """An absolute or a relative deviation, whichever is larger."""

    us: float
    share: float

    def allowed_us(self, time_us: float) -> float:
        return max(self.us, self.share * time_us)

    def __str__(self) -> str:
        return f"max({1000 * self.us:.0f} ns, {100 * self.share:g} %)"


#: Of a calibration kernel of known duration, by the graph slope and by the other estimators.
RESIDUAL, CROSS_CHECK = Tolerance(us=0.05, share=0.01), Tolerance(us=0.1, share=0.01)
#: Between two estimators of one cell.
AGREEMENT = Tolerance(us=0.1, share=0.04)
#: The calibration kernel that gives the constants.
CHAIN = "chain"


@dataclass(frozen=True)
class Estimator:
    """One way to time a call on the GPU.

    name:      as tables, plots and messages show it.
    field:     of Metrics and KernelTimes, where its samples are.
    us_a_call: its samples -> microseconds of one call, constant included; None where there are too few.
    in_state:  whether the samples are taken in the run's cache state, and not with a hot cache.
    tolerance: of its residuals.
    """

    name: str
    field: str
    us_a_call: Callable[[Any], float | None]
    in_state: bool = False
    tolerance: Tolerance = CROSS_CHECK

    def value_us(self, times: Metrics | KernelTimes) -> float | None:
        """Microseconds of one call, constant included; None where it was not taken."""
        taken = getattr(times, self.field)
        return self.us_a_call(taken) if taken else None


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


GRAPH_SLOPE = Estimator("graph slope", "graph_us", _graph_slope, tolerance=RESIDUAL)
QUEUED_EVENTS = Estimator("queued events", "stream_us", _queued_slope)
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


# --- a cell -----------------------------------------------------------------------------------------------------------


@cache
def constant_us(estimator: Estimator, calibration: Calibration) -> float | None:
    """What to add to an estimator's value for each launch, by the chain; None where it was not taken."""
    chain = calibration.own.get(CHAIN)
    value = _in_state_us(estimator, chain) if chain is not None else None
    return None if value is None else (_gpu_us(chain) - value) / chain.launches


def _gpu_us(times: Metrics | KernelTimes) -> float:
    return float(np.median(samples(times, "gpu_us")))


def _in_state_us(estimator: Estimator, times: Metrics | KernelTimes) -> float | None:
    """An estimator's value in the run's cache state, to which one with a hot cache adds what ``gpu_us`` adds."""
    value = estimator.value_us(times)
    if value is None or estimator.in_state or not times.state_us:
        return value
    return value + _gpu_us(times) - GRAPH_SLOPE.value_us(times)


@dataclass(frozen=True)
class Estimates:
    """A cell's times in a graph, microseconds: the median of its gpu_us, and those by the others that were taken."""

    gpu_us: float
    others: Mapping[Estimator, float]

    @property
    def is_confirmed(self) -> bool:
        return any(abs(us - self.gpu_us) <= AGREEMENT.allowed_us(self.gpu_us) for us in self.others.values())

    @property
    def is_doubted(self) -> bool:
        """All were taken, and none confirms it: a cell without an audit is never doubted."""
        return len(self.others) == len(ESTIMATORS) - 1 and not self.is_confirmed

    def __str__(self) -> str:
        values = {GRAPH_SLOPE: self.gpu_us} | dict(self.others)
        return ", ".join(f"{estimator.name} {significant(us, 4)}" for estimator, us in values.items()) + " us"


def estimates(metrics: Metrics | None, calibration: Calibration | None) -> Estimates | None:
    """None where the cell has no gpu_us, or the run no calibration."""
    if metrics is None or calibration is None or metrics.launches is None or not samples(metrics, "gpu_us"):
        return None
    others = {}
    for estimator in ESTIMATORS[1:]:
        value, constant = _in_state_us(estimator, metrics), constant_us(estimator, calibration)
        if value is not None and constant is not None:
            others[estimator] = value + metrics.launches * constant
    return Estimates(_gpu_us(metrics), others)


def doubt(metrics: Metrics | None, calibration: Calibration | None) -> str | None:
    """The estimators' values in words where the cell is doubted, else None."""
    found = estimates(metrics, calibration)
    return f"no second estimator confirms: {found}" if found is not None and found.is_doubted else None
