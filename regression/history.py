"""A cell's time over commits, and where it changed.

The medians of a cell over the states of a history are cut into stretches of equal level by optimal partitioning
(Jackson et al. 2005), the exact minimum of what PELT and binary segmentation search for:

    sum over states of  processes * (log median - level of its stretch)^2 / s^2   +   a penalty for each change

s^2 is the variance between processes. The penalty is that of the Bayesian information criterion for two parameters, a
place and a level, 2 log n, where n counts the states of all cells, as all of them are searched. Changes below a
threshold are then joined again, the smallest first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
from packaging.version import InvalidVersion, Version

from spec_decode_bench.harness.analysis import stats
from spec_decode_bench.harness.analysis.moderated import moderate
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.packages import project
from spec_decode_bench.harness.records.differences import differences, values
from spec_decode_bench.harness.records.schema import Cell, Environment, RecordError, Run

#: Relative change that is worth a line.
THRESHOLD = 0.02
#: Median of |x| for a standard normal x, and of chi^2 with one degree of freedom.
_MAD = 0.6745
#: States below which differences between neighbours say nothing about the noise.
MIN_FOR_DIFFERENCES = 4


@dataclass(frozen=True)
class State:
    """The code with the software it ran on: one place of the time axis. differs: what changed beside the code since the
    state before, in words. name: what tells its code from that of the other states: the commit, such as ``0123abc+``
    with uncommitted changes, and packages that variants wrap, ``vLLM 1a2b3c4``.
    """

    runs: tuple[Run, ...]
    differs: tuple[str, ...]
    name: str

    @property
    def environment(self) -> Environment:
        return self.runs[0].header.environment

    @property
    def date(self) -> str:
        return self.runs[0].header.started[:10]


@dataclass(frozen=True)
class Change:
    """at: the first state after it. base_us, head_us: levels before and after it, microseconds."""

    at: int
    base_us: float
    head_us: float

    @property
    def ratio(self) -> float:
        return self.head_us / self.base_us


@dataclass(frozen=True)
class Series:
    """One cell. median_us: of each state, microseconds, over the medians of its processes; NaN where it was not timed.
    level_us: of the stretch that a state belongs to.
    """

    cell: Cell
    median_us: tuple[float, ...]
    level_us: tuple[float, ...]
    changes: tuple[Change, ...]

    @property
    def largest(self) -> float:
        """The largest change, as the absolute logarithm of its ratio; 0 where there is none."""
        return max((abs(math.log(change.ratio)) for change in self.changes), default=0.0)


@dataclass(frozen=True)
class History:
    """states: in the order of time. series: of every cell that two states timed. metric: which time it is.

    blind: why no change can be found, None where it can.
    """

    states: tuple[State, ...]
    series: list[Series] = field(default_factory=list)
    metric: str = "gpu_us"
    threshold: float = THRESHOLD
    blind: str | None = None

    @property
    def changed(self) -> list[Series]:
        """The series with a change, the largest first."""
        return sorted((series for series in self.series if series.changes), key=lambda series: -series.largest)


def history(runs: Sequence[Run], metric: str | None = None, threshold: float = THRESHOLD) -> History:
    """The series of all cells over the commits of the runs, ordered by when a commit was first recorded. Of one commit
    of the suite with several checkouts of a package, by when these were committed.

    metric: one of stats.METRICS; by default gpu_us, and cpu_us of runs on a CPU.

    Raises RecordError for runs that are no one history: of several GPU models or CPUs, cache states or seeds, or of one
    state only.
    """
    if not 0 < threshold < 1:
        raise RecordError(f"--threshold {threshold:g} is not between 0 and 1; 0.02 is 2 %")
    _check_one_history(runs)
    metric = metric or ("gpu_us" if runs[0].header.environment.device == "cuda" else "cpu_us")
    if metric not in stats.METRICS:
        raise RecordError(f"--metric {metric}: choose one of {', '.join(stats.METRICS)}")
    states = _states(runs)
    if len(states) < 2:
        raise RecordError(f"all records are of commit {states[0].name}; a history needs two commits or more")
    cells, medians = _medians(states, metric)
    if not cells:
        raise RecordError(f"no cell has {metric} at two commits or more")
    variance = _noise(medians)
    timed = [np.array([np.median(of_state) if of_state else np.nan for of_state in of_cell]) for of_cell in medians]
    weights = [np.array([len(of_state) for of_state in of_cell], dtype=float) for of_cell in medians]
    penalty = 2 * math.log(sum(int(np.isfinite(of_cell).sum()) for of_cell in timed))
    series = [
        _series(cell, us, counts, noise, penalty, threshold)
        for cell, us, counts, noise in zip(cells, timed, weights, variance, strict=True)
    ]
    blind = None
    if not np.isfinite(variance).any():
        blind = (
            f"{counted(len(states), 'commit')} with one process each do not show the noise; record two processes of "
            f"each commit, or {MIN_FOR_DIFFERENCES} commits"
        )
    return History(states, series, metric, threshold, blind)


def _check_one_history(runs: Sequence[Run]) -> None:
    first = runs[0]
    for run in runs[1:]:
        for difference in differences(first, run, "history"):
            raise RecordError(f"{difference.between(first.path, run.path)}; a history is of one {difference.name}")


def _states(runs: Sequence[Run]) -> tuple[State, ...]:
    grouped: dict[tuple[object, ...], list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.header.started):
        grouped.setdefault(tuple(values(run, "state").items()), []).append(run)
    states: list[State] = []
    groups, name_of = _in_order(list(grouped.values()))
    named = ("commit", "dirty") if name_of is _commit else ("packages", "checkouts")
    for members in groups:
        differs = _what_differs(states[-1].runs, members, named) if states else ()
        states.append(State(tuple(members), differs, name_of(members[0].header.environment)))
    return tuple(states)


def _in_order(groups: list[list[Run]]) -> tuple[list[list[Run]], Callable[[Environment], str]]:
    """(the runs of each state in order, what names a state): of time and the suite's commit; where that is one, of what
    changed of the packages that variants wrap, by the dates of checkouts or the versions of releases.
    """
    environments = [members[0].header.environment for members in groups]
    names = dict.fromkeys(name for environment in environments for name in environment.wrapped)
    changing = [name for name in names if len({environment.wrapped.get(name) for environment in environments}) > 1]
    if len({_commit(environment) for environment in environments}) > 1 or not changing:
        return groups, _commit

    def name_of(environment: Environment) -> str:
        return ", ".join(f"{project(name)} {environment.wrapped.get(name, 'absent')}" for name in changing)

    def committed(members: list[Run]) -> list[datetime]:
        checkouts = members[0].header.environment.checkouts
        return [datetime.fromisoformat(checkouts[name].date) for name in changing]

    def released(members: list[Run]) -> list[Version]:
        return [Version(members[0].header.environment.packages[name]) for name in changing]

    checkouts = [environment.checkouts.get(name) for environment in environments for name in changing]
    if all(checkout is not None and checkout.date for checkout in checkouts):
        return sorted(groups, key=committed), name_of
    if not any(checkouts):
        with suppress(KeyError, InvalidVersion):  # of one that is absent, or unknown
            return sorted(groups, key=released), name_of
    return groups, name_of


def _commit(environment: Environment) -> str:
    """Of the suite."""
    return f"{(environment.commit or 'unknown')[:7]}{'+' if environment.dirty else ''}"


def _what_differs(before: Sequence[Run], now: Sequence[Run], named: Collection[str]) -> tuple[str, ...]:
    """What else a change may come from than what names a state: software, another GPU of the model."""
    software = [
        f"{difference.name} {difference.ours} → {difference.theirs}"
        for difference in differences(before[-1], now[0], "state")
        if difference.name.partition(".")[0] not in named
    ]
    gpus = [{run.header.environment.gpu_id for run in side} for side in (before, now)]
    return (*software, "another GPU") if gpus[0] != gpus[1] and None not in gpus[0] | gpus[1] else tuple(software)


def _medians(states: Sequence[State], metric: str) -> tuple[list[Cell], list[list[list[float]]]]:
    """Cells, and of each for every state the medians of its processes; cells that fewer than two states timed are left
    out.
    """
    cells: dict[str, Cell] = {}
    medians: dict[str, list[list[float]]] = {}
    for number, state in enumerate(states):
        for run in state.runs:
            for cell in run.in_order:
                if (us := stats.median_us(cell, metric)) is not None:
                    cells.setdefault(cell.key, cell)
                    medians.setdefault(cell.key, [[] for _ in states])[number].append(us)
    kept = [key for key, of_cell in medians.items() if sum(map(bool, of_cell)) > 1]
    return [cells[key] for key in kept], [medians[key] for key in kept]


def _noise(medians: Sequence[Sequence[Sequence[float]]]) -> np.ndarray:
    """Variance between processes of the logarithm of each cell's median; NaN where nothing shows it.

    Between processes of one state where there are several; else from the differences between neighbouring states, whose
    median absolute value few changes do not move. It is moderated (regression/moderated.py).
    """
    variance, freedom, log_time = (np.zeros(len(medians)) for _ in range(3))
    for i, of_cell in enumerate(medians):
        logs = [np.log(of_state) for of_state in of_cell if of_state]
        within = sum(len(state) - 1 for state in logs)
        log_time[i] = float(np.mean(np.concatenate(logs)))
        if within >= 2 or (within and len(logs) < MIN_FOR_DIFFERENCES):
            variance[i] = sum(float(((state - state.mean()) ** 2).sum()) for state in logs) / within
            freedom[i] = within
        elif len(logs) >= MIN_FOR_DIFFERENCES:
            steps = np.abs(np.diff([state.mean() for state in logs]))
            variance[i] = (float(np.median(steps)) / _MAD) ** 2 / 2
            freedom[i] = (len(logs) - 1) / 2  # a median absolute deviation is about half as efficient
    return moderate(variance, freedom, log_time).variance


def _series(
    cell: Cell, us: np.ndarray, weights: np.ndarray, variance: float, penalty: float, threshold: float
) -> Series:
    timed = np.flatnonzero(np.isfinite(us))
    logs, counts = np.log(us[timed]), weights[timed]
    starts = partition(logs, counts, variance, penalty) if np.isfinite(variance) else [0]
    levels = _join_small(logs, counts, starts, threshold)
    level_us = np.full(len(us), np.nan)
    for (start, level), end in zip(levels, [start for start, _ in levels[1:]] + [len(timed)], strict=True):
        level_us[timed[start:end]] = math.exp(level)
    changes = [
        Change(int(timed[start]), math.exp(before), math.exp(after))
        for (_, before), (start, after) in itertools.pairwise(levels)
    ]
    return Series(cell, tuple(us.tolist()), tuple(level_us.tolist()), tuple(changes))


def partition(values: np.ndarray, weights: np.ndarray, variance: float, penalty: float) -> list[int]:
    """Where the stretches of equal level begin, 0 first: the exact minimum of the cost in the docstring above.

    weights: processes behind each value, whose variance is ``variance`` / weight.
    """
    count = len(values)
    w, wx, wxx = (np.concatenate([[0.0], np.cumsum(weights * values**power)]) for power in (0, 1, 2))
    best, origin = np.zeros(count + 1), [0] * (count + 1)
    best[0] = -penalty
    for end in range(1, count + 1):
        begin = np.arange(end)
        spread = wxx[end] - wxx[begin] - (wx[end] - wx[begin]) ** 2 / (w[end] - w[begin])
        costs = best[begin] + np.maximum(spread, 0) / variance + penalty
        origin[end] = int(np.argmin(costs))
        best[end] = costs[origin[end]]
    starts, end = [], count
    while end:
        end = origin[end]
        starts.append(end)
    return starts[::-1]


def _join_small(
    values: np.ndarray, weights: np.ndarray, starts: Sequence[int], threshold: float
) -> list[tuple[int, float]]:
    """(start, level) of the stretches, once those whose levels differ by less than the threshold are joined."""
    starts = list(starts)
    while True:
        ends = [*starts[1:], len(values)]
        levels = [float(np.average(values[a:b], weights=weights[a:b])) for a, b in zip(starts, ends, strict=True)]
        steps = np.abs(np.diff(levels))
        if not len(steps) or steps.min() >= math.log1p(threshold):
            return list(zip(starts, levels, strict=True))
        del starts[int(np.argmin(steps)) + 1]
