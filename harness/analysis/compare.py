"""Two runs, cell by cell: slower, faster, same or unsure. Never imports torch.

Times are microseconds. A ratio is head over base: 1.05 is 5 % slower. ``unsure`` is an answer, never rounded to
``same``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from msgspec.structs import asdict
from scipy import stats as scipy_stats

from harness.analysis import stats
from harness.analysis.stats import Interval
from harness.exit_codes import BAD, OK, UNSURE
from harness.records.schema import Cell, Run
from harness.wording import did_you_mean, significant

Verdict = Literal["slower", "faster", "same", "unsure"]
VERDICTS: tuple[Verdict, ...] = ("slower", "faster", "same", "unsure")
THRESHOLD = 0.02
FLOOR_US = 0.1
#: Significant digits of a time that is shown beside another.
DIGITS = 4
#: A percentile bootstrap of fewer samples reports an interval far too narrow, so it gives none.
MIN_SAMPLES = 5
#: What decides the exit code. Host times are shown and do not: on a shared machine they move without the code moving.
GATING = {"cuda": ("gpu_us",), "cpu": ("cpu_us",)}
CORRELATED = (
    "Samples inside one process are correlated: these intervals are evidence from one pair of processes only. "
    "Repeat both runs in fresh processes before trusting a small change."
)


class CompareError(Exception):
    """The two runs cannot be compared, or not as asked; the message says why. Exit code 2."""


@dataclass(frozen=True)
class Difference:
    """A field of the environment or of the header that the runs do not share. None: not there."""

    name: str
    base: Any
    head: Any


@dataclass(frozen=True)
class Transition:
    """A cell that cannot be compared, with its state on both sides in words. ``timed``: base holds a gating figure."""

    key: str
    base: str
    head: str
    timed: bool


@dataclass(frozen=True)
class Row:
    """One figure of one cell. base_us, head_us: medians. ratio: head / base. change_us: head - base.

    Bounds are NaN where samples are too few (MIN_SAMPLES) or not positive, ``ratio.median`` where a median is not
    positive.
    """

    operator: str
    variant: str
    point: str
    figure: str
    base_us: float
    head_us: float
    ratio: Interval
    change_us: Interval
    verdict: Verdict

    @property
    def texts(self) -> tuple[str, str]:
        """base_us and head_us with digits enough to see a change of the threshold."""
        return significant(self.base_us, DIGITS), significant(self.head_us, DIGITS)


@dataclass(frozen=True)
class Comparison:
    """What ``compare`` found. ``gating`` are the figures that decide ``exit_code``.

    broken: passed in base, mismatch or failed in head; fixed: the reverse. base_only, head_only: absent on the other side.
    lost: present in both, but what base timed has no comparable time in head.
    """

    base: Run
    head: Run
    threshold: float
    floor_us: float
    gating: tuple[str, ...]
    differences: list[Difference]
    rows: list[Row] = field(default_factory=list)
    broken: list[Transition] = field(default_factory=list)
    fixed: list[Transition] = field(default_factory=list)
    lost: list[Transition] = field(default_factory=list)
    base_only: list[Transition] = field(default_factory=list)
    head_only: list[Transition] = field(default_factory=list)

    @property
    def gating_rows(self) -> list[Row]:
        return [row for row in self.rows if row.figure in self.gating]

    @property
    def untimed(self) -> list[Transition]:
        """Timed in base, and not broken, yet without a comparable time in head."""
        return [one for one in (*self.base_only, *self.lost) if one.timed]

    @property
    def exit_code(self) -> int:
        """1: a gating figure is slower or a cell broke. 3: one is unsure, or what base timed has no comparable time
        in head. Else 0.
        """
        verdicts = {row.verdict for row in self.gating_rows}
        if self.broken or "slower" in verdicts:
            return BAD
        return UNSURE if self.untimed or "unsure" in verdicts else OK

    def counts(self, *figures: str) -> Counter[Verdict]:
        return Counter(row.verdict for row in self.rows if row.figure in figures)


def compare(
    base: Run, head: Run, threshold: float = THRESHOLD, floor_us: float = FLOOR_US, figures: Sequence[str] | None = None
) -> Comparison:
    """Join the cells of two runs by key and judge every figure that both have.

    figures: the gating ones; by default GATING of the device. Where a file holds a key twice, the later record counts.

    Raises CompareError: CPU against GPU; no cell that both time, unless cells broke; unknown figure; bad threshold or
    floor.
    """
    devices = base.header.environment.device, head.header.environment.device
    if devices[0] != devices[1]:
        raise CompareError(
            f"{base.path} was timed on {devices[0]} and {head.path} on {devices[1]}; CPU and GPU times are never compared"
        )
    if base.cache != head.cache:
        raise CompareError(
            f"{base.path} was timed with a {base.cache} cache and {head.path} with a {head.cache} one; record them alike"
        )
    if unknown := [figure for figure in figures or () if figure not in stats.FIGURES]:
        raise CompareError(f"no figure named {unknown[0]}{did_you_mean(unknown[0], stats.FIGURES)}")
    if not 0 < threshold < 1 or not floor_us >= 0:
        raise CompareError(
            f"threshold {threshold:g} must lie between 0 and 1 (2 % is 0.02) and floor {floor_us:g} must not be negative"
        )
    gating = tuple(figures or GATING[devices[0]])
    result = Comparison(base, head, threshold, floor_us, gating, _differences(base, head))
    _join(result)
    if not result.gating_rows and not result.broken:
        raise CompareError(f"{base.path} and {head.path} have no cell in common that both time by {', '.join(gating)}")
    return result


def judge(ratio: Interval, change_us: Interval, threshold: float, floor_us: float) -> Verdict:
    """The verdict on one figure from two 95 % intervals.

    slower: the whole ratio interval lies above 1 + threshold, and the medians differ by more than floor_us.
    faster: the mirror image, below 1 - threshold.
    same:   the whole ratio interval lies within 1 ± threshold.
    unsure: anything else. So +6 % of a 1 us kernel is unsure: more than the threshold, less than one pair of runs can
            vouch for. NaN bounds are unsure too, since no comparison with NaN holds.
    """
    if ratio.low > 1 + threshold and change_us.median > floor_us:
        return "slower"
    if ratio.high < 1 - threshold and change_us.median < -floor_us:
        return "faster"
    return "same" if 1 - threshold <= ratio.low and ratio.high <= 1 + threshold else "unsure"


def ratio_and_change(base: Sequence[float], head: Sequence[float], seed: int = 0) -> tuple[Interval, Interval]:
    """Ratio and difference of the medians of two independent samples with 95 % percentile-bootstrap intervals.

    Both statistics come from the same resamples (scipy.stats.bootstrap, unpaired; Efron and Tibshirani, 1993, ch. 13).
    """
    base_us, head_us = float(np.median(base)), float(np.median(head))
    point = (head_us / base_us if min(base_us, head_us) > 0 else math.nan, head_us - base_us)
    if min(len(base), len(head)) < MIN_SAMPLES or min(*base, *head) <= 0:
        return Interval(point[0], math.nan, math.nan), Interval(point[1], math.nan, math.nan)

    def statistic(base: np.ndarray, head: np.ndarray, axis: int = -1) -> np.ndarray:
        base_us, head_us = np.median(base, axis=axis), np.median(head, axis=axis)
        return np.stack([head_us / base_us, head_us - base_us])

    bounds = scipy_stats.bootstrap(
        (np.asarray(base, float), np.asarray(head, float)),
        statistic,
        n_resamples=stats.RESAMPLES,
        method="percentile",
        confidence_level=stats.CONFIDENCE,
        vectorized=True,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    ratio, change_us = (Interval(point[i], float(bounds.low[i]), float(bounds.high[i])) for i in range(2))
    return ratio, change_us


def _join(result: Comparison) -> None:
    base_cells, head_cells = ({cell.key: cell for cell in run.cells} for run in (result.base, result.head))
    for key in base_cells | head_cells:
        base, head = base_cells.get(key), head_cells.get(key)
        before, after = _times(base), _times(head)
        wanted = [figure for figure in result.gating if figure in before]
        became = Transition(key, _state(base), _state(head), timed=bool(wanted))
        if base is None or head is None:
            (result.head_only if base is None else result.base_only).append(became)
        elif base.status == "passed" and head.status in ("mismatch", "failed"):
            result.broken.append(became)
        elif moved := _moved_axes(base, head):
            result.lost.append(replace(became, head=f"another point now: {moved}"))
        else:
            if base.status in ("mismatch", "failed") and head.status == "passed":
                result.fixed.append(became)
            if gone := [figure for figure in wanted if figure not in after]:
                result.lost.append(replace(became, head=f"{became.head}; no {', '.join(gone)}"))
            for figure in (figure for figure in before if figure in after):
                ratio, change_us = ratio_and_change(before[figure], after[figure])
                medians = float(np.median(before[figure])), float(np.median(after[figure]))
                verdict = judge(ratio, change_us, result.threshold, result.floor_us)
                result.rows.append(
                    Row(base.operator, base.variant, base.point, figure, *medians, ratio, change_us, verdict)
                )


def _times(cell: Cell | None) -> dict[str, list[float]]:
    """Samples of every figure that the cell has, in the order of stats.FIGURES."""
    if cell is None or cell.status != "passed" or cell.metrics is None:
        return {}
    return {figure: samples for figure in stats.FIGURES if (samples := stats.samples(cell.metrics, figure))}


def _state(cell: Cell | None) -> str:
    if cell is None:
        return "absent"
    reason = cell.reason or (cell.metrics and cell.metrics.no_graph)
    return f"{cell.status}: {reason}" if reason else cell.status


def _moved_axes(base: Cell, head: Cell) -> str:
    """A label leaves defaults out, so a changed default would join two different points under one key."""
    shared = [name for name in base.axes if name in head.axes and base.axes[name] != head.axes[name]]
    return ", ".join(f"{name} {base.axes[name]} → {head.axes[name]}" for name in shared)


def _differences(base: Run, head: Run) -> list[Difference]:
    one, other = _described(base), _described(head)
    return [
        Difference(name, one.get(name), other.get(name)) for name in one | other if one.get(name) != other.get(name)
    ]


def _described(run: Run) -> dict[str, Any]:
    """Without commit and dirty state: to differ in them is the purpose of a comparison."""
    environment = {
        name: value for name, value in asdict(run.header.environment).items() if name not in ("commit", "dirty")
    }
    config = dict(_leaves("config", run.header.config))
    config.pop("config.measure.seed", None)  # the header has the seed that was used
    return {**environment, "name": run.header.name, "seed": run.header.seed, **config}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """``config.sweep.0.batch_size`` and its value, for every leaf; a list without mappings inside is one leaf."""
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from _leaves(f"{path}.{name}", below)
    elif isinstance(value, list) and any(isinstance(below, Mapping) for below in value):
        for position, below in enumerate(value):
            yield from _leaves(f"{path}.{position}", below)
    else:
        yield path, value
