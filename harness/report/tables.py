"""Tables of a run from its records: rows are points, columns are variants. Console and markdown render the same ones.

Never imports torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.analysis.itl_tpot import ServingModel, delta, described, serving_model_of
from harness.analysis.stats import (
    FIGURES,
    Interval,
    floor_in_words,
    floor_us,
    interval,
    is_plausible,
    is_timed,
)
from harness.analysis.warnings import (
    LIMITED,
    abbreviated,
    audit_warnings,
    calibration_warnings,
    disagreeing_cells,
    limit_warnings,
    throttling_warnings,
)
from harness.records.decode_loop import Loop
from harness.records.schema import Cell, Header, Run, axis_texts
from harness.report.escape import as_code, as_text
from harness.wording import significant

#: Keeps a time and its ratio on one line of a narrow column.
NBSP = "\u00a0"


@dataclass(frozen=True)
class Entry:
    """One variant at one point, as two lines of text.

    best: it is the fastest of its row. muted: it holds no result of the variant. timed: it holds a time or a difference
    of times. rated: it also holds a ratio to the baseline.
    """

    main: str
    second: str = ""
    best: bool = False
    muted: bool = False
    timed: bool = False
    rated: bool = False


@dataclass(frozen=True)
class Table:
    """axes and variants head the columns. rows: (texts of the axes, entries of the variants). notes: lines below it."""

    title: str
    axes: tuple[str, ...]
    variants: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], tuple[Entry, ...]], ...]
    notes: tuple[str, ...]


@dataclass
class Footnotes:
    """A letter for each distinct reason of a cell without a time, so that its entry stays narrow."""

    letters: dict[str, str] = field(default_factory=dict)

    def entry(self, cell: Cell | Loop | None) -> Entry:
        """The status of a cell or loop, and the letter of its reason."""
        if cell is None:
            return Entry("", muted=True)
        if cell.reason is None:
            return Entry(cell.status, muted=True)
        number = len(self.letters)
        letter = self.letters.setdefault(cell.reason, chr(ord("a") + number) if number < 26 else str(number))
        return Entry(f"{cell.status} {letter}", muted=True)

    def notes(self) -> list[str]:
        return [f"{letter}: {reason}" for reason, letter in self.letters.items()]


def ratio(value: float) -> str:
    return f"{value:.1f}×" if value < 10 else f"{value:.0f}×"


def point_columns(points: Sequence[Cell]) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]], str]:
    """(column heads, point label -> their texts, the axis values that all rows share unless a row says otherwise).

    The first axis that varies has a column; a second column names the axes in which a row differs from most rows.
    """
    texts: dict[str, dict[str, str]] = {}
    for cell in points:
        texts[cell.point] = axis_texts(cell.point, cell.axes)
    axes = list(next(iter(texts.values()))) if texts else []
    texts = {label: {axis: text.get(axis, "") for axis in axes} for label, text in texts.items()}
    values = {axis: Counter(text[axis] for text in texts.values()) for axis in axes}
    varying = [axis for axis in axes if len(values[axis]) > 1]
    first, others = varying[:1], varying[1:]
    usual = {axis: values[axis].most_common(1)[0][0] for axis in axes}
    rows = {}
    for label, text in texts.items():
        differs = " ".join(f"{axis}={text[axis]}" for axis in others if text[axis] != usual[axis])
        rows[label] = (*(text[axis] for axis in first), *([differs] if others else []))
    shared = ", ".join(f"{axis}={usual[axis]}" for axis in axes if axis not in first)
    return (*first, *(["differs in"] if others else [])), rows, shared


def result_tables(run: Run) -> list[Table]:
    """For each operator its times and, with an ``itl_tpot:`` section and GPU times, modelled ITL and TPOT deltas."""
    tables = []
    header, cells, serving = run.header, run.in_order, serving_model_of(run.header)
    for operator in dict.fromkeys(cell.operator for cell in cells):
        mine = [cell for cell in cells if cell.operator == operator]
        tables.append(_measured(run, operator, mine))
        if serving is not None and header.environment.device == "cuda":
            tables += _itl_tpot(header, serving, operator, mine)
    return tables


def _grid(header: Header, cells: Sequence[Cell]) -> tuple[list[str], dict[str, dict[str, Cell]]]:
    """(variants in the header's order, point label -> variant -> cell)."""
    grid: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        grid.setdefault(cell.point, {})[cell.variant] = cell
    present = dict.fromkeys(f"{cell.operator}/{cell.variant}" for cell in cells)
    ordered = [name for name in header.variants if name in present] or list(present)
    return [name.partition("/")[2] for name in ordered], grid


def _without_times(variants: Sequence[str], cells: Sequence[Cell]) -> dict[str, str]:
    """Variants without any time that ended alike at several points -> how; they get a note instead of a column."""
    if len({cell.point for cell in cells}) == 1:
        return {}
    endings = {name: {(c.status, c.reason) for c in cells if c.variant == name} for name in variants}
    timed = {cell.variant for cell in cells if _timed(cell)}
    return {
        name: ": ".join(part for part in next(iter(ending)) if part)
        for name, ending in endings.items()
        if name not in timed and len(ending) == 1
    }


def _timed(cell: Cell) -> bool:
    return any(is_timed(cell, figure) for figure in FIGURES)


def _measured(run: Run, operator: str, cells: Sequence[Cell]) -> Table:
    """GPU times with host times and launches below, or CPU times."""
    gpu = run.header.environment.device == "cuda"
    figure = "gpu_us" if gpu else "cpu_us"
    variants, grid = _grid(run.header, cells)
    columnless = _without_times(variants, cells)
    variants = [name for name in variants if name not in columnless]
    axes, labels, shared = point_columns(cells)
    footnotes, disagreeing = Footnotes(), disagreeing_cells(run, cells)
    floor = gpu and any(is_timed(cell, figure) for cell in cells)

    rows: list[tuple[tuple[str, ...], tuple[Entry, ...]]] = []
    for point, row in grid.items() if variants else ():
        times = {name: time for name, cell in row.items() if (time := interval(cell, figure)) is not None}
        fastest = _fastest(times)
        entries = [_time_entry(row.get(name), times, name == fastest, footnotes, disagreeing) for name in variants]
        entries += [_floor_entry(run, row)] if floor else []
        rows.append((labels[point], tuple(entries)))

    title, legend = _title_and_legend(run, figure, cells[0].baseline, [e for _, entries in rows for e in entries])
    notes = [*_shared_note(shared if rows else ""), *legend, *_missing_baseline(run, cells)]
    notes += [f"{name}, all {len(grid)} points: {ending}" for name, ending in columnless.items()]
    notes += calibration_warnings(run)
    marked = [f"{key.partition('/')[2]} {text}" for key, text in disagreeing.items()]
    notes += [f"? {text}" for text in abbreviated(marked, more="more cells on which they disagree")]
    notes += [*throttling_warnings(cells), *audit_warnings(cells), *limit_warnings(cells), *footnotes.notes()]
    columns = (*variants, "floor") if floor else tuple(variants)
    return Table(f"{operator}: {title}", axes, columns, tuple(rows), tuple(notes))


def _missing_baseline(run: Run, cells: Sequence[Cell]) -> list[str]:
    """Why a table has no ratios although the run names a baseline."""
    name = cells[0].baseline
    chosen = run.header.config.get("baseline") is not None
    others = any(_timed(cell) for cell in cells if cell.variant != name)
    if not chosen or not others or any(_timed(cell) for cell in cells if cell.variant == name):
        return []
    return [f"no ratios: the baseline {name} was not timed"]


def _fastest(times: Mapping[str, Interval]) -> str | None:
    """None where there is nothing to be faster than."""
    return min(times, key=lambda name: times[name].median) if len(times) > 1 else None


def _title_and_legend(run: Run, figure: str, baseline: str, entries: Sequence[Entry]) -> tuple[str, list[str]]:
    """What the entries hold, and a note on how to read them. Neither mentions what no entry has."""
    rated = f" (times faster than {baseline})" if any(entry.rated for entry in entries) else ""
    below = "; below: host µs · launches" if any(entry.second for entry in entries) else ""
    if not any(entry.timed for entry in entries):
        return f"no {'GPU' if figure == 'gpu_us' else 'CPU'} time{below}", []
    legend = ["* fastest of its row."] if any(entry.best for entry in entries) else []
    if figure == "gpu_us":
        cache = "" if run.cache == "hot" else f", {run.cache} cache"
        meanings = dict.fromkeys(map(floor_in_words, run.calibrations))
        legend += [f"floor, µs: {'; or '.join(meanings)}"] if meanings else []
        return f"GPU µs{cache}{rated}{below}", [" ".join(legend)]
    legend.append(f"Times of PyTorch variants, one thread, on {run.header.environment.processor}")
    return f"CPU wall time in µs, not a GPU time{rated}", [" ".join(legend)]


def _shared_note(shared: str) -> list[str]:
    return [f"unless a row says otherwise: {shared}"] if shared else []


def _time_entry(
    cell: Cell | None, times: Mapping[str, Interval], best: bool, footnotes: Footnotes, disagreeing: Mapping[str, str]
) -> Entry:
    if cell is None or cell.variant not in times:
        return footnotes.entry(cell)
    mine, base = times[cell.variant], times.get(cell.baseline)
    rated = (
        base is not None and cell.variant != cell.baseline and is_plausible(base.median) and is_plausible(mine.median)
    )
    faster = f"{NBSP}{ratio(base.median / mine.median)}" if rated else ""
    host, launches = interval(cell, "host_us"), cell.metrics.launches
    second = [significant(host.median)] if host else []
    second += [f"·{NBSP}{launches}"] if launches is not None else []
    marks = "*" * best + "?" * (cell.key in disagreeing) + "!" * bool(cell.metrics.disturbed)
    marks += LIMITED * bool(cell.limits)
    return Entry(f"{significant(mine.median)}{faster}{marks}", NBSP.join(second), best, timed=True, rated=rated)


def _floor_entry(run: Run, row: Mapping[str, Cell]) -> Entry:
    known = next((cell for cell in row.values() if cell.metrics is not None), None)
    calibration = run.calibration_of(known) if known is not None else None
    if calibration is None:
        return Entry("", muted=True)
    return Entry(significant(floor_us(calibration, known.metrics.bytes_moved)), muted=True)


def _itl_tpot(header: Header, serving: ServingModel, operator: str, cells: Sequence[Cell]) -> list[Table]:
    """One table, or none where no variant has a time to compare with the baseline's."""
    variants, grid = _grid(header, cells)
    axes, labels, shared = point_columns(cells)
    baseline, footnotes, rows = cells[0].baseline, Footnotes(), []
    columnless = _without_times(variants, cells)
    variants = tuple(name for name in variants if name != baseline and name not in columnless)
    for point, row in grid.items():
        deltas = {
            name: one
            for name, cell in row.items()
            if baseline in row and (one := delta(serving, row[baseline], cell)) is not None
        }
        best = _fastest({name: deltas[name].itl_us for name in variants if name in deltas})
        entries = []
        for name in variants:
            if name not in deltas:
                entries.append(footnotes.entry(row.get(name)))
                continue
            one = deltas[name]
            itl, tpot = signed(one.itl_us.median), signed(one.tpot_us.median)
            percent = f"{one.percent.median:+.2f}{NBSP}%"
            mark = LIMITED if row[name].limits or row[baseline].limits else ""
            entries.append(Entry(f"{itl}{NBSP}{tpot}{mark}", percent, name == best, timed=True))
        rows.append((labels[point], tuple(entries)))
    if not any(entry.timed for _, entries in rows for entry in entries):
        return []
    title = f"{operator}, modelled: ITL and TPOT delta in µs against {baseline}; below: per cent of either"
    model = f"modelled, not measured: {described(serving)}"
    notes = (model, *_shared_note(shared), *limit_warnings(cells), *footnotes.notes())
    return [Table(title, axes, variants, tuple(rows), notes)]


def signed(value: float) -> str:
    return ("+" if value >= 0 else "−") + significant(abs(value))


def markdown(tables: Sequence[Table]) -> str:
    """The tables for a README or a pull request."""
    parts = []
    for table in tables:
        head = [as_text(axis.replace("_", " ")) for axis in table.axes] + [as_code(v) for v in table.variants]
        lines = [f"**{as_text(table.title)}**", ""]
        lines += ["| " + " | ".join(head) + " |", "|" + " ---: |" * len(head)] if table.rows else []
        for values, entries in table.rows:
            lines.append("| " + " | ".join([*map(as_text, values), *map(_markdown_entry, entries)]) + " |")
        parts.append(
            "\n".join([*lines, *([""] if table.rows else []), *(f"{as_text(note)}  " for note in table.notes)])
        )
    return "\n\n".join(parts) + "\n"


def _markdown_entry(entry: Entry) -> str:
    main = f"**{as_text(entry.main)}**" if entry.best else as_text(entry.main)
    return f"{main}<br>{as_text(entry.second)}" if entry.second else main
