"""Tables of decode loops: rows are loops, columns are stacks. Console and markdown render the same ones.

Never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from harness.analysis import decode_loop as analysis
from harness.analysis.decode_loop import Delta, by_point, is_measured, reference_of
from harness.analysis.stats import Interval
from harness.records.decode_loop import Loop
from harness.records.schema import Run
from harness.report.tables import NBSP, Entry, Footnotes, Table, signed
from harness.wording import counted, significant


def loop_tables(run: Run) -> list[Table]:
    """ITL and TPOT with the differences to the reference stack, their percentiles, the host, and the model beside the
    measurement.
    """
    if not run.loops:
        return []
    cpu = run.header.environment.device == "cpu"
    where = "CPU miniature, no GPU time: " if cpu else ""
    table = _Tables(run)
    reference = run.loops[0].reference
    sampled = "95 % intervals by a bootstrap over blocks; µs, and % of the reference"
    tables = [
        table.of(
            f"{where}ITL of {reference} in ms, change with the other stacks in µs",
            lambda ref, one: _change(ref, one, "itl_us"),
            [sampled],
        ),
        table.of(
            f"{where}TPOT of {reference} in ms, change with the other stacks in µs",
            lambda ref, one: _change(ref, one, "tpot_us"),
            [sampled],
        ),
        table.of(
            f"{where}ITL percentiles in ms: p50, below p90 and p99",
            lambda ref, one: Entry(
                _ms(one, "itl_us", "p50"), f"{_ms(one, 'itl_us', 'p90')} {_ms(one, 'itl_us', 'p99')}", timed=True
            ),
        ),
        table.of(
            f"{where}TPOT percentiles in ms: p50, below p90 and p99",
            lambda ref, one: Entry(
                _ms(one, "tpot_us", "p50"), f"{_ms(one, 'tpot_us', 'p90')} {_ms(one, 'tpot_us', 'p99')}", timed=True
            ),
        ),
        table.of(
            f"{where}Host busy, steps submitted late; below the gap between model steps in µs and tokens per second",
            _host,
        ),
    ]
    if not cpu:
        tables.append(
            table.of(
                f"Change of ITL against {reference} in µs: measured, below modelled from times outside of the loop, "
                "and the difference",
                _against_model,
                [
                    "modelled from: under sync the eager time after a wait for the device, under async the time in a "
                    "queued stream, in a captured step the graph slope"
                ],
            )
        )
    return tables


def print_endings(console: Console, loops: Sequence[Loop]) -> None:
    """``12 passed, 3 unavailable``, then every stack that is not measured with its reason, each reason once."""
    counts: dict[str, int] = {}
    for loop in loops:
        counts[loop.status] = counts.get(loop.status, 0) + 1
    console.print(Text(", ".join(f"{count} {status}" for status, count in counts.items()) or "no loop"))
    shown: dict[tuple[str, str], list[Loop]] = {}
    for loop in loops:
        if loop.reason is not None:
            shown.setdefault((loop.stack, f"{loop.status}: {loop.reason}"), []).append(loop)
    for (stack, text), same in shown.items():
        more = f" and {counted(len(same) - 1, 'more loop')}" if len(same) > 1 else ""
        console.print(
            Text(f"{stack} at {same[0].point}{more}: {text}", style="red" if same[0].status.is_bad else "dim")
        )


class _Tables:
    """Loops as rows; what is the same in all of them goes into a note."""

    def __init__(self, run: Run) -> None:
        self._points = by_point(run)
        self._stacks = tuple(dict.fromkeys(loop.stack for loops in self._points.values() for loop in loops))
        first = [loops[0].axes for loops in self._points.values()]
        names = [name for name in first[0] if name != "batch_size"]
        self._varying = [name for name in names if len({str(axes.get(name)) for axes in first}) > 1]
        self._varying = self._varying or ["concurrency"]
        shared = [f"{name}={_text(first[0][name])}" for name in names if name not in self._varying]
        self._notes = [", ".join(shared)] if shared else []

    def of(self, title: str, entry: Callable[[Loop | None, Loop], Entry], notes: Sequence[str] = ()) -> Table:
        rows, footnotes = [], Footnotes()
        for loops in self._points.values():
            reference = reference_of(loops)
            by_stack = {loop.stack: loop for loop in loops}
            entries = []
            for stack in self._stacks:
                loop = by_stack.get(stack)
                if loop is None:
                    entries.append(Entry("", muted=True))
                elif is_measured(loop):
                    entries.append(entry(reference, loop))
                else:
                    entries.append(_without(footnotes, loop))
            axes = tuple(_text(loops[0].axes.get(name)) for name in self._varying)
            rows.append((axes, tuple(entries)))
        return Table(title, tuple(self._varying), self._stacks, tuple(rows), (*self._notes, *notes, *footnotes.notes()))


def _without(footnotes: Footnotes, loop: Loop) -> Entry:
    if loop.reason is None:
        return Entry(loop.status, muted=True)
    letter = footnotes.letters.setdefault(loop.reason, chr(ord("a") + len(footnotes.letters) % 26))
    return Entry(f"{loop.status} {letter}", muted=True)


def _change(reference: Loop | None, loop: Loop, figure: str) -> Entry:
    if reference is None or loop.stack == reference.stack:
        return Entry(_ms(loop, figure, "mean"), timed=True)
    found = analysis.delta(reference, loop, figure)
    if found is None:
        return Entry(_ms(loop, figure, "mean"), timed=True)
    return Entry(signed(found.us.median), f"{interval_text(found.us)}{NBSP}· {percent_text(found)}", timed=True)


def _host(reference: Loop | None, loop: Loop) -> Entry:
    main = f"{100 * analysis.host_busy_share(loop):.0f}{NBSP}% {100 * analysis.late_share(loop):.0f}{NBSP}%"
    second = f"{significant(analysis.gap_us(loop))} {significant(analysis.tokens_per_s(loop))}"
    return Entry(main, second, timed=True)


def _against_model(reference: Loop | None, loop: Loop) -> Entry:
    if reference is None or loop.stack == reference.stack:
        return Entry("")
    measured, modelled = analysis.delta(reference, loop, "itl_us"), analysis.modelled_itl_us(reference, loop)
    if measured is None or modelled is None:
        return Entry("")
    missed = measured.us.median - modelled
    return Entry(signed(measured.us.median), f"{signed(modelled)} {signed(missed)}", timed=True)


def _ms(loop: Loop, figure: str, statistic: str) -> str:
    return significant(analysis.value(loop, figure, statistic) / 1000, 4)


def interval_text(interval: Interval) -> str:
    return f"[{signed(interval.low)}; {signed(interval.high)}]"


def percent_text(found: Delta) -> str:
    return f"{found.percent.median:+.2f}{NBSP}%".replace("-", "−")


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
