"""Tables of a run from its records: rows are points, columns are variants. Console and markdown render the same ones.

Never imports torch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.analysis.itl_tpot import ServingModel, delta, described, serving_model_of
from harness.analysis.stats import FIGURES, MAX_PLAUSIBLE_US, Interval, floor_us, interval, is_plausible, is_timed
from harness.analysis.warnings import (
    abbreviated,
    audit_warnings,
    calibration_warnings,
    disagreeing_cells,
    throttling_warnings,
)
from harness.records.schema import Cell, Header, Run, axis_texts
from harness.wording import significant

#: Keeps a time and its ratio on one line of a narrow column.
NBSP = "\u00a0"


@dataclass(frozen=True)
class Box:
    """One entry: a main line, a lesser second line, whether it is the best of its row or says why it is empty, whether
    it holds a time and a ratio to the baseline's.
    """

    main: str
    second: str = ""
    best: bool = False
    muted: bool = False
    timed: bool = False
    rated: bool = False


@dataclass(frozen=True)
class Table:
    """axes and variants head the columns; ``notes`` stand below, first what all rows share, then reasons by letter."""

    title: str
    axes: tuple[str, ...]
    variants: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], tuple[Box, ...]], ...]
    notes: tuple[str, ...]


@dataclass
class Reasons:
    """Gives each distinct reason a letter, so that a box stays narrow."""

    letters: dict[str, str] = field(default_factory=dict)

    def box(self, cell: Cell | None) -> Box:
        if cell is None:
            return Box("", muted=True)
        if cell.reason is None:
            return Box(cell.status, muted=True)
        number = len(self.letters)
        letter = self.letters.setdefault(cell.reason, chr(ord("a") + number) if number < 26 else str(number))
        return Box(f"{cell.status} {letter}", muted=True)

    def notes(self) -> list[str]:
        return [f"{letter}: {reason}" for reason, letter in self.letters.items()]


def ratio(value: float) -> str:
    return f"{value:.1f}×" if value < 10 else f"{value:.0f}×"


def point_columns(points: Sequence[Cell]) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]], str]:
    """(column heads, point label -> texts for them, what holds in all rows unless a row says otherwise, as one line).

    The first axis that varies has a column; another column names the axes in which a row differs from most rows.
    """
    texts: dict[str, dict[str, str]] = {}
    for cell in points:
        texts[cell.point] = axis_texts(cell.point, cell.axes)
    axes = list(next(iter(texts.values()))) if texts else []
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
    """Per operator: what was measured, then (with an ``itl_tpot:`` section and GPU times) what it is worth, modelled."""
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
    """Variants that have the same fate and no time at every point -> that fate: a note instead of a column."""
    fates = {name: {(c.status, c.reason) for c in cells if c.variant == name and not _timed(c)} for name in variants}
    timed = {c.variant for c in cells if _timed(c)}
    return {
        name: ": ".join(part for part in next(iter(found)) if part)
        for name, found in fates.items()
        if name not in timed and len(found) == 1 and len({c.point for c in cells}) > 1
    }


def _timed(cell: Cell) -> bool:
    return any(is_timed(cell, figure) for figure in FIGURES)


def _measured(run: Run, operator: str, cells: Sequence[Cell]) -> Table:
    header = run.header
    gpu = header.environment.device == "cuda"
    figure = "gpu_us" if gpu else "cpu_us"
    variants, grid = _grid(header, cells)
    silent = _without_times(variants, cells)
    variants = [name for name in variants if name not in silent]
    axes, labels, shared = point_columns(cells)
    reasons, rows = Reasons(), []
    disagreeing = disagreeing_cells(run, cells)
    floor = gpu and any(is_timed(cell, figure) for cell in cells)
    for point, row in grid.items() if variants else ():
        times = {name: found for name, cell in row.items() if (found := interval(cell, figure)) is not None}
        fastest = _fastest(times)
        boxes = [_time_box(row.get(name), times, name == fastest, reasons, disagreeing) for name in variants]
        boxes += [_floor_box(run, row)] if floor else []
        rows.append((labels[point], tuple(boxes)))
    columns = (*variants, "floor") if floor else tuple(variants)
    what, timer = _told(run, figure, cells[0].baseline, [box for _, boxes in rows for box in boxes], floor)
    notes = [*_shared_note(shared if rows else ""), *timer]
    notes += [f"{name}, all {len(grid)} points: {fate}" for name, fate in silent.items()]
    notes += calibration_warnings(run)
    marked = [f"{key.partition('/')[2]} {text}" for key, text in disagreeing.items()]
    notes += [f"? {text}" for text in abbreviated(marked, more="more cells on which they disagree")]
    notes += [*throttling_warnings(cells), *audit_warnings(cells)]
    return Table(f"{operator}: {what}", axes, columns, tuple(rows), (*notes, *reasons.notes()))


def _fastest(times: Mapping[str, Interval]) -> str | None:
    """None where there is nothing to be faster than."""
    return min(times, key=lambda name: times[name].median) if len(times) > 1 else None


def _told(run: Run, figure: str, baseline: str, boxes: Sequence[Box], floor: bool) -> tuple[str, list[str]]:
    """(what the boxes hold, what explains them): nothing of times, ratios and stars that no box has."""
    notes = ["* fastest of its row."] if any(box.best for box in boxes) else []
    rated = f" (times faster than {baseline})" if any(box.rated for box in boxes) else ""
    below = "; below: host µs · launches" if any(box.second for box in boxes) else ""
    if not any(box.timed for box in boxes):
        return f"no {'GPU' if figure == 'gpu_us' else 'CPU'} time{below}", []
    if figure == "gpu_us":
        cache = "" if run.cache == "hot" else f", {run.cache} cache"
        notes += ["floor: one-block copy of this run + bytes moved over its copy bandwidth, µs"] if floor else []
        return f"GPU µs{cache}{rated}{below}", [" ".join(notes)]
    notes.append(f"Times of PyTorch variants, one thread, on {run.header.environment.processor}")
    return f"CPU wall time in µs, not a GPU time{rated}", [" ".join(notes)]


def _shared_note(shared: str) -> list[str]:
    return [f"unless a row says otherwise: {shared}"] if shared else []


def _time_box(
    cell: Cell | None, times: Mapping[str, Interval], best: bool, reasons: Reasons, disagreeing: Mapping[str, str]
) -> Box:
    if cell is None or cell.variant not in times:
        return reasons.box(cell)
    mine, base = times[cell.variant], times.get(cell.baseline)
    rated = (
        base is not None and cell.variant != cell.baseline and is_plausible(base.median) and is_plausible(mine.median)
    )
    faster = f"{NBSP}{ratio(base.median / mine.median)}" if rated else ""
    host, launches = interval(cell, "host_us"), cell.metrics.launches
    second = [significant(host.median)] if host else []
    second += [f"·{NBSP}{launches}"] if launches is not None else []
    marks = f"{'*' if best else ''}{'?' if cell.key in disagreeing else ''}{'!' if cell.metrics.disturbed else ''}"
    shown = significant(mine.median) if abs(mine.median) <= MAX_PLAUSIBLE_US else f"{mine.median:.0e}"
    return Box(f"{shown}{faster}{marks}", NBSP.join(second), best, timed=True, rated=rated)


def _floor_box(run: Run, row: Mapping[str, Cell]) -> Box:
    known = next((cell for cell in row.values() if cell.metrics is not None), None)
    calibration = run.calibration_of(known) if known is not None else None
    if calibration is None:
        return Box("", muted=True)
    return Box(significant(floor_us(calibration, known.metrics.bytes_moved)), muted=True)


def _itl_tpot(header: Header, serving: ServingModel, operator: str, cells: Sequence[Cell]) -> list[Table]:
    """One table, or none where no variant has a figure to be set against the baseline's."""
    variants, grid = _grid(header, cells)
    axes, labels, shared = point_columns(cells)
    baseline, reasons, rows = cells[0].baseline, Reasons(), []
    silent = _without_times(variants, cells)
    variants = tuple(name for name in variants if name != baseline and name not in silent)
    for point, row in grid.items():
        found = {
            name: d
            for name, cell in row.items()
            if baseline in row and (d := delta(serving, row[baseline], cell)) is not None
        }
        best = _fastest({name: found[name].itl_us for name in variants if name in found})
        boxes = []
        for name in variants:
            if name in found:
                d = found[name]
                itl, tpot = signed(d.itl_us.median), signed(d.tpot_us.median)
                boxes.append(Box(f"{itl}{NBSP}{tpot}", f"{d.percent.median:+.2f}{NBSP}%", name == best, timed=True))
            else:
                boxes.append(reasons.box(row.get(name)))
        rows.append((labels[point], tuple(boxes)))
    title = f"{operator}, modelled: ITL and TPOT delta in µs against {baseline}; below: per cent of either"
    model = f"modelled, not measured: {described(serving)}"
    if not any(box.timed for _, boxes in rows for box in boxes):
        return []
    return [Table(title, axes, variants, tuple(rows), (model, *_shared_note(shared), *reasons.notes()))]


def signed(value: float) -> str:
    return ("+" if value >= 0 else "−") + significant(abs(value))


def markdown(tables: Sequence[Table]) -> str:
    """The tables for a README or a pull request."""
    parts = []
    for table in tables:
        head = [axis.replace("_", " ") for axis in table.axes] + [f"`{v}`" for v in table.variants]
        lines = [f"**{as_text(table.title)}**", ""]
        lines += ["| " + " | ".join(head) + " |", "|" + " ---: |" * len(head)] if table.rows else []
        for values, boxes in table.rows:
            shown = [f"**{as_text(b.main)}**" if b.best else as_text(b.main) for b in boxes]
            shown = [
                f"{text}<br>{as_text(b.second)}" if b.second else text for text, b in zip(shown, boxes, strict=True)
            ]
            lines.append("| " + " | ".join([*map(as_text, values), *shown]) + " |")
        parts.append(
            "\n".join([*lines, *([""] if table.rows else []), *(f"{as_text(note)}  " for note in table.notes)])
        )
    return "\n\n".join(parts) + "\n"


def as_text(value: str) -> str:
    """A value on one line of Markdown, nothing of it read as markup; a star would begin a list, or end a bold text
    early.
    """
    return re.sub(r"([\\|*<`])", r"\\\1", value.replace("\n", " "))
