"""Tables of decode loops: rows are loops, columns are stacks. Console and markdown render the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from spec_decode_bench.decode_loop import analysis
from spec_decode_bench.decode_loop.analysis import Delta, Metric, by_point, is_measured, reference_of
from spec_decode_bench.decode_loop.records import Loop, loops_of
from spec_decode_bench.harness.analysis.stats import Interval
from spec_decode_bench.harness.analysis.warnings import KNOWN_FAILURES
from spec_decode_bench.harness.numbers import signed, significant
from spec_decode_bench.harness.records.schema import Run, Status
from spec_decode_bench.harness.records.sentences import ending
from spec_decode_bench.harness.report.console import print_counts, print_endings, print_tables
from spec_decode_bench.harness.report.table import Column, Entry, Table, number_column, variant_table
from spec_decode_bench.harness.report.tables import NBSP, NOTHING, Footnotes, proof_notes

#: The kind of the tables of percentiles, which are too long for a terminal.
PERCENTILES = "percentiles"
#: Metrics with a table of blocks and one of percentiles.
METRICS: dict[Metric, str] = {"itl_us": "ITL", "tpot_us": "TPOT"}


def loop_tables(run: Run) -> list[Table]:
    """ITL and TPOT with the differences to the reference stack, their percentiles, the host, and the model beside the
    measurement.
    """
    loops = loops_of(run)
    if not loops:
        return []
    cpu = run.header.environment.device == "cpu"
    where = "CPU miniature, no GPU time: " if cpu else ""
    table = _Tables(run)
    reference = loops[0].reference
    tables = [
        *(table.of_change(f"{where}{name}", metric) for metric, name in METRICS.items()),
        *(
            table.by_percentile(f"{where}{name} percentiles of {reference} in ms, change with the others in µs", which)
            for which, name in METRICS.items()
        ),
        table.of(
            "host",
            f"{where}Host busy, steps submitted late; below the gap between model steps in µs and tokens per second",
            _host,
        ),
    ]
    if not cpu:
        title = "Metadata of a step: launches, and the host's time to submit them in µs"
        tables.append(table.of("submitted", title, _submitted, without=("model_step_us", "scheduling")))
        tables.append(
            table.of(
                "against_model",
                f"Change of ITL against {reference} in µs: measured, below it modelled from times outside the loop, "
                "and the difference",
                _against_model,
                [
                    "modelled from: sync: time after a wait for the device; "
                    "async: time in a queued stream; captured step: graph slope"
                ],
            )
        )
    return tables


def itl_table(run: Run) -> Table:
    """The ITL of the reference stack, and what the others change."""
    return _Tables(run).of_change("ITL", "itl_us")


def overview_table(runs: Sequence[Run]) -> Table:
    """Of each run the largest batch and the longest model step: the ITL with the functions of vLLM, or where it has
    none of the reference, and what the last stack changes.
    """
    rows = []
    for run in runs:
        axes = [loop.axes for loop in loops_of(run)]
        largest = {name: max(one[name] for one in axes) for name in ("concurrency", "model_step_us")}
        for loops in by_point(run).values():
            before = next((loop for loop in loops if loop.stack == "vllm_call"), reference_of(loops))
            change = analysis.delta(before, loops[-1], "itl_us") if before else None
            if change and all(loops[0].axes[name] == most for name, most in largest.items()):
                both = before, loops[-1]
                texts = (
                    f"{Path(run.path).stem}, {short_gpu(run)}",
                    f"{before.stack} → {loops[-1].stack}",
                    before.axes["scheduling"],
                    _ms(before, "itl_us", None),
                    f"{signed(change.us.median)} {interval_text(change.us)}",
                    percent_text(change),
                    " → ".join(str(loop.alone.launches) for loop in both),
                    " → ".join(significant(analysis.alone(loop, "host_us") or 0) for loop in both),
                )
                rows.append(tuple(map(Entry, texts)))
    heads = ("ITL before, ms", "change, µs", "change", "launches", "host µs")
    columns = (*map(Column, ("record", "stacks", "scheduling")), *map(number_column, heads))
    note = "95 % intervals. launches, host µs: of a step's metadata, and the host's time to submit it"
    return Table("ITL, at the largest batch and the longest model step", columns, tuple(rows), (note,), kind="overview")


def short_gpu(run: Run) -> str:
    """Without vendor and memory: ``H100``."""
    return (run.header.environment.gpu or "CPU").removeprefix("NVIDIA ").partition(" ")[0]


def _reference_instead(points: Mapping[str, Sequence[Loop]]) -> list[str]:
    """That the changes refer to a later stack because the engine of the first is missing."""
    first = next(iter(points.values()))[0]
    if first.status is not Status.UNAVAILABLE or first.stack == first.reference:
        return []
    return [f"where its engine is installed (docs/upstream.md), the changes refer to {first.stack}"]


def show_loops(console: Console, runs: Sequence[Run]) -> list[Table]:
    """Print the tables of a run, and how its stacks ended; of several runs an overview. All tables, also those that are
    too long for a terminal.
    """
    if len(runs) > 1:
        print_tables(console, tables := [overview_table(runs)])
        return tables
    tables, loops = loop_tables(runs[0]), loops_of(runs[0])
    print_tables(console, [table for table in tables if table.kind != PERCENTILES])
    console.print(Text("\npercentiles of ITL and TPOT: in the Markdown that is named below", style="dim"))
    print_counts(console, loops, "loop")
    print_endings(console, ((loop.stack, loop) for loop in loops if ending(loop) is not None), "loop")
    return tables


def stack_failure_warnings(loops: Sequence[Loop]) -> list[str]:
    """Those of the variants of each stack, a sentence for each stack."""
    limited = {loop.stack: loop.known_failures for loop in loops if loop.known_failures}
    return [
        f"{KNOWN_FAILURES} {stack} has variants with known failures: "
        + "; ".join(f"{where} ({reason})" for where, reason in known_failures.items())
        for stack, known_failures in limited.items()
    ]


class _Tables:
    """Loops as rows; what is the same in all of them goes into a note."""

    def __init__(self, run: Run) -> None:
        self._points = by_point(run)
        self._stacks = tuple(dict.fromkeys(loop.stack for loops in self._points.values() for loop in loops))
        self._limits = stack_failure_warnings(loops_of(run))
        first = [loops[0].axes for loops in self._points.values()]
        names = [name for name in first[0] if name != "batch_size"]
        self._varying = [name for name in names if len({str(axes.get(name)) for axes in first}) > 1]
        self._varying = self._varying or ["concurrency"]
        shared = [f"{name}={_text(first[0][name])}" for name in names if name not in self._varying]
        self._notes = [", ".join(shared)] if shared else []
        self._notes += proof_notes({name: proof for loop in loops_of(run) for name, proof in loop.proofs.items()})

    def of(
        self,
        kind: str,
        title: str,
        entry: Callable[[Loop | None, Loop], Entry],
        notes: Sequence[str] = (),
        without: Sequence[str] = (),
    ) -> Table:
        """without: axes that the entries do not depend on; of the loops that differ in these the first has a row."""
        footnotes, rows = Footnotes(), {}
        axes = [name for name in self._varying if name not in without] or ["concurrency"]
        for loops in self._points.values():
            label = self._axes(loops, axes)
            rows[label] = rows.get(label) or self._entries(loops, entry, footnotes)
        notes = (*self._notes, *notes, *self._limits, *footnotes.notes())
        return variant_table(title, axes, self._stacks, rows.items(), notes, kind)

    def of_change(self, name: str, metric: Metric) -> Table:
        """The means of a metric."""
        sampled = "medians over blocks, 95 % intervals by a bootstrap over blocks; µs, and % of the reference"
        reference = next(iter(self._points.values()))[0].reference
        title = f"{name} of {reference} in ms, change with the other stacks in µs"
        notes = [sampled, *_reference_instead(self._points)]
        return self.of(METRICS[metric].lower(), title, lambda ref, loop: _change(ref, loop, metric), notes)

    def by_percentile(self, title: str, metric: Metric) -> Table:
        """A row for each percentile of each loop."""
        footnotes, rows = Footnotes(), []
        for loops in self._points.values():
            for name in analysis.PERCENTILES:
                entries = self._entries(loops, lambda ref, loop, name=name: _change(ref, loop, metric, name), footnotes)
                rows.append(((*self._axes(loops, self._varying), name), entries))
        notes = (*self._notes, *self._limits, *footnotes.notes())
        return variant_table(title, (*self._varying, "percentile"), self._stacks, rows, notes, PERCENTILES)

    @staticmethod
    def _axes(loops: Sequence[Loop], names: Sequence[str]) -> tuple[str, ...]:
        return tuple(_text(loops[0].axes.get(name)) for name in names)

    def _entries(
        self, loops: Sequence[Loop], entry: Callable[[Loop | None, Loop], Entry], footnotes: Footnotes
    ) -> tuple[Entry, ...]:
        reference, by_stack, entries = reference_of(loops), {loop.stack: loop for loop in loops}, []
        for stack in self._stacks:
            loop = by_stack.get(stack)
            if loop is not None and is_measured(loop):
                made = entry(reference, loop)
                limited = loop.known_failures or (reference is not None and reference.known_failures)
                entries.append(replace(made, text=f"{made.text}{KNOWN_FAILURES}") if made.text and limited else made)
            else:
                entries.append(footnotes.entry(loop))
        return tuple(entries)


def _change(reference: Loop | None, loop: Loop, metric: Metric, percentile: str | None = None) -> Entry:
    """The reference's value, or the change to it; the value as well where there is nothing to compare it with."""
    other = reference is not None and loop.stack != reference.stack
    change = analysis.delta(reference, loop, metric, percentile) if other else None
    if change is None:
        return Entry(_ms(loop, metric, percentile))
    return Entry(signed(change.us.median), f"{interval_text(change.us)}{NBSP}· {percent_text(change)}")


def _host(reference: Loop | None, loop: Loop) -> Entry:
    main = f"{100 * analysis.host_busy_share(loop):.0f}{NBSP}% {100 * analysis.late_share(loop):.0f}{NBSP}%"
    second = f"{significant(analysis.gap_us(loop))} {significant(analysis.tokens_per_s(loop))}"
    return Entry(main, second)


def _submitted(reference: Loop | None, loop: Loop) -> Entry:
    """Of the operators alone; entries of the scheduler, sampler and copies back are the same in all stacks."""
    host_us = analysis.alone(loop, "host_us")
    if host_us is None or loop.alone.launches is None:
        return NOTHING
    return Entry(str(loop.alone.launches), significant(host_us))


def _against_model(reference: Loop | None, loop: Loop) -> Entry:
    if reference is None or loop.stack == reference.stack:
        return NOTHING
    measured, modelled = analysis.delta(reference, loop, "itl_us"), analysis.modelled_itl_us(reference, loop)
    if measured is None or modelled is None:
        return NOTHING
    missed = measured.us.median - modelled
    return Entry(signed(measured.us.median), f"{signed(modelled)} {signed(missed)}")


def _ms(loop: Loop, metric: Metric, percentile: str | None) -> str:
    return significant(analysis.value(loop, metric, percentile) / 1000, 4)


def interval_text(interval: Interval) -> str:
    """``[−285; −44.6]``."""
    return f"[{signed(interval.low)}; {signed(interval.high)}]"


def percent_text(change: Delta) -> str:
    """``−2.19 %``."""
    return f"{signed(change.percent.median, '.2f')}{NBSP}%"


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
