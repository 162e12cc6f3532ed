"""Compares two sides, each the records of several processes, cell by cell: slower, faster, same or unsure.

Times are in microseconds. A ratio is head / base: 1.05 is 5 % slower. The unit of evidence is the process: one
trimmed mean per process and cell. docs/comparison.md explains the rule and shows its error rates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal

import numpy as np

from spec_decode_bench.harness.analysis import moderated, stats
from spec_decode_bench.harness.analysis.stats import Interval
from spec_decode_bench.harness.analysis.verdicts import (
    DETECT,
    GATING,
    RATE,
    THRESHOLD,
    Judgement,
    Verdict,
    judged,
    paired,
    rounds_of_both,
)
from spec_decode_bench.harness.analysis.warnings import known_failure_warnings, measurement_warnings
from spec_decode_bench.harness.errors import UsageError, did_you_mean
from spec_decode_bench.harness.exit_codes import BAD, OK, UNSURE
from spec_decode_bench.harness.numbers import counted, significant
from spec_decode_bench.harness.records.differences import Difference, differences
from spec_decode_bench.harness.records.schema import Cell, Finding, Run, Status, cell_key
from spec_decode_bench.harness.records.select import chosen
from spec_decode_bench.harness.records.sentences import ending

VERDICTS: tuple[Verdict, ...] = ("slower", "faster", "same", "unsure")
#: Significant digits of a time that is shown beside another.
DIGITS = 4
#: Fewest processes a side for a verdict. Some kernels have two speeds, and two processes can both get the rarer one.
MIN_PROCESSES = 3
#: The test must find a slow-down of ``Rule.detect`` with this probability, averaged over the gating cells that are not
#: noisy.
POWER = 0.95
#: Processes a side that are proposed at most.
MOST = 40
UNKNOWN = Interval(math.nan, math.nan, math.nan)
#: Assumed difference between two GPUs of one model, unless their calibration kernels differ by more.
MACHINE_SPREAD = 0.03


class CompareError(UsageError):
    """The sides cannot be compared as asked; the message says why. Exit code 2."""


@dataclass(frozen=True)
class Rule:
    """What counts as a change.

    threshold:     relative change that matters.
    min_change_us: change in microseconds that matters; a smaller one is named but does not fail.
    detect:        slow-down that the comparison must be able to see; if it cannot, it does not pass.
    rate:          share of false alarms among the cells called slower; on unchanged code the chance of any.
    metrics:       the metrics that decide the exit code; None: GATING of the device.
    only:          globs of the cells to compare; "!" in front excludes.
    any_config:    whether runs of different configurations are compared in the cells that they share.
    unchanged:     globs of cells whose code is the same on both sides: they decide nothing but whether the machine was
                   steady.
    """

    threshold: float = THRESHOLD
    min_change_us: float = 0.02
    detect: float = DETECT
    rate: float = RATE
    metrics: tuple[str, ...] | None = None
    only: tuple[str, ...] = ()
    any_config: bool = False
    unchanged: tuple[str, ...] = ()


#: For --preset. strict: every change that can be told; pr: the default; nightly: what a service would notice.
PRESETS = {
    "strict": Rule(threshold=0.01, min_change_us=0.0, detect=0.03),
    "pr": Rule(),
    "nightly": Rule(threshold=0.03, min_change_us=0.1),
}


@dataclass(frozen=True)
class Transition:
    """A cell that cannot be compared, with its state on both sides in words. timed: base holds a gating metric.
    finding: what is wrong with it in head.
    """

    key: str
    base: str
    head: str
    timed: bool
    finding: Finding | None = None


@dataclass(frozen=True, kw_only=True)
class CellComparison:
    """One metric of one cell: its evidence (axes and times), and what follows from it once it is judged.

    axes:         of the point, all of them.
    base_times, head_times: one per process, a trimmed mean; of a paired comparison, one per process or round.
    base_gpus, head_gpus: that these times are from; None in a paired comparison, and where records do not say.
    base_us, head_us: their geometric means. ratio: head_us / base_us. change_us: head_us - base_us.
    The bounds of both hold for all cells of the metric together (moderated.judge); NaN where there is no evidence.
    sd:           standard deviation between processes, relative, moderated by cells of similar time. df: its degrees of
                  freedom.
    power:        chance that a slow-down of Comparison.detect would have been called slower.
    noisy:        whether processes differ more here than in other cells of similar time. Such a cell can fail, but is
                  left out of Comparison.power.
    below_min_change: whether the change is smaller than Rule.min_change_us.
    """

    operator: str
    variant: str
    point: str
    metric: str
    base_us: float = math.nan
    head_us: float = math.nan
    ratio: Interval = UNKNOWN
    change_us: Interval = UNKNOWN
    verdict: Verdict = "unsure"
    axes: Mapping[str, Any] = field(default_factory=dict)
    base_times: tuple[float, ...] = ()
    head_times: tuple[float, ...] = ()
    base_gpus: tuple[str | None, ...] = ()
    head_gpus: tuple[str | None, ...] = ()
    sd: float = math.nan
    df: float = 0.0
    power: float = 0.0
    noisy: bool = False
    below_min_change: bool = False

    @property
    def variant_id(self) -> str:
        return f"{self.operator}/{self.variant}"

    @property
    def key(self) -> str:
        return cell_key(self.operator, self.variant, self.point)

    @property
    def texts(self) -> tuple[str, str]:
        """base_us and head_us, with enough digits to show a change of the threshold."""
        return significant(self.base_us, DIGITS), significant(self.head_us, DIGITS)

    @property
    def fails(self) -> bool:
        return self.verdict == "slower" and not self.below_min_change


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One metric over the cells of a variant: geometric mean of the ratios with its interval, least and greatest.

    The interval comes from the geometric means of the processes, so that what all cells of a process share counts.
    """

    operator: str
    variant: str
    metric: str
    cells: int
    ratio: Interval
    least: float
    greatest: float
    verdict: Verdict
    counts: Counter[Verdict]


@dataclass(frozen=True)
class Machines:
    """The GPUs of the two sides. band: share added to the threshold because they differ; why: a sentence. blocks: GPUs
    within each of which head is compared with base; empty where all processes count as of one GPU.
    """

    base: tuple[str, ...]
    head: tuple[str, ...]
    band: float
    why: str | None
    blocks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The result of ``compare``.

    gating:    the metrics that decide ``exit_code``.
    differences: of the sides, which a reader may ask about beside the code.
    cells:     every metric that both sides have of a cell.
    broken:    cells that passed in base and are a mismatch or failed in head; fixed: the reverse.
    lost:      cells of both sides that base timed, without a comparable time in head.
    base_only, head_only: cells of one side.
    pair:      (base, head) names of the variants, where two variants of the same runs are compared.
    unit:      what an observation stands for: "process", or "round" of one process.
    """

    base: tuple[Run, ...]
    head: tuple[Run, ...]
    rule: Rule
    gating: tuple[str, ...]
    differences: list[Difference]
    machines: Machines
    cells: list[CellComparison] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)
    broken: list[Transition] = field(default_factory=list)
    fixed: list[Transition] = field(default_factory=list)
    lost: list[Transition] = field(default_factory=list)
    base_only: list[Transition] = field(default_factory=list)
    head_only: list[Transition] = field(default_factory=list)
    pair: tuple[str, str] | None = None
    unit: Literal["process", "round"] = "process"

    @property
    def threshold(self) -> float:
        """The relative change that matters here: the threshold of the rule, widened by the band of the machines."""
        return (1 + self.rule.threshold) * (1 + self.machines.band) - 1

    @property
    def detect(self) -> float:
        """The slow-down that must be visible here, widened as the threshold is."""
        return (1 + self.rule.detect) * (1 + self.machines.band) - 1

    @property
    def gating_cells(self) -> list[CellComparison]:
        return [cell for cell in self.cells if cell.metric in self.gating and not self._is_unchanged(cell)]

    @property
    def unchanged_cells(self) -> list[CellComparison]:
        return [cell for cell in self.cells if cell.metric in self.gating and self._is_unchanged(cell)]

    def _is_unchanged(self, cell: CellComparison) -> bool:
        return any(fnmatchcase(cell.key, pattern) for pattern in self.rule.unchanged)

    @property
    def failing(self) -> list[CellComparison]:
        return [cell for cell in self.gating_cells if cell.fails]

    @property
    def undecided(self) -> list[CellComparison]:
        """Gating cells that more processes could still decide: they do not fail, but a slow-down of ``detect`` could be
        missed.
        """
        return [cell for cell in self.gating_cells if not cell.fails and cell.power < POWER]

    @property
    def untimed(self) -> list[Transition]:
        """Cells timed in base that are not broken and have no comparable time in head."""
        return [transition for transition in (*self.base_only, *self.lost) if transition.timed]

    @property
    def power(self) -> float:
        """Chance that a slow-down of ``detect`` in any one gating cell that is not noisy would have been called slower,
        on average.
        """
        cells = [cell for cell in self.gating_cells if not cell.noisy]
        return float(np.mean([cell.power for cell in cells])) if cells else 0.0

    @property
    def too_few(self) -> bool:
        """Whether there are too few processes to judge any time."""
        return self.unit == "process" and min(len(self.base), len(self.head)) < MIN_PROCESSES

    @property
    def enough(self) -> int | None:
        """Processes a side that would give the power needed, if more vary as these do; None where MOST are too few, and
        for two variants.
        """
        cells = [cell for cell in self.gating_cells if cell.power > 0 and not cell.noisy and not self.pair]
        made = min((len(cell.base_times) + len(cell.head_times) for cell in cells), default=0) // 2
        sd, df = (np.array([getattr(cell, name) for cell in cells]) for name in ("sd", "df"))
        for count in range(made + 1, MOST + 1) if cells else ():
            spread = moderated.Spread(sd**2, df + 2 * (count - made), np.zeros(len(cells), bool))
            found = moderated.judge(
                np.zeros(len(cells)), spread, np.array(2 / count), self.threshold, self.detect, self.rule.rate
            )
            if found.power.mean() >= POWER:
                return count
        return None

    @property
    def unclear(self) -> list[str]:
        """Why the comparison cannot pass although nothing failed, a sentence each; empty where it can."""
        if self.broken or self.failing:
            return []
        sentences = []
        if self.too_few:
            sentences.append(
                f"{len(self.base)} + {len(self.head)} processes: with fewer than {MIN_PROCESSES} a side no time "
                "can be judged, because two processes of the same code differ; record more"
            )
        elif not self.gating_cells:
            sentences.append("no cell was timed on both sides")
        elif self.power < POWER:
            sentences.append(
                f"a slow-down of {self.detect * 100:.3g} % in one cell would have been found with "
                f"{math.floor(self.power * 100)} % probability, {POWER * 100:g} % are needed; "
                + (f"about {self.enough} processes a side would do" if self.enough else "record more processes")
            )
        if self.untimed:
            sentences.append(
                f"{counted(len(self.untimed), 'cell')} timed in base {'is' if len(self.untimed) == 1 else 'are'} "
                "not timed in head"
            )
        changed = [cell for cell in self.unchanged_cells if cell.verdict in ("slower", "faster")]
        if moved := [cell for cell in changed if not cell.below_min_change]:
            named = ", ".join(cell.key for cell in moved)
            sentences.append(f"the machine was not steady: the same code was slower or faster in head in {named}")
        return sentences

    @property
    def outcome(self) -> Literal["regression", "fine", "could not tell"]:
        if self.broken or self.failing:
            return "regression"
        return "could not tell" if self.unclear else "fine"

    @property
    def exit_code(self) -> int:
        return {"regression": BAD, "could not tell": UNSURE, "fine": OK}[self.outcome]

    @property
    def upstream(self) -> list[tuple[str, str, str]]:
        """(package that variants wrap, its checkout or version in base, in head), of those that differ."""
        base, head = (runs[0].header.environment.wrapped for runs in (self.base, self.head))
        names = [name for name in base | head if base.get(name) != head.get(name)]
        return [(name, base.get(name, "absent"), head.get(name, "absent")) for name in names]

    @property
    def sides(self) -> list[tuple[str, tuple[Run, ...]]]:
        """("base", records) and ("head", records); ("run", records) where two variants of one side are compared."""
        return [("base", self.base), ("head", self.head)] if self.pair is None else [("run", self.head)]

    @cached_property
    def warnings(self) -> list[str]:
        """What a reader must know of the records before relying on the verdicts."""
        warnings = []
        sides = [(side, [chosen(run, self.pair or ()) for run in runs]) for side, runs in self.sides]
        for side, runs in sides:
            warnings += [f"{side}: {text}" for text in measurement_warnings(runs)]
        cells = [cell for _, runs in sides for run in runs for cell in run.cells]
        return [*warnings, *known_failure_warnings(cells)]

    def counts(self, *metrics: str) -> Counter[Verdict]:
        """Verdicts of these metrics, without cells of unchanged code."""
        return Counter(cell.verdict for cell in self.cells if cell.metric in metrics and not self._is_unchanged(cell))


def compare(base: Sequence[Run], head: Sequence[Run], rule: Rule = Rule()) -> Comparison:
    """Join the cells of two sides by key, and judge every metric that both have.

    base, head: the records of a side, one for each process. Where a record holds a key twice, the last line counts.

    Raises CompareError: CPU against GPU; different models of GPU, configurations, seeds or cache states; a side of
    several revisions; a record that stands twice on a side, or is incomplete; no cell that both sides time, unless
    cells broke; an unknown metric; a bad threshold, min_change or detect.
    """
    base, head = (tuple(chosen(run, rule.only) for run in runs) for runs in (base, head))
    check_rule(rule)
    _check_runs(base, head, rule)
    gating = rule.metrics or GATING[base[0].header.environment.device]
    listed = differences(base[0], head[0], "listed")
    result = Comparison(base, head, rule, gating, listed, _machines(base, head))
    _judge(result, _join(result))
    if not (result.gating_cells or result.unchanged_cells or result.broken):
        raise CompareError(
            f"{base[0].path} and {head[0].path} have no cell in common that both time by {', '.join(gating)}"
            + (f" and that matches {' '.join(rule.only)}" if rule.only else "")
        )
    return result


def compare_variants(
    runs: Sequence[Run],
    head: str,
    base: str,
    rule: Rule = Rule(),
) -> Comparison:
    """Compare two variants of the same runs, at every point that both have; head against base.

    Variants of a point take turns, so samples are paired by round: a process gives one median of the ratios of its
    rounds. Of a single process the rounds themselves are the evidence.

    head, base: ``variant``, or ``operator/variant``.  Raises CompareError as ``compare``, and for an unknown variant.
    """
    if head == base:
        raise CompareError(f"{head} is on both sides; compare it with another variant")
    runs = tuple(chosen(run, rule.only) for run in runs)
    check_rule(rule)
    _check_runs(runs, runs, rule, paired=True)
    gating = rule.metrics or GATING[runs[0].header.environment.device]
    unit = "process" if len(runs) > 1 else "round"
    names = dict.fromkeys(cell.variant for run in runs for cell in run.cells)
    for name in (head, base):
        if name.rpartition("/")[2] not in names:
            where = f"{runs[0].path} within --only" if rule.only else runs[0].path
            known = did_you_mean(name.rpartition("/")[2], list(names))
            raise CompareError(f"no variant {name!r} in {where}{known}")
    result = Comparison(runs, runs, rule, gating, [], Machines((), (), 0.0, None), pair=(base, head), unit=unit)
    _judge(result, _pairs(result))
    if not result.gating_cells:
        why = "".join(f"; {name}: {reason}" for name in (head, base) if (reason := _why_untimed(runs, name)))
        raise CompareError(f"no point at which {runs[0].path} times both {head} and {base} by {', '.join(gating)}{why}")
    return result


def _why_untimed(runs: Sequence[Run], name: str) -> str | None:
    """How the first cell of a variant ended, where none was timed."""
    cells = [cell for run in runs for cell in run.cells if name in (cell.variant, cell.variant_id)]
    return None if not cells or any(cell.was_timed for cell in cells) else ending(cells[0], elements=1)


# --- what may be compared ---------------------------------------------------------------------------------------------


def check_rule(rule: Rule) -> None:
    """Raises CompareError for an unknown metric, and for a threshold, min_change or detect that cannot be."""
    if unknown := [metric for metric in rule.metrics or () if metric not in stats.METRICS]:
        raise CompareError(f"no metric named {unknown[0]}{did_you_mean(unknown[0], stats.METRICS)}")
    if not 0 < rule.threshold < 1:
        raise CompareError(f"threshold {rule.threshold:g} must lie between 0 and 1 (2 % is 0.02)")
    if not rule.threshold < rule.detect < 10:
        raise CompareError(
            f"detect {rule.detect:g} must be above the threshold {rule.threshold:g} (5 % is 0.05): "
            "what is not slower than the threshold cannot be detected"
        )
    if not 0 <= rule.min_change_us < math.inf:
        raise CompareError(f"min-change-us {rule.min_change_us:g} must not be negative")


#: What differs -> why, or what to do instead of comparing.
_REFUSALS = {
    "device": "CPU and GPU times are never compared",
    "cache state": "record both with the same measure.cache",
    "gpu": "times of different models say nothing about a change of the code; bench.py report shows them side by side",
    "seed": "the longest request of a batch can decide its time, so record both with the same --seed",
    "config": "record both with the same configuration, or compare the cells that they share with --any-config",
}


def _check_runs(base: tuple[Run, ...], head: tuple[Run, ...], rule: Rule, paired: bool = False) -> None:
    first = base[0]
    for run in (*base, *head):
        if run.truncated:
            raise CompareError(
                f"{run.path}: the last line is incomplete, the run was killed; complete it with --resume, or leave it "
                "out"
            )
        for difference in differences(first, run, "any_config" if rule.any_config else "compare"):
            refusal = _REFUSALS[difference.name.partition(".")[0]]
            raise CompareError(f"{difference.between(first.path, run.path)}; {refusal}")
    for side, runs in (("base", base), ("head", head)):
        seen: dict[tuple[Any, ...], str] = {}
        for run in runs:
            if (earlier := seen.setdefault(identity(run), run.path)) is not run.path:
                raise CompareError(
                    f"{earlier} and {run.path} are the same record; on one side, {side}, it is no new evidence; "
                    "remove one"
                )
        for run in () if paired else runs:
            for difference in differences(runs[0], run, "side"):
                raise CompareError(
                    f"{side} holds records of several revisions: {difference.between(runs[0].path, run.path)}; give "
                    "each revision its own folder"
                )


def identity(run: Run) -> tuple[Any, ...]:
    """What two copies of a record share and two processes do not."""
    timed = next((cell.metrics for cell in run.cells if cell.metrics), None)
    return run.header.started, timed and (tuple(timed.host_us), tuple(timed.cpu_us)), len(run.cells)


def _machines(base: tuple[Run, ...], head: tuple[Run, ...]) -> Machines:
    """Whether the sides were timed on the same GPUs, and how much wider the threshold becomes if not."""
    sides = [tuple(dict.fromkeys(gpu for run in runs for gpu in run.gpu_ids)) for runs in (base, head)]
    known = [tuple(gpu for gpu in side if gpu is not None) for side in sides]
    if base[0].header.environment.device == "cpu":
        return Machines((), (), 0.0, None)
    base_gpus, head_gpus = known
    if known != sides:
        return Machines(
            base_gpus, head_gpus, 0.0, "Records do not say on which GPU they were timed; taken as one and the same."
        )
    shared = any(len(run.gpu_ids) > 1 for run in (*base, *head))
    blocks, same = tuple(gpu for gpu in sides[0] if gpu in sides[1]), set(sides[0]) == set(sides[1])
    of_blocks = min(sum(run.gpu_ids[0] in blocks for run in runs) for runs in (base, head))
    if not shared and (same or of_blocks >= MIN_PROCESSES):
        if same and len(blocks) == 1:
            return Machines(base_gpus, head_gpus, 0.0, None)
        alone = "" if same else "; the others ran one side only, and show how processes vary"
        why = f"Head is compared with base within {counted(len(blocks), 'GPU')}{alone}."
        return Machines(base_gpus, head_gpus, 0.0, why, blocks)
    measured = _calibration_spread(base, head)
    band = max(MACHINE_SPREAD, measured)
    timed = (
        "A run on several GPUs may have timed a cell on any of them"
        if shared
        else ("Base and head were timed on different GPUs of one model")
    )
    return Machines(
        base_gpus,
        head_gpus,
        band,
        f"{timed}, whose calibration kernels differ by up to "
        f"{measured * 100:.1f} %: {band * 100:.1f} % are added to the threshold and to what must be visible.",
    )


def _calibration_spread(base: tuple[Run, ...], head: tuple[Run, ...]) -> float:
    """The greatest relative difference between the sides in the time of a calibration kernel, which does not depend on
    the code that is compared.
    """

    def slope_of(runs: tuple[Run, ...], name: str) -> float:
        kernels = [run.header.calibration.own.get(name) for run in runs if run.header.calibration]
        slopes = [stats.slopes(kernel.graph_us) for kernel in kernels if kernel and len(kernel.graph_us) > 1]
        return float(np.median([np.median(of_run) for of_run in slopes])) if slopes else math.nan

    names = {name for run in (*base, *head) if run.header.calibration for name in run.header.calibration.own}
    pairs = [(slope_of(base, name), slope_of(head, name)) for name in names]
    ratios = [abs(math.log(after / before)) for before, after in pairs if before > 0 and after > 0]
    return math.expm1(min(max(ratios), 1.0)) if ratios else 0.0


# --- the join ---------------------------------------------------------------------------------------------------------


def _by_key(runs: tuple[Run, ...]) -> dict[str, list[tuple[Cell, str | None]]]:
    """Key -> its cell in every run that has it, and the GPU that it was timed on."""
    by_key: dict[str, list[tuple[Cell, str | None]]] = {}
    for run in runs:
        for key, cell in {cell.key: cell for cell in run.in_order}.items():
            by_key.setdefault(key, []).append((cell, run.process_of(cell).environment.gpu_id))
    return by_key


def _join(result: Comparison) -> list[CellComparison]:
    """Fill the lists of transitions; the metrics that can be judged, with their evidence."""
    base_cells, head_cells = (_by_key(runs) for runs in (result.base, result.head))
    rows = []
    for key in base_cells | head_cells:
        sides = base_cells.get(key, []), head_cells.get(key, [])
        base_times, head_times = map(_times, sides)
        base, head = ([cell for cell, _ in side] for side in sides)
        wanted = [metric for metric in result.gating if metric in base_times]
        finding = next((cell.finding for cell in head if cell.finding is not None), None)
        transition = Transition(key, _state(base), _state(head), timed=bool(wanted), finding=finding)
        was_bad, is_bad = (any(cell.status.is_bad for cell in cells) for cells in (base, head))
        if not base or not head:
            (result.head_only if not base else result.base_only).append(transition)
        elif is_bad and not was_bad and any(cell.status == Status.PASSED for cell in base):
            result.broken.append(transition)
        elif moved := _moved_axes(base[0], head[0]):
            result.lost.append(replace(transition, head=f"another point now: {moved}"))
        else:
            if was_bad and all(cell.status == Status.PASSED for cell in head):
                result.fixed.append(transition)
            if gone := [metric for metric in wanted if metric not in head_times]:
                result.lost.append(replace(transition, head=f"{transition.head}; no {', '.join(gone)}"))
            rows += [
                _row(base[0], metric, times, head_times[metric])
                for metric, times in base_times.items()
                if metric in head_times
            ]
    return rows


#: A time of each process, and the GPU that it is from.
Times = Sequence[tuple[float, str | None]]


def _row(cell: Cell, metric: str, base: Times, head: Times) -> CellComparison:
    (base_times, base_gpus), (head_times, head_gpus) = (zip(*times, strict=True) for times in (base, head))
    return CellComparison(
        operator=cell.operator,
        variant=cell.variant,
        point=cell.point,
        metric=metric,
        axes=cell.axes,
        base_times=tuple(map(float, base_times)),
        head_times=tuple(map(float, head_times)),
        base_gpus=base_gpus,
        head_gpus=head_gpus,
    )


def _pairs(result: Comparison) -> list[CellComparison]:
    """The metrics of both variants of ``result.pair``, paired by round."""
    by_point: dict[tuple[str, str], list[tuple[Cell, Cell]]] = {}
    for run in result.base:
        variants = [
            {cell.point_key: cell for cell in run.in_order if name in (cell.variant, cell.variant_id)}
            for name in result.pair
        ]
        for point, cell in variants[1].items():
            if point in variants[0]:
                by_point.setdefault(point, []).append((variants[0][point], cell))
    rows = []
    for cells in by_point.values():
        for metric in stats.METRICS:
            by_process = [rounds for one, other in cells if (rounds := rounds_of_both(one, other, metric)) is not None]
            if not by_process:
                continue
            base, head = by_process[0]
            if result.unit == "process":
                # The pairs give the ratio of a process; its base median only sets the scale.
                base = [np.median(rounds) for rounds, _ in by_process]
                head = [us * np.median(h / b) for us, (b, h) in zip(base, by_process, strict=True)]
            rows.append(_row(cells[0][1], metric, *([(us, None) for us in side] for side in (base, head))))
    return rows


def _times(cells: Sequence[tuple[Cell, str | None]]) -> dict[str, Times]:
    """Metric -> plausible times, one for each process that has the metric, in the order of stats.METRICS."""
    by_metric: dict[str, Times] = {}
    for metric in stats.METRICS:
        times = [(time, gpu) for cell, gpu in cells if (time := stats.process_us(cell, metric)) is not None]
        if times:
            by_metric[metric] = times
    return by_metric


def _state(cells: Sequence[Cell]) -> str:
    """Status and reason of the first bad cell, else of the first, with the first wrong element; with the number of
    processes where not all agree.
    """
    if not cells:
        return "absent"
    cell = next((cell for cell in cells if cell.status.is_bad), cells[0])
    reason = ending(cell, elements=1)
    like = sum(other.status == cell.status for other in cells)
    share = f" ({like} of {len(cells)} processes)" if like < len(cells) else ""
    return f"{cell.status}{share}: {reason}" if reason else f"{cell.status}{share}"


def _moved_axes(base: Cell, head: Cell) -> str:
    """Axes that differ although the label of the point is the same: a label leaves out defaults, which may change."""
    shared = [name for name in base.axes if name in head.axes and base.axes[name] != head.axes[name]]
    return ", ".join(f"{name} {base.axes[name]} → {head.axes[name]}" for name in shared)


# --- from evidence to verdict -----------------------------------------------------------------------------------------


def _judge(result: Comparison, rows: Sequence[CellComparison]) -> None:
    """Fill ``cells`` and ``summaries``; the cells of a metric are judged together, and so are its variants."""
    order = {row.key: i for i, row in enumerate(rows)}
    for metric in dict.fromkeys(row.metric for row in rows):
        of_metric = [row for row in rows if row.metric == metric]
        judgements = _judgements(result, of_metric)
        cells = [_judged(row, judgement, result.rule) for row, judgement in zip(of_metric, judgements, strict=True)]
        result.cells.extend(cells)
        result.summaries.extend(_summaries(result, cells))
    result.cells.sort(key=lambda cell: (order[cell.key], stats.METRICS.index(cell.metric)))


def _judgements(result: Comparison, rows: Sequence[CellComparison]) -> list[Judgement]:
    """Judge changes together."""
    differences, log_times, enough = zip(*(_evidence(result, row) for row in rows), strict=True)
    return judged(differences, log_times, enough, result.threshold, result.detect, result.rule.rate)


def _evidence(result: Comparison, row: CellComparison) -> tuple[moderated.Difference, float, bool]:
    """The change of a cell, the logarithm of its time, and whether there are enough observations for a verdict."""
    base, head = np.log(row.base_times), np.log(row.head_times)
    if result.pair is not None:
        return paired(row.base_times, row.head_times), base.mean(), len(base) >= MIN_PROCESSES
    shared = set(row.base_gpus) & set(row.head_gpus)
    if not result.machines.blocks or not shared:
        base_blocks, head_blocks = [None] * len(base), [None] * len(head)
    else:
        base_blocks, head_blocks = row.base_gpus, row.head_gpus
    counted = (
        sum(gpu in shared for gpu in side) if result.machines.blocks else len(side)
        for side in (base_blocks, head_blocks)
    )
    level = (base.mean() + head.mean()) / 2
    return moderated.difference(base, head, base_blocks, head_blocks), level, min(counted) >= MIN_PROCESSES


def _judged(row: CellComparison, judgement: Judgement, rule: Rule) -> CellComparison:
    base_us, ratio = stats.geometric_mean(row.base_times), judgement.ratio
    change_us = Interval(*(base_us * (bound - 1) for bound in (ratio.median, ratio.low, ratio.high)))
    return replace(
        row,
        ratio=ratio,
        verdict=judgement.verdict,
        sd=judgement.sd,
        df=judgement.df,
        power=judgement.power,
        noisy=judgement.noisy,
        base_us=base_us,
        head_us=base_us * ratio.median,
        change_us=change_us,
        below_min_change=abs(change_us.median) < rule.min_change_us,
    )


def _summaries(result: Comparison, cells: Sequence[CellComparison]) -> list[Summary]:
    """A summary of each variant, of the cells of one metric."""
    groups: dict[tuple[str, str], list[CellComparison]] = {}
    for cell in cells:
        groups.setdefault((cell.operator, cell.variant), []).append(cell)
    summaries = []
    means = [_process_means(group, result) for group in groups.values()]
    for ((operator, variant), group), judgement in zip(groups.items(), _judgements(result, means), strict=True):
        ratios = [cell.ratio.median for cell in group]
        mean, judged = stats.geometric_mean(ratios), judgement.ratio
        summaries.append(
            Summary(
                operator=operator,
                variant=variant,
                metric=group[0].metric,
                cells=len(group),
                ratio=Interval(mean, mean / judged.median * judged.low, mean / judged.median * judged.high),
                least=min(ratios),
                greatest=max(ratios),
                verdict=judgement.verdict,
                counts=Counter(cell.verdict for cell in group),
            )
        )
    return summaries


def _process_means(cells: Sequence[CellComparison], result: Comparison) -> CellComparison:
    """As a cell whose times are geometric means: of each process over the cells that all processes timed; of rounds,
    over those that all cells have.
    """

    def means(times: Sequence[Sequence[float]]) -> np.ndarray:
        count = (max if result.unit == "process" else min)(map(len, times))
        return np.exp(np.mean([np.log(own[:count]) for own in times if len(own) >= count], axis=0))

    return replace(
        cells[0],
        base_times=means([cell.base_times for cell in cells]),
        head_times=means([cell.head_times for cell in cells]),
        base_gpus=max((cell.base_gpus for cell in cells), key=len),
        head_gpus=max((cell.head_gpus for cell in cells), key=len),
    )
