"""Tables of a run from its records: rows are points, columns are variants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spec_decode_bench.harness.analysis.itl_tpot import ServingModel, delta, described, serving_model_of
from spec_decode_bench.harness.analysis.stats import (
    COPY_BOUND,
    METRICS,
    Interval,
    copy_bound_us,
    interval,
    is_plausible,
    is_timed,
)
from spec_decode_bench.harness.analysis.warnings import (
    KNOWN_FAILURES,
    abbreviated,
    audit_warnings,
    calibration_warnings,
    doubted_cells,
    known_failure_warnings,
    throttling_warnings,
)
from spec_decode_bench.harness.numbers import signed, significant
from spec_decode_bench.harness.records.schema import Cell, Header, Outcome, Proof, Run, axis_texts
from spec_decode_bench.harness.records.sentences import ending
from spec_decode_bench.harness.report.table import Entry, Table, variant_table

#: Keeps a time and its ratio on one line of a narrow column.
NBSP = "\u00a0"
#: The entry of what is not there.
NOTHING = Entry("")


@dataclass
class Footnotes:
    """A letter for each distinct reason of a cell without a time, so that its entry stays narrow."""

    letters: dict[str, str] = field(default_factory=dict)

    def entry(self, line: Outcome | None) -> Entry:
        """Its status, and the letter of its reason."""
        if line is None:
            return NOTHING
        if (text := ending(line)) is None:
            return Entry(line.status, style="muted")
        number = len(self.letters)
        letter = self.letters.setdefault(text, chr(ord("a") + number) if number < 26 else str(number))
        return Entry(f"{line.status} {letter}", style="muted")

    def notes(self) -> list[str]:
        """The reason behind each letter."""
        return [f"{letter}: {reason}" for reason, letter in self.letters.items()]


def ratio(value: float) -> str:
    """``2.3×``, ``24×``."""
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
        of_operator = [cell for cell in cells if cell.operator == operator]
        tables.append(_measured(run, operator, of_operator))
        if serving is not None and header.environment.device == "cuda":
            tables += _itl_tpot(header, serving, operator, of_operator)
    return tables


def _grid(header: Header, cells: Sequence[Cell]) -> tuple[list[str], dict[str, dict[str, Cell]]]:
    """(variants in the header's order, point label -> variant -> cell)."""
    grid: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        grid.setdefault(cell.point, {})[cell.variant] = cell
    present = dict.fromkeys(cell.variant_id for cell in cells)
    ordered = [name for name in header.variants if name in present] or list(present)
    return [name.partition("/")[2] for name in ordered], grid


def _without_times(variants: Sequence[str], cells: Sequence[Cell]) -> dict[str, str]:
    """Variants without any time that ended alike at several points -> how; they get a note instead of a column."""
    if len({cell.point for cell in cells}) == 1:
        return {}
    endings = {name: {(c.status, ending(c)) for c in cells if c.variant == name} for name in variants}
    timed = {cell.variant for cell in cells if _timed(cell)}
    return {
        name: ": ".join(part for part in next(iter(ending)) if part)
        for name, ending in endings.items()
        if name not in timed and len(ending) == 1
    }


def _timed(cell: Cell) -> bool:
    return any(is_timed(cell, metric) for metric in METRICS)


def proof_notes(proofs: Mapping[str, Proof], done: str = "verified") -> list[str]:
    """A sentence about what earlier runs verified, or audited. proofs: variant -> proof."""
    named = ", ".join(f"{name} ({proof.verified_at[:16]})" for name, proof in sorted(proofs.items()))
    return [f"{done} before: {named}"] if proofs else []


def _measured(run: Run, operator: str, cells: Sequence[Cell]) -> Table:
    """GPU times with host times and launches below, or CPU times."""
    gpu = run.header.environment.device == "cuda"
    metric = "gpu_us" if gpu else "cpu_us"
    variants, grid = _grid(run.header, cells)
    columnless = _without_times(variants, cells)
    variants = [name for name in variants if name not in columnless]
    axes, labels, shared = point_columns(cells)
    footnotes, doubted = Footnotes(), doubted_cells(run, cells)
    bound = gpu and any(is_timed(cell, metric) for cell in cells)

    rows = []
    times = {point: _times(row, metric) for point, row in grid.items()}
    for point, row in grid.items() if variants else ():
        of_row, fastest = times[point], _fastest(times[point])
        entries = [_time_entry(row.get(name), of_row, name == fastest, footnotes, doubted) for name in variants]
        entries += [copy_bound_entry(run, row.values())] if bound else []
        rows.append((labels[point], entries))

    below = any(entry.below for _, entries in rows for entry in entries)
    title, legend = _title_and_legend(run, metric, cells[0].baseline, list(times.values()), below)
    notes = [*_shared_note(shared if rows else ""), *legend, *_missing_baseline(run, cells)]
    notes += [f"{name}, all {len(grid)} points: {ending}" for name, ending in columnless.items()]
    notes += proof_notes({cell.variant: cell.proof for cell in cells if cell.proof})
    notes += proof_notes({cell.variant: cell.audit for cell in cells if cell.audit}, "audited")
    notes += calibration_warnings(run)
    marked = [f"{key.partition('/')[2]} {text}" for key, text in doubted.items()]
    notes += [f"? {text}" for text in abbreviated(marked, more="more cells that none confirms")]
    notes += [*throttling_warnings(cells), *audit_warnings(cells), *known_failure_warnings(cells), *footnotes.notes()]
    columns = (*variants, "copy bound") if bound else tuple(variants)
    return variant_table(f"{operator}: {title}", axes, columns, rows, notes, kind="measured")


def _times(row: Mapping[str, Cell], metric: str) -> dict[str, Interval]:
    """Variant -> its time, of those that have one."""
    return {name: time for name, cell in row.items() if (time := interval(cell, metric)) is not None}


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


def _title_and_legend(
    run: Run, metric: str, baseline: str, times: Sequence[Mapping[str, Interval]], below: bool
) -> tuple[str, list[str]]:
    """What the entries hold, and a note on how to read them. Neither mentions what no entry has.

    times: of each row. below: whether an entry has a second line.
    """
    any_rated = any(_rated(name, baseline, of_row) for of_row in times for name in of_row)
    rated = f" (times faster than {baseline})" if any_rated else ""
    second = "; below: host µs · launches" if below else ""
    if not any(times):
        return f"no {'GPU' if metric == 'gpu_us' else 'CPU'} time{second}", []
    legend = ["* fastest of its row."] if any(_fastest(of_row) for of_row in times) else []
    if metric == "gpu_us":
        cache = "" if run.cache == "hot" else f", {run.cache} cache"
        legend += [f"{COPY_BOUND}."] if run.calibrations else []
        return f"GPU µs{cache}{rated}{second}", [" ".join(legend)]
    legend.append(f"Times of PyTorch variants, one thread, on {run.header.environment.processor}")
    return f"CPU wall time in µs, not a GPU time{rated}", [" ".join(legend)]


def _shared_note(shared: str) -> list[str]:
    return [f"unless a row says otherwise: {shared}"] if shared else []


def _rated(name: str, baseline: str, times: Mapping[str, Interval]) -> bool:
    """Whether a variant's time has a ratio to the baseline's."""
    both = name != baseline and baseline in times
    return both and all(is_plausible(times[variant].median) for variant in (name, baseline))


def _time_entry(
    cell: Cell | None, times: Mapping[str, Interval], best: bool, footnotes: Footnotes, doubted: Mapping[str, str]
) -> Entry:
    if cell is None or cell.variant not in times:
        return footnotes.entry(cell)
    time, faster = times[cell.variant], ""
    if _rated(cell.variant, cell.baseline, times):
        faster = f"{NBSP}{ratio(times[cell.baseline].median / time.median)}"
    text = f"{significant(time.median)}{faster}{marks(cell, best, doubted)}"
    return Entry(text, host_and_launches(cell), "best" if best else "")


def marks(cell: Cell, best: bool, doubted: Container[str]) -> str:
    """Behind a GPU time: fastest, doubted, throttled, with known failures. doubted: keys of cells."""
    known = KNOWN_FAILURES * bool(cell.known_failures)
    return "*" * best + "?" * (cell.key in doubted) + "!" * bool(cell.metrics.disturbed) + known


def host_and_launches(cell: Cell) -> str:
    """``8.99 · 1``."""
    host, launches = interval(cell, "host_us"), cell.metrics.launches
    second = [significant(host.median)] if host else []
    second += [f"·{NBSP}{launches}"] if launches is not None else []
    return NBSP.join(second)


def copy_bound_entry(run: Run, cells: Iterable[Cell]) -> Entry:
    """Of the cells of a point: as many bytes, copied."""
    known = next((cell for cell in cells if cell.metrics is not None), None)
    calibration = run.calibration_of(known) if known is not None else None
    if calibration is None:
        return NOTHING
    return Entry(significant(copy_bound_us(calibration, known.metrics.bytes_moved)), style="muted")


def _itl_tpot(header: Header, serving: ServingModel, operator: str, cells: Sequence[Cell]) -> list[Table]:
    """One table, or none where no variant has a time to compare with the baseline's."""
    variants, grid = _grid(header, cells)
    axes, labels, shared = point_columns(cells)
    baseline, footnotes, rows, timed = cells[0].baseline, Footnotes(), [], False
    columnless = _without_times(variants, cells)
    variants = tuple(name for name in variants if name != baseline and name not in columnless)
    for point, row in grid.items():
        deltas = {
            name: change
            for name, cell in row.items()
            if baseline in row and (change := delta(serving, row[baseline], cell)) is not None
        }
        best = _fastest({name: deltas[name].itl_us for name in variants if name in deltas})
        entries = []
        for name in variants:
            if name not in deltas:
                entries.append(footnotes.entry(row.get(name)))
                continue
            change = deltas[name]
            itl, tpot = signed(change.itl_us.median), signed(change.tpot_us.median)
            percent = f"{signed(change.percent.median, '.2f')}{NBSP}%"
            mark = KNOWN_FAILURES if row[name].known_failures or row[baseline].known_failures else ""
            timed = True
            entries.append(Entry(f"{itl}{NBSP}{tpot}{mark}", percent, "best" if name == best else ""))
        rows.append((labels[point], entries))
    if not timed:
        return []
    title = f"{operator}, modelled: ITL and TPOT delta in µs against {baseline}; below: per cent of either"
    model = f"modelled, not measured: {described(serving)}"
    notes = (model, *_shared_note(shared), *known_failure_warnings(cells), *footnotes.notes())
    return [variant_table(title, axes, variants, rows, notes, kind="modelled")]
