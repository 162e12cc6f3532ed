"""How far the figures of a run can be trusted: the ruler against known times, and three estimators against each other.

Every estimator adds a constant of its own per launch: the kernel's start and end, a gap, a place in a queue. It is
known from the spin kernels of the run, which read their own duration off the GPU's global timer:

    constant = median over the spins of (measured - true)            residual = measured - true - constant

A run is calibrated where every residual of every estimator stays within max(50 ns, 1 %) of the true time.

A cell's three values are brought to the in-graph time that gpu_us means. CUPTI sees the same graph without its gaps;
events around launches that are queued one by one see the gaps of a stream, which are larger:

    graph    the slope                                      cupti    sum of durations + launches * c_cupti + s
    events   slope over queued launches + launches * c_events

with each c the mean of (graph - estimator) per launch over the kinds of kernels the ruler has of its own: nothing, a
copy by one block, a copy by hundreds, operators of PyTorch and a chain of such, the spins. s is 0 in a hot cache. In
another state the first launch of a call waits for what came before it (H200: 0.6 us, each further one 0.24 us, where a
hot launch adds 0.08 us): there c_cupti is what the chain adds for each launch but its first one, and s what kernels of
one launch add to that. Queued launches are timed hot in any state, and c_events is what it is in a hot cache.

What a launch adds is not quite the same for each kind (on an H200 within 180 ns hot, 200 ns cold), and no estimator can
be surer of a cell than of these: u is the largest deviation per launch. A cell is untrusted where events or CUPTI
differ from the graph by more than 3 %, and by more than 100 ns, and by more than launches * u. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.stats import trim_mean

from harness.analysis.stats import fit, samples
from harness.records.schema import Calibration, KernelTimes, Metrics
from harness.wording import significant

ESTIMATORS = ("graph", "events", "cupti")
#: Tolerances of the calibration and of the agreement between estimators.
RESIDUAL_US, RESIDUAL_SHARE = 0.05, 0.01
DISAGREEMENT_US, DISAGREEMENT_SHARE = 0.1, 0.03
#: Share of queued samples left out of a mean at either end: two of a calibration's twenty, none of the six that a cell
#: has.
TRIMMED = 0.1
#: The pointer chase must come this close to the level it claims, as a share of the way from L2 to memory.
NEAR = 0.35


def measured(probe: KernelTimes) -> dict[str, float]:
    """Estimator -> microseconds of one call of a kernel of the ruler's own, constants included; only those that were
    taken.
    """
    found = {"graph": fit(probe.graph_us).slope, "events": _marginal(probe.stream_us)}
    if probe.cupti_us:
        found["cupti"] = float(np.median(probe.cupti_us))
    return found


def _marginal(stream_us: Mapping[int, Sequence[float]]) -> float:
    """One more queued launch. Means, as the gaps of a stream fall on a few values, between which a median jumps."""
    fewest, most = min(stream_us), max(stream_us)
    return float((trim_mean(stream_us[most], TRIMMED) - trim_mean(stream_us[fewest], TRIMMED)) / (most - fewest))


@dataclass(frozen=True)
class Residual:
    """One spin kernel under one estimator, microseconds. measured_us: constant already taken off."""

    estimator: str
    true_us: float
    measured_us: float

    @property
    def error_us(self) -> float:
        return self.measured_us - self.true_us

    @property
    def allowed_us(self) -> float:
        return max(RESIDUAL_US, RESIDUAL_SHARE * self.true_us)


def residuals(calibration: Calibration) -> list[Residual]:
    """Every spin under every estimator that was taken, the estimator's constant taken off."""
    found = []
    for estimator in ESTIMATORS:
        pairs = [
            (float(np.mean(p.true_us)), values[estimator])
            for p in calibration.spins.values()
            if estimator in (values := measured(p))
        ]
        if pairs:
            constant = float(np.median([value - true for true, value in pairs]))
            found += [Residual(estimator, true, value - constant) for true, value in pairs]
    return found


def event_quantum_us(calibration: Calibration) -> float:
    """The finest step between two event times that this run saw; 0 where all were equal."""
    steps = np.diff(np.unique(np.round(calibration.empty_pair_us, 4)))
    return float(steps.min()) if len(steps) else 0.0


def calibration_errors(calibration: Calibration, cache: str = "hot") -> tuple[str, ...]:
    """Why this ruler is not calibrated, one sentence each; empty where it is."""
    found = [
        f"{r.estimator}: a spin of {r.true_us:.2f} us comes out {r.error_us * 1000:+.0f} ns off, {r.allowed_us * 1000:.0f} ns are allowed"
        for r in residuals(calibration)
        if abs(r.error_us) > r.allowed_us
    ]
    return (*found, *_cache_state_errors(calibration, cache))


def _cache_state_errors(calibration: Calibration, cache: str) -> list[str]:
    """The pointer chase says in which level of memory a state really leaves the data."""
    cycles = {state: float(np.median(values)) for state, values in calibration.chase_cycles.items()}
    if "l2" not in cycles or "memory" not in cycles:
        return []
    near, far = cycles["l2"], cycles["memory"]
    if far <= 1.3 * near:
        return [
            f"cache state unproved: a hop takes {near:.0f} cycles in L2 and {far:.0f} in memory, too close to tell them apart"
        ]
    wanted = {"hot": ("hot", near), "cold": ("cold", far), "serving": ("serving", near)}
    checks = [wanted[cache]] + ([("serving_table", far)] if cache == "serving" else [])
    return [
        f"cache state {cache} unproved: a hop takes {cycles[state]:.0f} cycles, {level:.0f} are expected"
        for state, level in checks
        if state in cycles and abs(cycles[state] - level) > NEAR * (far - near)
    ]


@dataclass(frozen=True)
class Constant:
    """What to add to an estimator to get in-graph time, from the ruler's own kernels, microseconds.

    mean_us: per launch. spread_us: the largest deviation from it, per launch. once_us: per call, of CUPTI in a cache state other than hot.
    """

    mean_us: float
    spread_us: float
    once_us: float = 0.0

    def of(self, launches: int) -> float:
        return launches * self.mean_us + self.once_us

    def __str__(self) -> str:
        once = f", {1000 * self.once_us:+.0f} ns a call" if self.once_us else ""
        return f"{1000 * self.mean_us:+.0f} ± {1000 * self.spread_us:.0f} ns a launch{once}"


@dataclass(frozen=True)
class Estimates:
    """The values of a cell, microseconds of in-graph time: ``graph``, and estimator -> (value, how far it may lie
    off).
    """

    graph: float
    others: Mapping[str, tuple[float, float]]

    @property
    def agree(self) -> bool:
        return all(abs(value - self.graph) <= allowed for value, allowed in self.others.values())

    def __str__(self) -> str:
        others = [f"{_WORDS[name]} {significant(value, 4)}" for name, (value, _) in self.others.items()]
        return ", ".join([f"graph slope {significant(self.graph, 4)}", *others]) + " us"


_WORDS = {"events": "queued events", "cupti": "CUPTI"}


def estimates(metrics: Metrics | None, calibration: Calibration | None) -> Estimates | None:
    """The values of one cell; None where it has no gpu_us or the run no ruler."""
    gpu = samples(metrics, "gpu_us") if metrics is not None else []
    if not gpu or calibration is None or metrics.launches is None:
        return None
    graph = float(np.median(gpu))
    taken = {}
    if len(metrics.stream_us) > 1:
        # Queued launches are always timed hot; what the cache state adds is known from the graph alone.
        taken["events"] = _marginal(metrics.stream_us) + (
            graph - fit(metrics.graph_us).slope if metrics.state_us else 0.0
        )
    if metrics.cupti_us:
        taken["cupti"] = float(np.median(metrics.cupti_us))
    known, n = constants(calibration), metrics.launches
    floor = max(DISAGREEMENT_US, DISAGREEMENT_SHARE * graph)
    corrected = {
        name: (taken[name] + c.of(n), max(floor, n * c.spread_us)) for name, c in known.items() if name in taken
    }
    return Estimates(graph, corrected)


def untrusted(metrics: Metrics | None, calibration: Calibration | None) -> str | None:
    """The three values in words where they disagree; None where they agree or there is nothing to set against each
    other.
    """
    found = estimates(metrics, calibration)
    return None if found is None or found.agree else f"untrusted: {found}"


@cache
def constants(calibration: Calibration) -> dict[str, Constant]:
    """Estimator -> its constant; the spins together count as one kernel. Only estimators that saw every kernel."""
    spins, kinds = (
        [(probe.launches, _missing(probe)) for probe in probes.values()]
        for probes in (calibration.spins, calibration.own)
    )
    in_state = any(probe.state_us for probe in calibration.own.values())
    shared = [name for name in ("events", "cupti") if all(name in found for _, found in (*kinds, *spins))]
    taken = {}
    for name in shared:
        calls = [*((n, found[name]) for n, found in kinds), (1, float(np.mean([found[name] for _, found in spins])))]
        taken[name] = _constant(calls, in_state and name == "cupti")
    return taken


def _constant(calls: Sequence[tuple[int, float]], in_state: bool) -> Constant:
    """From (launches, microseconds an estimator misses) of kernels of the ruler's own."""
    chains = [(n, missing) for n, missing in calls if n > 1]
    if in_state and chains:
        single = float(np.mean([missing for n, missing in calls if n == 1]))
        mean = float(np.mean([(missing - single) / (n - 1) for n, missing in chains]))
        once = single - mean
    else:
        mean, once = float(np.mean([missing / n for n, missing in calls])), 0.0
    return Constant(mean, max(abs(missing - once - n * mean) / n for n, missing in calls), once)


def _missing(probe: KernelTimes) -> dict[str, float]:
    """Estimator -> graph minus estimator. CUPTI looks at calls in the cache state of the run, queued events at hot
    ones.
    """
    values = measured(probe)
    in_state = (
        float(np.median(probe.state_us) - np.median(probe.graph_us[min(probe.graph_us)])) if probe.state_us else 0.0
    )
    return {name: values["graph"] - value + (in_state if name == "cupti" else 0.0) for name, value in values.items()}
