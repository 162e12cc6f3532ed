"""Compares two runs cell by cell: slower, faster, same or unsure. Never imports torch.

Times are in microseconds. A ratio is head / base: 1.05 is 5 % slower. ``unsure`` is a separate verdict and never
counts as ``same``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import scipy
from msgspec.structs import asdict

from harness.analysis import stats
from harness.analysis.stats import Interval
from harness.exit_codes import BAD, OK, UNSURE
from harness.records.schema import Cell, Run, Status
from harness.wording import did_you_mean, significant

Verdict = Literal["slower", "faster", "same", "unsure"]
VERDICTS: tuple[Verdict, ...] = ("slower", "faster", "same", "unsure")
#: Relative change, and change in microseconds, beyond which a cell can be slower or faster.
THRESHOLD = 0.02
FLOOR_US = 0.1
#: Significant digits of a time that is shown beside another.
DIGITS = 4
#: With fewer samples a percentile bootstrap gives far too narrow an interval, so none is given.
MIN_SAMPLES = 5
#: Device -> the figures that decide the exit code. Host times do not: on a shared machine they change while the code
#: does not.
GATING = {"cuda": ("gpu_us",), "cpu": ("cpu_us",)}
CORRELATED = (
    "Samples of one process are correlated: these intervals are evidence from one pair of processes only. "
    "Repeat both runs in fresh processes before relying on a small change."
)


class CompareError(Exception):
    """The two runs cannot be compared as asked; the message says why. Exit code 2."""


@dataclass(frozen=True)
class Difference:
    """A field of the environment or the header in which the runs differ. None: absent."""

    name: str
    base: Any
    head: Any


@dataclass(frozen=True)
class Transition:
    """A cell that cannot be compared, with its state on both sides in words. timed: base holds a gating figure."""

    key: str
    base: str
    head: str
    timed: bool


@dataclass(frozen=True)
class CellComparison:
    """One figure of one cell. base_us, head_us: medians. ratio: head / base. change_us: head - base.

    The bounds are NaN for fewer than MIN_SAMPLES samples or samples that are not positive; ``ratio.median`` is NaN
    where a median is not positive.
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
        """base_us and head_us, with enough digits to show a change of the threshold."""
        return significant(self.base_us, DIGITS), significant(self.head_us, DIGITS)


@dataclass(frozen=True)
class Comparison:
    """The result of ``compare``.

    gating:    the figures that decide ``exit_code``.
    cells:     every figure that both runs have of a cell.
    broken:    cells that passed in base and are a mismatch or failed in head; fixed: the reverse.
    lost:      cells of both runs that base timed, without a comparable time in head.
    base_only, head_only: cells of one run.
    """

    base: Run
    head: Run
    threshold: float
    floor_us: float
    gating: tuple[str, ...]
    differences: list[Difference]
    cells: list[CellComparison] = field(default_factory=list)
    broken: list[Transition] = field(default_factory=list)
    fixed: list[Transition] = field(default_factory=list)
    lost: list[Transition] = field(default_factory=list)
    base_only: list[Transition] = field(default_factory=list)
    head_only: list[Transition] = field(default_factory=list)

    @property
    def gating_cells(self) -> list[CellComparison]:
        return [cell for cell in self.cells if cell.figure in self.gating]

    @property
    def untimed(self) -> list[Transition]:
        """Cells timed in base that are not broken and have no comparable time in head."""
        return [one for one in (*self.base_only, *self.lost) if one.timed]

    @property
    def exit_code(self) -> int:
        """1: a gating figure is slower, or a cell broke. 3: one is unsure, or no longer timed. Else 0."""
        verdicts = {cell.verdict for cell in self.gating_cells}
        if self.broken or "slower" in verdicts:
            return BAD
        return UNSURE if self.untimed or "unsure" in verdicts else OK

    def counts(self, *figures: str) -> Counter[Verdict]:
        return Counter(cell.verdict for cell in self.cells if cell.figure in figures)


def compare(
    base: Run, head: Run, threshold: float = THRESHOLD, floor_us: float = FLOOR_US, figures: Sequence[str] | None = None
) -> Comparison:
    """Join the cells of two runs by key, and judge every figure that both have.

    figures: the gating ones; by default GATING of the device. Where a file holds a key twice, the last line counts.

    Raises CompareError: a CPU run with a GPU run; runs in different cache states; no cell that both time, unless cells
    broke; an unknown figure; a bad threshold or floor.
    """
    devices = base.header.environment.device, head.header.environment.device
    if devices[0] != devices[1]:
        raise CompareError(
            f"{base.path} was timed on {devices[0]} and {head.path} on {devices[1]}; "
            "CPU and GPU times are never compared"
        )
    if base.cache != head.cache:
        raise CompareError(
            f"{base.path} was timed with a {base.cache} cache and {head.path} with a {head.cache} one; "
            "record both with the same measure.cache"
        )
    if unknown := [figure for figure in figures or () if figure not in stats.FIGURES]:
        raise CompareError(f"no figure named {unknown[0]}{did_you_mean(unknown[0], stats.FIGURES)}")
    if not 0 < threshold < 1 or not floor_us >= 0:
        raise CompareError(
            f"threshold {threshold:g} must lie between 0 and 1 (2 % is 0.02) "
            f"and floor {floor_us:g} must not be negative"
        )
    gating = tuple(figures or GATING[devices[0]])
    result = Comparison(base, head, threshold, floor_us, gating, _differences(base, head))
    _join(result)
    if not result.gating_cells and not result.broken:
        raise CompareError(f"{base.path} and {head.path} have no cell in common that both time by {', '.join(gating)}")
    return result


def judge(ratio: Interval, change_us: Interval, threshold: float, floor_us: float) -> Verdict:
    """The verdict on one figure, from two 95 % intervals.

    slower: the whole ratio interval lies above 1 + threshold, and the medians differ by more than floor_us.
    faster: it lies below 1 - threshold, and the medians differ by more than floor_us.
    same:   it lies within 1 ± threshold.
    unsure: anything else, such as +6 % of a 1 us kernel, which one pair of runs cannot establish. NaN bounds too, since
            every comparison with NaN is false.
    """
    if ratio.low > 1 + threshold and change_us.median > floor_us:
        return "slower"
    if ratio.high < 1 - threshold and change_us.median < -floor_us:
        return "faster"
    return "same" if 1 - threshold <= ratio.low and ratio.high <= 1 + threshold else "unsure"


def ratio_and_change(base: Sequence[float], head: Sequence[float], seed: int = 0) -> tuple[Interval, Interval]:
    """Ratio and difference of the medians of two independent samples, with 95 % percentile-bootstrap intervals.

    Both come from the same resamples (scipy.stats.bootstrap, unpaired; Efron and Tibshirani, An Introduction to the
    Bootstrap, 1993, ch. 13).
    """
    base_us, head_us = float(np.median(base)), float(np.median(head))
    point = (head_us / base_us if min(base_us, head_us) > 0 else math.nan, head_us - base_us)
    if min(len(base), len(head)) < MIN_SAMPLES or min(*base, *head) <= 0:
        return Interval(point[0], math.nan, math.nan), Interval(point[1], math.nan, math.nan)

    def statistic(base: np.ndarray, head: np.ndarray, axis: int = -1) -> np.ndarray:
        base_us, head_us = np.median(base, axis=axis), np.median(head, axis=axis)
        return np.stack([head_us / base_us, head_us - base_us])

    bounds = scipy.stats.bootstrap(
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
    """Fill the lists of ``result``."""
    base_cells, head_cells = ({cell.key: cell for cell in run.cells} for run in (result.base, result.head))
    for key in base_cells | head_cells:
        base, head = base_cells.get(key), head_cells.get(key)
        base_times, head_times = _times(base), _times(head)
        wanted = [figure for figure in result.gating if figure in base_times]
        transition = Transition(key, _state(base), _state(head), timed=bool(wanted))
        if base is None or head is None:
            (result.head_only if base is None else result.base_only).append(transition)
        elif base.status == Status.PASSED and head.status.is_bad:
            result.broken.append(transition)
        elif moved := _moved_axes(base, head):
            result.lost.append(replace(transition, head=f"another point now: {moved}"))
        else:
            if base.status.is_bad and head.status == Status.PASSED:
                result.fixed.append(transition)
            if gone := [figure for figure in wanted if figure not in head_times]:
                result.lost.append(replace(transition, head=f"{transition.head}; no {', '.join(gone)}"))
            for figure in (figure for figure in base_times if figure in head_times):
                ratio, change_us = ratio_and_change(base_times[figure], head_times[figure])
                medians = float(np.median(base_times[figure])), float(np.median(head_times[figure]))
                verdict = judge(ratio, change_us, result.threshold, result.floor_us)
                result.cells.append(
                    CellComparison(base.operator, base.variant, base.point, figure, *medians, ratio, change_us, verdict)
                )


def _times(cell: Cell | None) -> dict[str, list[float]]:
    """Figure -> samples, for the figures that the cell has, in the order of stats.FIGURES."""
    if cell is None or cell.status != Status.PASSED or cell.metrics is None:
        return {}
    return {figure: samples for figure in stats.FIGURES if (samples := stats.samples(cell.metrics, figure))}


def _state(cell: Cell | None) -> str:
    if cell is None:
        return "absent"
    reason = cell.reason or (cell.metrics and cell.metrics.no_graph)
    return f"{cell.status}: {reason}" if reason else cell.status


def _moved_axes(base: Cell, head: Cell) -> str:
    """Axes that differ although the label of the point is the same: a label leaves out defaults, which may change."""
    shared = [name for name in base.axes if name in head.axes and base.axes[name] != head.axes[name]]
    return ", ".join(f"{name} {base.axes[name]} → {head.axes[name]}" for name in shared)


def _differences(base: Run, head: Run) -> list[Difference]:
    before, after = _described(base), _described(head)
    return [
        Difference(name, before.get(name), after.get(name))
        for name in before | after
        if before.get(name) != after.get(name)
    ]


def _described(run: Run) -> dict[str, Any]:
    """Environment, name, seed and configuration. Not the commit, in which compared runs are meant to differ."""
    environment = {
        name: value for name, value in asdict(run.header.environment).items() if name not in ("commit", "dirty")
    }
    config = dict(_leaves("config", run.header.config))
    config.pop("config.measure.seed", None)  # the header holds the seed that was used
    return {**environment, "name": run.header.name, "seed": run.header.seed, **config}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Path such as ``config.sweep.0.batch_size``, and value, of every leaf. A list without mappings is one leaf."""
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from _leaves(f"{path}.{name}", below)
    elif isinstance(value, list) and any(isinstance(below, Mapping) for below in value):
        for position, below in enumerate(value):
            yield from _leaves(f"{path}.{position}", below)
    else:
        yield path, value
