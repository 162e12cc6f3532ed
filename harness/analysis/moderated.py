"""Changes of many cells judged from few processes each: moderated variances, false discoveries, power.

Every function works on the last axis, the cells of one comparison; axes before it are independent comparisons, so that
tools/error_rates.py can judge thousands at once with the code that ``compare`` uses.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy  # loads scipy.special, which takes long, where it is first used

Array = np.ndarray
#: Task below which no trend of the spread over the time of a call is fitted, only its level.
MIN_FOR_TREND = 16
#: Degree of that trend, a polynomial in the logarithm of the time.
DEGREE = 2
#: A cell whose variance is less likely than this under the prior keeps its own variance.
OUTLIER = 0.001
#: The observed range of log variances is widened by this over the square root of the number of cells, 1.3 standard
#: errors: with a prior that is surer than it should be, false alarms would be several times as frequent as stated.
CAUTION = 1.5
#: Prior degrees of freedom that can be told apart; beyond, the others' spread counts as known.
_DF0 = np.geomspace(0.5, 200, 80)
#: Least standard deviation of a logarithm of a median: 0.001 %, a hundredth of what is seen on a GPU.
MIN_SD = 1e-5


@dataclass(frozen=True)
class Spread:
    """Variance between processes of the logarithm of a cell's median, moderated. df: its degrees of freedom.

    outlier: whether the cell varies unlike those of its time, and keeps its own variance.
    """

    variance: Array
    df: Array
    outlier: Array


@dataclass(frozen=True)
class Difference:
    """change: logarithm of head / base. variance: between processes, of a logarithm of a time; df: its degrees of
    freedom. factor: variance of ``change`` in units of ``variance``.
    """

    change: Array
    variance: Array
    df: int
    factor: float


def difference(
    base: Array, head: Array, base_blocks: Sequence[Hashable], head_blocks: Sequence[Hashable]
) -> Difference:
    """Fit time = side + block by least squares, as of a randomized block design (Montgomery, *Design and Analysis of
    Experiments*, chapter 4): head is compared with base within each block, and what blocks differ in is no noise.

    base, head: logarithms of times, processes on the first axis. blocks: of each process, the GPU that it ran on. One
    of a block that only one side has adds to ``variance`` alone. At least one block must be on both sides.
    """
    blocks = {*base_blocks, *head_blocks}
    squares, weights, changes = 0.0, [], []
    for block in blocks:
        sides = [
            times[[own == block for own in of_side]] for times, of_side in ((base, base_blocks), (head, head_blocks))
        ]
        squares += sum(((times - times.mean(0)) ** 2).sum(0) for times in sides if len(times))
        if all(map(len, sides)):
            weights.append(len(sides[0]) * len(sides[1]) / (len(sides[0]) + len(sides[1])))
            changes.append(sides[1].mean(0) - sides[0].mean(0))
    change = sum(weight * own for weight, own in zip(weights, changes, strict=True)) / sum(weights)
    squares += sum(weight * (own - change) ** 2 for weight, own in zip(weights, changes, strict=True))
    df = len(base) + len(head) - len(blocks) - 1
    return Difference(change, squares / df if df > 0 else 0.0 * squares, max(df, 0), 1 / sum(weights))


@cache
def _log_f(df: float) -> tuple[Array, Array]:
    """(interquartile range, median) of log F(df, df0) for each df0 of _DF0."""
    low, middle, high = (np.log(scipy.special.fdtri(df, _DF0, p)) for p in (0.25, 0.5, 0.75))
    return high - low, middle


def _trend(log_time: Array, log_variance: Array, usable: Array) -> Array:
    """The usual log variance of cells of this time: a polynomial fitted by least squares, refitted twice without the
    cells that lie far above or below it.
    """
    count = usable.sum(-1, keepdims=True)
    weights = usable.astype(float)
    centre = (log_time * weights).sum(-1, keepdims=True) / np.maximum(count, 1)
    scale = np.sqrt(((log_time - centre) ** 2 * weights).sum(-1, keepdims=True) / np.maximum(count, 1))
    x = (log_time - centre) / np.maximum(scale, 1e-6)
    degree = DEGREE if log_time.shape[-1] >= MIN_FOR_TREND else 0
    powers = np.stack([x**k for k in range(degree + 1)], axis=-1)
    ridge = 1e-9 * np.eye(degree + 1)
    y = np.where(usable, log_variance, 0.0)
    fitted = np.zeros_like(y)
    for _ in range(3):
        weighted = powers * weights[..., None]
        normal = np.swapaxes(weighted, -1, -2) @ powers + ridge
        right = np.swapaxes(weighted, -1, -2) @ y[..., None]
        fitted = (powers @ np.linalg.solve(normal, right))[..., 0]
        residual = np.where(usable, y - fitted, np.nan)
        low, middle, high = _quantiles(residual, (0.25, 0.5, 0.75))
        inside = np.abs(residual - middle) <= 2.5 * np.maximum(high - low, 1e-9)
        weights = (usable & inside).astype(float)
    return fitted


def _quantiles(values: Array, shares: tuple[float, ...]) -> list[Array]:
    """Quantiles over the last axis, kept as an axis of length 1; NaN are left out."""
    with np.errstate(all="ignore"):
        quantiles = np.nanquantile(values, shares, axis=-1, keepdims=True)
    return list(np.nan_to_num(quantiles))


def moderate(variance: Array, df: Array, log_time: Array) -> Spread:
    """Moderate the variance of every cell by cells of similar time (Smyth 2004, with a trend as in limma).

    variance: sample variances between processes of log medians.  df: their degrees of freedom, 0 where there is none.
    log_time: logarithm of the time of a call.

    A cell's variance is taken as s0^2 chi^2-distributed around a prior s0^2 of its time with df0 degrees of freedom.
    Here df0 is that for which the interquartile range of log F(df, df0) is the one observed, and s0^2 follows from the
    median: as the moments that Smyth uses, but a few cells of another kind, which jump between two states, do not make
    the others lose their prior. Those cells (OUTLIER) keep their own variance (compare Phipson et al. 2016).
    """
    usable = np.broadcast_to(df > 0, variance.shape)
    df = np.broadcast_to(df, variance.shape).astype(float)
    usual_df = float(np.median(df[usable])) if usable.any() else 0.0
    if usual_df == 0:
        return Spread(np.full(variance.shape, np.nan), np.zeros(variance.shape), np.zeros(variance.shape, bool))
    own = np.maximum(variance, MIN_SD**2)
    if variance.shape[-1] < 3:
        return Spread(np.where(usable, own, np.nan), np.where(usable, df, 0.0), np.zeros(variance.shape, bool))
    log_own = np.log(own)
    trend = _trend(log_time, log_own, usable)
    low, middle, high = _quantiles(np.where(usable, log_own - trend, np.nan), (0.25, 0.5, 0.75))
    ranges, medians = _log_f(usual_df)
    count = np.maximum(usable.sum(-1, keepdims=True), 1)
    df0 = np.interp((high - low) * (1 + CAUTION / np.sqrt(count)), ranges[::-1], _DF0[::-1])
    prior = np.exp(trend + middle - np.interp(df0, _DF0, medians))
    outlier = usable & (scipy.special.fdtrc(np.maximum(df, 1), df0, own / prior) < OUTLIER)
    df0 = np.where(outlier, 0.0, df0)
    pooled = (df0 * prior + np.where(usable, df * own, 0.0)) / np.maximum(df0 + np.where(usable, df, 0.0), 1e-9)
    return Spread(np.maximum(pooled, MIN_SD**2), df0 + np.where(usable, df, 0.0), outlier)


@dataclass(frozen=True)
class Judgement:
    """Of every cell; logarithms of head / base. low, high: bounds that hold for all cells together.

    slower, faster: the bounds exclude 0 on that side, and the change exceeds the threshold.
    same:           the bounds lie within the threshold.
    power:          chance that this test would have called a cell slower that is slower by ``detect``.
    """

    low: Array
    high: Array
    slower: Array
    faster: Array
    same: Array
    power: Array


def judge(
    change: Array, spread: Spread, variance_factor: Array, threshold: Array | float, detect: float, rate: float
) -> Judgement:
    """Judge all cells of a comparison together.

    change:    logarithm of head / base.
    variance_factor: variance of ``change`` in units of ``spread.variance``: 1 / processes of base + 1 / those of head.
    threshold: the relative change that matters; detect: the one that should be seen.
    rate:      share of false discoveries among the cells called slower, and among those called faster
               (Benjamini and Hochberg 1995); on unchanged code the chance of any.

    The bounds are those that stay true for the cells selected (Benjamini and Yekutieli 2005), on each side at the level
    that decides there: a cell is discovered if and only if its bound excludes 0.
    """
    error = np.sqrt(spread.variance * variance_factor)
    df = np.maximum(spread.df, 1e-3)
    known = (spread.df > 0) & np.isfinite(error) & np.isfinite(change)
    statistic = np.where(known, change / np.where(known, error, 1.0), 0.0)
    up_level = _level(np.where(known, scipy.special.stdtr(df, -statistic), 1.0), known, rate)
    down_level = _level(np.where(known, scipy.special.stdtr(df, statistic), 1.0), known, rate)
    up, down = -scipy.special.stdtrit(df, up_level), -scipy.special.stdtrit(df, down_level)
    low, high = (np.where(known, bound, np.nan) for bound in (change - up * error, change + down * error))
    above, below = np.log1p(threshold), np.log1p(-np.minimum(threshold, 0.99))
    significance = np.log1p(detect) / np.where(known, error, 1.0) - up
    beyond_threshold = (np.log1p(detect) - above) / np.where(known, error, 1.0)
    with np.errstate(invalid="ignore"):
        return Judgement(
            low,
            high,
            slower=(low > 0) & (change > above),
            faster=(high < 0) & (change < below),
            same=(low >= below) & (high <= above),
            power=np.where(known, scipy.special.stdtr(df, np.minimum(significance, beyond_threshold)), 0.0),
        )


def _level(p: Array, known: Array, rate: float) -> Array:
    """The level of a single test at which the step-up procedure of Benjamini and Hochberg decides."""
    count = np.maximum(known.sum(-1, keepdims=True), 1)
    ordered = np.sort(p, axis=-1)
    rank = np.arange(1, p.shape[-1] + 1)
    rejected = np.where(ordered <= rate * rank / count, rank, 0).max(-1, keepdims=True)
    return rate * np.maximum(rejected, 1) / count
