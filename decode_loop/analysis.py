"""ITL and TPOT of decode loops, and what a stack changes in them, from the raw samples of a record.

A block of steps is the unit of evidence: all stacks replay the same requests in it, one after another, so their
difference is taken block by block. As with pairs of processes in a comparison of records, the median over the blocks
counts, since the host may be interrupted in some. The bootstrap resamples blocks. An interval is the value plus or
minus a quantile of Student's t times the bootstrap's standard error: with ten blocks percentiles of the resamples are
too narrow, and host times have heavy tails (Hesterberg, "What teachers should know about the bootstrap", The American
Statistician 69, 2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import scipy  # loads scipy.special, which takes long, where it is first used

from spec_decode_bench.decode_loop.records import Loop, LoopBlock, loops_of
from spec_decode_bench.harness.analysis import itl_tpot, stats
from spec_decode_bench.harness.analysis.stats import CONFIDENCE, Interval
from spec_decode_bench.harness.records.schema import Run, Status

Metric = Literal["itl_us", "host_itl_us", "tpot_us"]
#: The percentiles of a metric, by their name.
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
RESAMPLES = 2000
#: A request that was there for less than this share of a block counts for the mean of its TPOT, not for percentiles.
LEAST_SHARE = 0.5


@dataclass(frozen=True)
class Pool:
    """Samples of a metric with the block each comes from. weights: by which the mean counts them."""

    values: np.ndarray
    weights: np.ndarray
    blocks: np.ndarray
    ranked: np.ndarray  # whether a percentile counts it

    @property
    def means(self) -> np.ndarray:
        """Of each block."""
        return np.bincount(self.blocks, self.values * self.weights) / np.bincount(self.blocks, self.weights)

    def percentile(self, drawn: np.ndarray, share: float) -> np.ndarray:
        """The smallest value that at least ``share`` of the samples do not exceed; [resamples], for the blocks that
        were drawn, [resamples, blocks].
        """
        counts = (drawn[:, :, None] == np.arange(drawn.shape[1])).sum(axis=1, dtype=float)
        values, blocks = self.values[self.ranked], self.blocks[self.ranked]
        order = np.argsort(values, kind="stable")
        below_of_block = np.cumsum(np.arange(counts.shape[1])[:, None] == blocks[order], axis=1, dtype=float)
        below = counts @ below_of_block
        return values[order][np.argmax(below >= share * below[:, -1:] - 1e-9, axis=1)]


def pool(blocks: Sequence[LoopBlock], metric: Metric) -> Pool:
    """ITL: every interval once. TPOT: each request of a block by its time per token; its mean is time over tokens."""
    if metric != "tpot_us":
        values = np.concatenate([getattr(block, metric) for block in blocks])
        numbers = np.repeat(np.arange(len(blocks)), [len(block.itl_us) for block in blocks])
        return Pool(values, np.ones(len(values)), numbers, np.ones(len(values), dtype=bool))
    values, weights, numbers, ranked = [], [], [], []
    for number, block in enumerate(blocks):
        elapsed = np.concatenate([[0.0], np.cumsum(block.itl_us)])
        least = LEAST_SHARE * len(block.itl_us)
        for request in block.requests:
            time_us = elapsed[request.first + request.steps] - elapsed[request.first]
            values.append(time_us / request.tokens)
            weights.append(request.tokens)
            numbers.append(number)
            ranked.append(request.steps >= least)
    if not any(ranked):
        ranked = [True] * len(ranked)
    return Pool(np.array(values), np.array(weights, dtype=float), np.array(numbers), np.array(ranked, dtype=bool))


def is_measured(loop: Loop) -> bool:
    return loop.status == Status.PASSED and bool(loop.blocks)


def value(loop: Loop, metric: Metric, percentile: str | None = None) -> float:
    """Microseconds: the middle of the means of the blocks, or a percentile over all of them."""
    values = pool(loop.blocks, metric)
    if percentile is None:
        return float(stats.middle(values.means))
    return float(values.percentile(np.arange(len(loop.blocks))[None], PERCENTILES[percentile])[0])


@dataclass(frozen=True)
class Delta:
    """A stack minus the reference stack, microseconds, and in per cent of the reference; negative is faster."""

    us: Interval
    percent: Interval


def delta(reference: Loop, loop: Loop, metric: Metric, percentile: str | None = None) -> Delta | None:
    """Over the blocks that both have; None for fewer than two. percentile: as of ``value``. Raises ValueError for
    stacks of different loops.
    """
    if reference.point != loop.point:
        raise ValueError(f"{loop.key} and {reference.key} are not of the same loop")
    ours, theirs = ({block.number: block for block in side.blocks} for side in (loop, reference))
    shared = sorted(ours.keys() & theirs.keys())
    if len(shared) < 2:
        return None
    before = pool([theirs[number] for number in shared], metric)
    after = pool([ours[number] for number in shared], metric)
    blocks = len(shared)
    drawn = _resampled(blocks)
    if percentile is None:
        old = stats.middle(before.means)
        change = stats.middle((after.means - before.means)[drawn])
    else:
        old = before.percentile(drawn, PERCENTILES[percentile])
        change = after.percentile(drawn, PERCENTILES[percentile]) - old
    return Delta(us=_interval(change, blocks), percent=_interval(100 * change / old, blocks))


@lru_cache(maxsize=8)
def _resampled(blocks: int) -> np.ndarray:
    """[1 + RESAMPLES, blocks]: every block once, then those that were drawn."""
    return np.vstack([np.arange(blocks), np.random.default_rng(0).integers(0, blocks, (RESAMPLES, blocks))])


def _interval(values: np.ndarray, blocks: int) -> Interval:
    """From the value over all blocks and its resamples. sqrt(n / (n - 1)): resamples of n blocks vary too little."""
    error = np.std(values[1:]) * np.sqrt(blocks / (blocks - 1))
    half = float(scipy.special.stdtrit(blocks - 1, 1 - (1 - CONFIDENCE) / 2) * error)
    return Interval(float(values[0]), float(values[0]) - half, float(values[0]) + half)


# --- what else a loop tells -------------------------------------------------------------------------------------------


def tokens_per_s(loop: Loop) -> float:
    """Tokens that all requests received, over the time of the device."""
    tokens = sum(request.tokens for block in loop.blocks for request in block.requests)
    return tokens / (1e-6 * sum(sum(block.itl_us) for block in loop.blocks))


def gap_us(loop: Loop) -> float:
    """Mean time from the end of a model step to the beginning of the next one."""
    return float(np.mean(np.concatenate([block.gap_us for block in loop.blocks])))


def host_busy_share(loop: Loop) -> float:
    """Share of the time in which the host prepares and submits steps; the rest it waits for the device."""
    busy = sum(sum(block.host_busy_us) for block in loop.blocks)
    return busy / sum(sum(block.itl_us) for block in loop.blocks)


def late_share(loop: Loop) -> float:
    """Share of the steps that the host submitted after the device had finished the step before."""
    return sum(block.late for block in loop.blocks) / sum(len(block.itl_us) for block in loop.blocks)


def alone(loop: Loop, metric: str) -> float | None:
    """Median of a time of all operators of a step one after another, outside of the loop; None without samples."""
    samples = stats.samples(loop.alone, metric) if loop.alone is not None else []
    return float(np.median(samples)) if samples else None


def cost_metric(loop: Loop) -> str:
    """Which time of the operators delays a step of this loop, as in harness/analysis/itl_tpot.py: ``eager_us``, here
    from ``waited_us``, where the host waits for every step, QUEUED where it runs ahead, ``gpu_us`` in a graph.
    """
    if loop.axes.get("graph") == "full":
        return "gpu_us"
    return itl_tpot.cost_metric(loop.axes["scheduling"])


def modelled_itl_us(reference: Loop, loop: Loop) -> float | None:
    """The change of the ITL that the model predicts from the operators' times outside of the loop, microseconds.

    The eager time is that after a wait for the device, as in a loop; its trimmed mean, as of a process. None where the
    operators were not timed, as on a CPU.
    """
    metric, costs = cost_metric(loop), []
    for stack in (reference, loop):
        if metric == "eager_us":
            time_us = float(stats.trimmed_mean(stack.waited_us)) if stack.waited_us else None
        else:
            time_us = alone(stack, metric)
        if time_us is None:
            return None
        costs.append(time_us)
    return costs[1] - costs[0]


def by_point(run: Run) -> dict[str, list[Loop]]:
    """Point -> lines of its stacks, in the order of the configuration."""
    points: dict[str, list[Loop]] = {}
    for loop in sorted(loops_of(run), key=run.number_of):
        points.setdefault(loop.point, []).append(loop)
    return points


def reference_of(loops: Sequence[Loop]) -> Loop | None:
    """The measured reference stack among the lines of one loop."""
    return next((loop for loop in loops if loop.stack == loop.reference and is_measured(loop)), None)
