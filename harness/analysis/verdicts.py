"""From differences of times to verdicts: slower, faster, same or unsure. ``compare`` and ``--watch`` judge by this
rule, which docs/comparison.md explains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from spec_decode_bench.harness.analysis import moderated, stats
from spec_decode_bench.harness.analysis.stats import Interval
from spec_decode_bench.harness.records.schema import Cell

Verdict = Literal["slower", "faster", "same", "unsure"]
#: Relative change that matters, slow-down that a comparison must be able to see, and share of false alarms among the
#: cells called slower.
THRESHOLD, DETECT, RATE = 0.02, 0.05, 0.01
#: Device -> the metrics that decide. Host times do not: on a shared machine they change while the code does not.
GATING = {"cuda": ("gpu_us",), "cpu": ("cpu_us",)}


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Of a cell. ratio: head / base; its bounds hold for all cells that are judged together.

    sd:    standard deviation of an observation, relative, moderated by cells of similar time. df: its degrees of
           freedom.
    power: chance that a slow-down of ``detect`` would have been called slower. noisy: whether the cell varies unlike
           others of its time.
    """

    ratio: Interval
    verdict: Verdict
    sd: float
    df: float
    power: float
    noisy: bool


def judged(
    differences: Sequence[moderated.Difference],
    log_times: Sequence[float],
    enough: Sequence[bool],
    threshold: float = THRESHOLD,
    detect: float = DETECT,
    rate: float = RATE,
) -> list[Judgement]:
    """Judge cells together. log_times: logarithms of their times. enough: whether a cell has enough observations for a
    verdict. threshold, detect, rate: as of moderated.judge.
    """
    change, variance, df, factor = (
        np.array([getattr(one, name) for one in differences], float) for name in ("change", "variance", "df", "factor")
    )
    spread = moderated.moderate(variance, df, np.array(log_times))
    decision = moderated.judge(change, spread, factor, threshold, detect, rate)
    judgements = []
    for i in range(len(differences)):
        verdicts = [name for name in ("slower", "faster", "same") if enough[i] and getattr(decision, name)[i]]
        judgements.append(
            Judgement(
                ratio=Interval(median=_exp(change[i]), low=_exp(decision.low[i]), high=_exp(decision.high[i])),
                verdict=verdicts[0] if verdicts else "unsure",
                sd=math.sqrt(spread.variance[i]),
                df=float(spread.df[i]),
                power=float(decision.power[i]) if enough[i] else 0.0,
                noisy=bool(spread.outlier[i]),
            )
        )
    return judgements


def _exp(log_ratio: float) -> float:
    """A bound may be infinite."""
    return math.exp(min(max(float(log_ratio), -700.0), 700.0))


# --- pairs ------------------------------------------------------------------------------------------------------------


def rounds_of_both(base: Cell, head: Cell, metric: str) -> tuple[np.ndarray, np.ndarray] | None:
    """The samples of the rounds that both took; None where there are none, or one is not plausible."""
    sides = [np.array(stats.timed_samples(cell, metric)) for cell in (base, head)]
    count = min(map(len, sides))
    base_us, head_us = sides[0][:count], sides[1][:count]
    return (base_us, head_us) if count and min(base_us.min(), head_us.min()) >= stats.MIN_PLAUSIBLE_US else None


def paired(base_us: Sequence[float], head_us: Sequence[float]) -> moderated.Difference:
    """Of observations that are pairs: rounds of one process, or processes."""
    log_ratios, count = np.log(head_us) - np.log(base_us), len(base_us)
    variance = np.var(log_ratios, ddof=1) if count > 1 else 0.0
    factor = (1 if count < stats.FOR_A_MEDIAN else math.pi / 2) / count  # variance of a mean, and of a median
    return moderated.Difference(stats.middle(log_ratios), variance, count - 1, factor)


def since(before: moderated.Difference, now: moderated.Difference) -> moderated.Difference:
    """How a variant changed against another one that did not: what both have in common, such as the clock, cancels."""
    df = before.df + now.df
    variance = (before.df * before.variance + now.df * now.variance) / df if df else 0.0
    return moderated.Difference(now.change - before.change, variance, df, before.factor + now.factor)
