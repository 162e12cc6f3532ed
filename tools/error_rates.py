"""How often ``compare`` is wrong: ``python -m tools.error_rates SIDE [SIDE ...] --json FILE --plot STEM``

A SIDE is a folder of records of several processes of one commit on the GPUs of one machine, so that nothing differs
between them: those that ``gate CONFIG --base HEAD --all`` timed. From each the tool draws sides of 3 to 8 processes a
thousand times and compares them, unchanged and with one cell of head made slower; it does the same with made-up noise.
Every rule sees the same samples:

    suite          this suite: harness/analysis/verdicts.py, with the preset pr
    gate           this suite, after 4, 6, 9, ... pairs of processes, until it is sure (regression/gate.py)
    bootstrap      one process a side, bootstrap interval of the ratio of medians beyond 2 %, 0.1 us
    mann_whitney   two-sided Mann-Whitney test at 0.05 over all samples of all processes
    criterion      as Criterion.rs: difference of means significant at 0.05, its 95 % interval beyond a noise of 1 %
    best_of_five   the best median of five processes, 5 % apart
    nvbench        as nvbench-compare: one process a side, medians further apart than the smaller relative noise
                   (interquartile range / 1.349)

Drawing: a synthetic process is a recorded one, its first ROUNDS rounds, which are as many as ``gate`` takes. Its
deviation from the mean of its GPU is stretched by sqrt(n / (n - GPUs)), so that deviations of n recorded processes vary
as those of new ones. Exit code 2: a record that cannot be used.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.special import ndtr
from scipy.stats import rankdata

from spec_decode_bench.harness.analysis import moderated, stats
from spec_decode_bench.harness.records.schema import RecordError, Run
from spec_decode_bench.harness.records.select import read_side
from spec_decode_bench.regression.comparison import MACHINE_SPREAD, MIN_PROCESSES, POWER, Rule
from spec_decode_bench.regression.gate import LOOKS, ROUNDS

#: Slow-downs that are put into one cell.
INJECTED = (0.01, 0.02, 0.03, 0.05, 0.10)
PROCESSES = (3, 4, 6, 8)
DEFAULT = Rule()
#: Of the table of rules, and of the power curve.
USUAL = 4
#: Comparisons that are drawn at once; a bootstrap of each cell is too slow for more than BOOTSTRAPPED of them.
CHUNK, BOOTSTRAPPED, RESAMPLES = 50, 300, 300

Array = np.ndarray


@dataclass(frozen=True)
class Corpus:
    """What sides are drawn from. draw: (generator, comparisons, processes) -> log samples of base and of head, both
    [comparisons, processes, cells, ROUNDS]. gpus: how many both sides run on (``blocks``).
    """

    name: str
    draw: Callable[[np.random.Generator, int, int], tuple[Array, Array]]
    band: float = 0.0
    gpus: int = 1


def blocks(side: int, processes: int, gpus: int) -> list[int]:
    """The GPU of each process of base (0) or head (1): in turns, as ``gate`` has them."""
    return [(process + side) % gpus for process in range(processes)]


# --- recorded processes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorded:
    """Log samples [processes, cells, ROUNDS]. gpus: number of the GPU of each process."""

    keys: tuple[str, ...]
    gpu: str
    samples: Array
    gpus: Array

    @property
    def levels(self) -> Array:
        """The mean of the processes of each GPU [GPUs, cells]."""
        observed = stats.trimmed_mean(self.samples)
        return np.stack([observed[self.gpus == gpu].mean(0) for gpu in np.unique(self.gpus)])

    @property
    def deviations(self) -> Array:
        """Of each process from the level of its GPU, stretched [processes, cells]."""
        count, levels = len(self.gpus), self.levels
        return (stats.trimmed_mean(self.samples) - levels[self.gpus]) * np.sqrt(count / (count - len(levels)))

    def drawn(self, rng: np.random.Generator, comparisons: int, gpus: Sequence[int]) -> Array:
        """[comparisons, processes, cells, ROUNDS], with a process on each of ``gpus``."""
        chosen = rng.integers(len(self.gpus), size=(comparisons, len(gpus)))
        within = self.samples - stats.trimmed_mean(self.samples)[..., None]
        return within[chosen] + (self.levels[list(gpus)] + self.deviations[chosen])[..., None]


def recorded(runs: Sequence[Run]) -> Recorded:
    """The gpu_us of every cell that all records have with ROUNDS rounds. Raises RecordError where there is none."""
    by_run = [
        {cell.key: stats.samples(cell.metrics, "gpu_us") for cell in run.cells if stats.is_timed(cell, "gpu_us")}
        for run in runs
    ]
    shared = [key for key in by_run[0] if all(len(one.get(key, ())) >= ROUNDS and min(one[key]) > 0 for one in by_run)]
    if not shared:
        raise RecordError(
            f"{runs[0].path} and the other records of its side have no gpu_us of one cell in common, of {ROUNDS} rounds"
        )
    samples = np.log([[one[key][:ROUNDS] for key in shared] for one in by_run])
    ids = [run.gpu_ids[0] for run in runs]
    gpus = np.array([list(dict.fromkeys(ids)).index(gpu) for gpu in ids])
    return Recorded(tuple(shared), runs[0].header.environment.gpu or "", samples, gpus)


def of_machine(name: str, base: Recorded, head: Recorded | None = None, gpus: int = 1) -> Corpus:
    """gpus: how many of the machine's both sides run on. head: the same cells on another GPU of the model, judged with
    the band that ``compare`` adds.
    """

    def draw(rng: np.random.Generator, comparisons: int, processes: int) -> tuple[Array, Array]:
        first, second = (
            source.drawn(rng, comparisons, blocks(side, processes, gpus))
            for side, source in enumerate((base, head or base))
        )
        return first, second

    return Corpus(name, draw, MACHINE_SPREAD if head else 0.0, gpus)


# --- made-up noise ----------------------------------------------------------------------------------------------------

#: Of every model: cells from 1 to 170 us; standard deviations of a process and of a round, at 1 us; both fall with the
#: square root of the time, as they do on a GPU.
CELLS, LONGEST_US, PROCESS_SD, ROUND_SD = 66, 170.0, 0.004, 0.01


def model(name: str, effects: Callable[..., Array], spikes: float = 0.0) -> Corpus:
    """effects: (generator, [comparisons, 2 * processes, cells]) -> log effects of processes beyond the usual ones, in
    the order base, head, head, base, ... spikes: share of rounds that take a fifth longer.
    """
    times = np.geomspace(1.0, LONGEST_US, CELLS)
    scale = 1 / np.sqrt(times)

    def draw(rng: np.random.Generator, comparisons: int, processes: int) -> tuple[Array, Array]:
        shape = (comparisons, 2 * processes, CELLS)
        of_process = PROCESS_SD * scale * rng.standard_normal(shape) + effects(rng, shape)
        rounds = ROUND_SD * scale[:, None] * rng.standard_normal((*shape, ROUNDS))
        rounds += 0.2 * (rng.random((*shape, ROUNDS)) < spikes)
        samples = np.log(times)[:, None] + of_process[..., None] + rounds
        of_head = np.array([i % 4 in (1, 2) for i in range(2 * processes)])
        return samples[:, ~of_head], samples[:, of_head]

    return Corpus(name, draw)


def _drift(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """The machine becomes slower or faster by up to a few per cent from the first process to the last."""
    return 0.01 * rng.standard_normal((shape[0], 1, 1)) * np.linspace(0, 1, shape[1])[:, None]


def _two_states(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """One cell in ten is 3 % slower in three processes of ten."""
    jumps = rng.random((shape[0], 1, shape[2])) < 0.1
    return 0.03 * (jumps & (rng.random(shape) < 0.3))


def _heavy_tails(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return 0.003 * rng.standard_t(3, shape)


def _shared_host(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Everything in a process is faster or slower by 1 %."""
    return 0.01 * rng.standard_normal((*shape[:2], 1))


MODELS = (
    model("plain", lambda rng, shape: np.zeros(shape)),
    model("drift", _drift),
    model("two states", _two_states),
    model("heavy tails", _heavy_tails, spikes=0.05),
    model("shared host", _shared_host),
)


# --- rules ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """slower, faster: [comparisons, cells]. exit_code: [comparisons]."""

    slower: Array
    faster: Array
    exit_code: Array


def _simple(slower: Array, faster: Array) -> Outcome:
    return Outcome(slower, faster, slower.any(-1).astype(int))


def suite(base: Array, head: Array, band: float = 0.0, gpus: int = 1) -> Outcome:
    """What ``compare`` does, over many comparisons at once."""
    return _judged(_differ(stats.trimmed_mean(base), stats.trimmed_mean(head), gpus), band)[0]


#: change, variance, df, factor and logarithm of the time, of all cells [comparisons, cells].
Evidence = tuple[Array, Array, Array, Array, Array]


def _differ(base: Array, head: Array, gpus: int) -> Evidence:
    """base, head: logarithms of times [comparisons, processes, cells]."""
    of_blocks = [blocks(side, base.shape[1], gpus) for side in (0, 1)]
    found = moderated.difference(np.moveaxis(base, 1, 0), np.moveaxis(head, 1, 0), *of_blocks)
    df, factor = (np.full(found.change.shape, value, float) for value in (found.df, found.factor))
    return found.change, found.variance, df, factor, (base.mean(1) + head.mean(1)) / 2


def _judged(evidence: Sequence[Array], band: float = 0.0, rate: float = DEFAULT.rate) -> tuple[Outcome, Array]:
    """Outcome, and which cells more processes could still decide."""
    change, variance, df, factor, log_time = evidence
    spread = moderated.moderate(variance, df, log_time)
    threshold, detect = ((1 + share) * (1 + band) - 1 for share in (DEFAULT.threshold, DEFAULT.detect))
    found = moderated.judge(change, spread, factor, threshold, detect, rate)
    fails = found.slower & (np.exp(log_time) * np.abs(np.expm1(change)) >= DEFAULT.min_change_us)
    power = np.ma.array(found.power, mask=spread.outlier).mean(-1).filled(0.0)
    codes = np.where(fails.any(-1), 1, np.where(power < POWER, 3, 0))
    return Outcome(found.slower, found.faster, codes), ~fails & (found.power < POWER)


def gate(base: Array, head: Array, gpus: int = 1) -> tuple[Outcome, Array]:
    """What ``gate`` does with as many processes as it may make: the outcome, and the pairs that it needed. Cells that
    are decided at a look keep the processes that they have.
    """
    before, after = stats.trimmed_mean(base), stats.trimmed_mean(head)
    looks = [_differ(before[:, :pairs], after[:, :pairs], gpus) for pairs in LOOKS]
    of_one = [[[part[i, None] for part in look] for look in looks] for i in range(len(base))]
    outcomes, pairs = zip(*map(_when_sure, of_one), strict=True)
    parts = (np.concatenate([getattr(one, name) for one in outcomes]) for name in ("slower", "faster", "exit_code"))
    return Outcome(*parts), np.array(pairs)


def _when_sure(looks: Sequence[Sequence[Array]]) -> tuple[Outcome, int]:
    """looks: the evidence of one comparison after so many pairs, had all cells been measured in each."""
    evidence, undecided = looks[0], np.ones(1, bool)
    for pairs, new in zip(LOOKS, looks, strict=True):
        evidence = [np.where(undecided, part, old) for part, old in zip(new, evidence, strict=True)]
        outcome, undecided = _judged(evidence, rate=DEFAULT.rate / len(LOOKS))
        if outcome.exit_code[0] != 3 or not undecided.any() or pairs == LOOKS[-1]:
            return outcome, pairs


def bootstrap(base: Array, head: Array) -> Outcome:
    rng = np.random.default_rng(0)
    first, second = np.exp(base[:BOOTSTRAPPED, 0]), np.exp(head[:BOOTSTRAPPED, 0])
    medians = [np.median(first, axis=-1), np.median(second, axis=-1)]
    ratios = np.empty((RESAMPLES, *medians[0].shape), dtype=np.float32)
    for i in range(RESAMPLES):
        drawn = [one[..., rng.integers(one.shape[-1], size=one.shape[-1])] for one in (first, second)]
        ratios[i] = np.median(drawn[1], axis=-1) / np.median(drawn[0], axis=-1)
    low, high = np.quantile(ratios, (0.025, 0.975), axis=0)
    change_us = medians[1] - medians[0]
    slower, faster = (low > 1.02) & (change_us > 0.1), (high < 0.98) & (change_us < -0.1)
    same = (low >= 0.98) & (high <= 1.02)
    unsure = ~(slower | faster | same)
    return Outcome(slower, faster, np.where(slower.any(-1), 1, np.where(unsure.any(-1), 3, 0)))


def _pooled(samples: Array) -> Array:
    """[comparisons, cells, all samples of all processes]"""
    return np.moveaxis(samples, 1, 2).reshape(samples.shape[0], samples.shape[2], -1)


def mann_whitney(base: Array, head: Array) -> Outcome:
    first, second = _pooled(base), _pooled(head)
    count = first.shape[-1]
    ranks = rankdata(np.concatenate([first, second], axis=-1), axis=-1)
    statistic = ranks[..., count:].sum(-1) - count * (count + 1) / 2
    z = (statistic - count * count / 2) / np.sqrt(count * count * (2 * count + 1) / 12)
    significant = 2 * ndtr(-np.abs(z)) < 0.05
    return _simple(significant & (z > 0), significant & (z < 0))


def criterion(base: Array, head: Array) -> Outcome:
    """The bootstrap of a mean of so many samples is normal; its interval is taken as such."""
    first, second = np.exp(_pooled(base)), np.exp(_pooled(head))
    means = first.mean(-1), second.mean(-1)
    errors = [
        one.std(-1, ddof=1) / np.sqrt(one.shape[-1]) / mean for one, mean in zip((first, second), means, strict=True)
    ]
    change, error = means[1] / means[0] - 1, np.hypot(*errors)
    significant = 2 * ndtr(-np.abs(change) / error) < 0.05
    low, high = change - 1.96 * error, change + 1.96 * error
    return _simple(significant & (low > 0.01), significant & (high < -0.01))


def best_of_five(base: Array, head: Array) -> Outcome:
    best = [np.median(one[:, :5], axis=-1).min(1) for one in (base, head)]
    change = np.expm1(best[1] - best[0])
    return _simple(change > 0.05, change < -0.05)


def nvbench(base: Array, head: Array) -> Outcome:
    sides = [np.exp(one[:, 0]) for one in (base, head)]
    medians = [np.median(one, axis=-1) for one in sides]
    noises = []
    for one, median in zip(sides, medians, strict=True):
        low, high = np.quantile(one, (0.25, 0.75), axis=-1)
        noises.append((high - low) / 1.349 / median)
    change = medians[1] / medians[0] - 1
    beyond = np.abs(change) > np.minimum(*noises)
    return _simple(beyond & (change > 0), beyond & (change < 0))


OTHERS = {
    "bootstrap": bootstrap,
    "mann_whitney": mann_whitney,
    "criterion": criterion,
    "best_of_five": best_of_five,
    "nvbench": nvbench,
}
#: Processes a side that a rule looks at, where that is not USUAL.
LOOKS_AT = {"best_of_five": 5}


# --- rates ------------------------------------------------------------------------------------------------------------


def rates(corpus: Corpus, rule: str, processes: int, comparisons: int) -> dict[str, float]:
    """Shares of comparisons: ``any_slower``, ``any_changed`` and ``exit_0``, ``exit_1``, ``exit_3`` on unchanged code;
    ``found_5`` with one cell, chosen at random, 5 % slower (and so on); ``failed_5``: that ended with exit code 1. Of
    ``gate`` also ``pairs`` of processes, on average, and ``first``: the share that ended at the first look.
    """
    totals: dict[str, list[float]] = {}
    pairs = []

    def judged(base: Array, head: Array) -> Outcome:
        if rule == "gate":
            outcome, needed = gate(base, head, corpus.gpus)
            pairs.append(needed)
            return outcome
        return suite(base, head, corpus.band, corpus.gpus) if rule == "suite" else OTHERS[rule](base, head)

    limit = min(comparisons, BOOTSTRAPPED) if rule == "bootstrap" else comparisons
    for rng, count in _chunks(limit):
        base, head = corpus.draw(rng, count, processes)
        unchanged = judged(base, head)
        found = {"any_slower": unchanged.slower.any(-1), "any_changed": (unchanged.slower | unchanged.faster).any(-1)}
        found |= {f"exit_{code}": unchanged.exit_code == code for code in (0, 1, 3)}
        if pairs:
            found |= {"pairs": pairs[-1], "first": pairs[-1] == LOOKS[0]}
        rows = np.arange(count)
        for share in INJECTED:
            cell = rng.integers(base.shape[2], size=count)
            slowed = head.copy()
            slowed[rows, :, cell] += np.log1p(share)
            changed = judged(base, slowed)
            found[f"found_{share * 100:g}"] = changed.slower[rows, cell]
            found[f"failed_{share * 100:g}"] = changed.exit_code == 1
        for name, values in found.items():
            totals.setdefault(name, []).extend(np.asarray(values, float))
    return {name: float(np.mean(values)) for name, values in totals.items()} | {"comparisons": limit}


def _chunks(comparisons: int) -> Iterator[tuple[np.random.Generator, int]]:
    for number, start in enumerate(range(0, comparisons, CHUNK)):
        yield np.random.default_rng((0, number)), min(CHUNK, comparisons - start)


def report(machines: dict[str, Recorded], comparisons: int, say: Callable[[str], None] = lambda _: None) -> dict:
    """Everything the documents show."""
    corpora = [of_machine(name, source) for name, source in machines.items()]
    several = {name: source for name, source in machines.items() if len(source.levels) > 1}
    on_all = [of_machine(f"{name}, {len(one.levels)} GPUs", one, gpus=len(one.levels)) for name, one in several.items()]
    document: dict = {
        "comparisons": comparisons,
        "machines": {
            name: {"gpu": source.gpu, "processes": len(source.gpus), "cells": len(source.keys)} | _spread(source)
            for name, source in machines.items()
        },
        "rows": [],
    }

    def add(kind: str, corpus: Corpus, rule: str, processes: int) -> None:
        start = time.monotonic()
        found = rates(corpus, rule, processes, comparisons)
        document["rows"].append({"kind": kind, "corpus": corpus.name, "rule": rule, "processes": processes, **found})
        shown = ", ".join(f"{name} {value:.3g}" for name, value in found.items() if not name.startswith("failed"))
        say(f"{kind} {corpus.name}, {rule}, {processes} + {processes}: {shown} ({time.monotonic() - start:.0f} s)")

    for kind, members in (("recorded", corpora), ("model", MODELS)):
        for corpus in members:
            for processes in PROCESSES:
                add(kind, corpus, "suite", processes)
            for rule in OTHERS:
                add(kind, corpus, rule, LOOKS_AT.get(rule, USUAL))
    for corpus in on_all:
        for processes in PROCESSES:
            add("blocks", corpus, "suite", processes)
    for corpus in (*corpora, *on_all):
        add("gate", corpus, "gate", LOOKS[-1])
    for (first, base), (second, head) in combinations(machines.items(), 2):
        if (base.gpu, base.keys) == (head.gpu, head.keys):
            add("two machines", of_machine(f"{first}, {second}", base, head), "suite", USUAL)
    return document


def _keep(document: dict, earlier: dict) -> None:
    """Add the machines of an earlier document that this one does not have, and their rows."""
    names = [name for name in earlier["machines"] if name not in document["machines"]]
    document["machines"] |= {name: earlier["machines"][name] for name in names}
    own = [row for row in earlier["rows"] if row["corpus"].partition(",")[0] in names and row["kind"] != "two machines"]
    document["rows"] = own + document["rows"]
    document["comparisons"] = min(document["comparisons"], earlier["comparisons"])


def _spread(source: Recorded) -> dict[str, float]:
    """Of the relative standard deviations between processes: median and greatest."""
    deviations = source.deviations.std(0)
    return {"median_sd": float(np.median(deviations)), "greatest_sd": float(deviations.max())}


def by_processes(document: dict) -> list[tuple[str, dict]]:
    """The rows of this suite, by machine: ``H200, 4 + 4``, or ``H200, gate: 6.1 pairs``."""
    rows = [row for row in document["rows"] if row["rule"] in ("suite", "gate") and row["kind"] in KINDS]
    rows.sort(key=lambda row: list(document["machines"]).index(row["corpus"].partition(",")[0]))
    sizes = (
        f"{row['processes']} + {row['processes']}" if row["rule"] == "suite" else f"gate: {row['pairs']:.1f} pairs"
        for row in rows
    )
    return [(f"{row['corpus']}, {size}", row) for row, size in zip(rows, sizes, strict=True)]


#: Of rows that describe machines: their processes on one GPU, on all of them, and as ``gate`` makes them.
KINDS = ("recorded", "blocks", "gate")


#: Rule -> what the documents call it.
RULES = {
    "suite": "**this suite**",
    "bootstrap": "bootstrap of one process a side, 2 % and 0.1 µs",
    "mann_whitney": "Mann-Whitney at 0.05",
    "criterion": "as Criterion.rs",
    "best_of_five": "best of five, ±5 %",
    "nvbench": "as nvbench-compare, robust",
}


def documented(document: dict, name: str) -> list[str]:
    """One of the tables of docs/comparison.md, from what --json wrote; ``name``: rules, processes, models."""
    rows, found_heads = document["rows"], [f"+{100 * share:g} % found, %" for share in INJECTED]

    def mean(of: Sequence[dict], key: str, digits: int = 1) -> str:
        return f"{100 * np.mean([row[key] for row in of]):.{digits}f}"

    def found(of: Sequence[dict]) -> list[str]:
        return [mean(of, f"found_{100 * share:g}", 0) for share in INJECTED]

    def of_rule(rule: str, kind: str) -> list[dict]:
        usual = LOOKS_AT.get(rule, USUAL)
        return [row for row in rows if (row["rule"], row["kind"], row["processes"]) == (rule, kind, usual)]

    if name == "rules":
        heads = ["rule", "unchanged: fails, %", "unchanged: passes, %", *found_heads]
        of_rules = {text: of_rule(rule, "recorded") for rule, text in RULES.items()}
        lines = [[text, mean(of, "exit_1"), mean(of, "exit_0"), *found(of)] for text, of in of_rules.items()]
    elif name == "processes":
        heads = ["machine, processes", "unchanged: exit 1, %", "exit 0, %", "exit 3, %", *found_heads]
        lines = [
            [machine, *(mean([row], f"exit_{code}") for code in (1, 0, 3)), *found([row])]
            for machine, row in by_processes(document)
        ]
    else:
        heads = ["fails unchanged, % · +5 % found, %", *(model.name for model in MODELS)]
        lines = [
            [text] + [f"{mean([row], 'exit_1')} · {mean([row], 'found_5', 0)}" for row in of_rule(rule, "model")]
            for rule, text in RULES.items()
        ]
    below = []
    for machine, one in document["machines"].items() if name == "processes" else ():
        differ = f"{100 * one['median_sd']:.2f} % in the median cell, {100 * one['greatest_sd']:.2f} % in the worst"
        below += ["", f"{machine}: {one['processes']} processes of {one['cells']} cells, which differ by {differ}."]
    rule = ["---", *["---:"] * (len(heads) - 1)]
    return [*(f"| {' | '.join(line)} |" for line in (heads, rule, *lines)), *below]


#: Rule -> its name in the plot, and its colour (Okabe and Ito).
DRAWN = {
    "suite": ("this suite", "#0072B2"),
    "bootstrap": ("bootstrap, one process a side", "#E69F00"),
    "mann_whitney": ("Mann-Whitney 0.05", "#CC79A7"),
    "criterion": ("as Criterion.rs", "#009E73"),
    "best_of_five": ("best of five, ±5 %", "#D55E00"),
    "nvbench": ("as nvbench-compare", "#666666"),
}


def draw(document: dict, stem: Path) -> list[Path]:
    """Left: how many unchanged comparisons each rule fails. Right: which share of slow-downs of one cell it finds."""
    from matplotlib.ticker import PercentFormatter

    from spec_decode_bench.plots._style import LABEL_PT, SMALL_PT, TITLE_PT, caption, new_figure, save

    figure = new_figure(3.6)
    alarms, power = figure.subplots(1, 2, width_ratios=(1, 1.25))
    injected = [share * 100 for share in INJECTED]
    for place, (rule, (_, colour)) in enumerate(DRAWN.items()):
        rows = [row for row in document["rows"] if row["rule"] == rule and row["kind"] == "recorded"]
        rows = [row for row in rows if row["processes"] == LOOKS_AT.get(rule, USUAL)]
        failed = float(np.mean([row["exit_1"] for row in rows]))
        alarms.barh(place, failed, color=colour, height=0.6)
        alarms.text(failed + 0.015, place, f"{100 * failed:.1f} %", va="center", fontsize=SMALL_PT)
        found = [float(np.mean([row[f"found_{share:g}"] for row in rows])) for share in injected]
        width = 2.4 if rule == "suite" else 1.3
        power.plot(injected, found, color=colour, marker="o", markersize=4, linewidth=width)
    alarms.set_yticks(range(len(DRAWN)), [name for name, _ in DRAWN.values()], fontsize=LABEL_PT)
    for label, (_, colour) in zip(alarms.get_yticklabels(), DRAWN.values(), strict=True):
        label.set_color(colour)
    alarms.invert_yaxis()
    alarms.set_xlim(0, 1.18)
    alarms.set_title("unchanged code: comparisons that fail", fontsize=TITLE_PT)
    power.set_title("one cell slower: found (colours as on the left)", fontsize=TITLE_PT)
    power.set_xscale("log")
    power.set_xticks(injected, [f"+{share:g} %" for share in injected])
    power.set_xticks([], minor=True)
    power.set_ylim(-0.03, 1.05)
    for axes, axis in ((alarms, alarms.xaxis), (power, power.yaxis)):
        axis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        axes.tick_params(labelsize=LABEL_PT)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x" if axes is alarms else "y", color="#EEEEEE")
        axes.set_axisbelow(True)
    machines = document["machines"].values()
    caption(
        figure,
        f"At least {document['comparisons']} comparisons of {USUAL} + {USUAL} processes (best of five: 5 + 5) for each "
        f"machine and point, up to {max(one['cells'] for one in machines)} cells each, drawn from records of unchanged "
        "code.",
    )
    return save(figure, stem)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.error_rates", description=__doc__.split("\n")[0])
    parser.add_argument("sides", nargs="+", metavar="SIDE", help="NAME=FOLDER, or a folder whose name is the name")
    parser.add_argument("--comparisons", type=int, default=1000, help="for each corpus, rule and size (default 1000)")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write all rates; machines that FILE has already, and that are not given, stay in it",
    )
    parser.add_argument("--plot", type=Path, metavar="STEM", help="draw STEM.png and STEM.svg")
    options = parser.parse_args(arguments)
    if options.comparisons < 1:
        parser.error("--comparisons must be at least 1")
    try:
        machines = {}
        for text in options.sides:
            name, _, folder = text.rpartition("=")
            runs = read_side(folder)
            if len(runs) < MIN_PROCESSES:
                raise RecordError(f"{folder}: {len(runs)} records; at least {MIN_PROCESSES} processes are needed")
            machines[name or Path(folder).name] = recorded(runs)
        for file in filter(None, (options.json, options.plot)):  # known before minutes of work
            file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"error: cannot write to {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except RecordError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    document = report(machines, options.comparisons, lambda line: print(line, flush=True))
    if options.json:
        if options.json.is_file():  # machines that are not at hand keep their rates
            _keep(document, json.loads(options.json.read_text(encoding="utf-8")))
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        draw(document, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
