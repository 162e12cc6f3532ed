"""Tables of a record from an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from rich.console import Console

from spec_decode_bench.engine_plugin.analysis import FEWEST, STEADY, all_compared, palindromes
from spec_decode_bench.engine_plugin.configuration import KEY
from spec_decode_bench.engine_plugin.records import EngineBlock, blocks_of
from spec_decode_bench.harness.analysis.stats import Interval
from spec_decode_bench.harness.numbers import counted, signed, significant
from spec_decode_bench.harness.records.schema import Run
from spec_decode_bench.harness.report.console import print_counts, print_endings, print_tables
from spec_decode_bench.harness.report.table import Column, Entry, Table, number_column, text_rows


def engine_tables(run: Run) -> list[Table]:
    """ITL and TPOT by batch size and arm; what was compared; what was captured. Those that the record has lines of."""
    blocks = blocks_of(run)
    every = run.header.config[KEY]["every"]
    tables = [_arms(blocks), _checks(blocks), _captured(blocks, every)]
    return [table for table in tables if table is not None]


def show_blocks(console: Console, run: Run) -> list[Table]:
    """Print what a record holds; its tables."""
    blocks, tables = blocks_of(run), engine_tables(run)
    print_tables(console, tables)
    print_counts(console, blocks, "block")
    print_endings(console, ((block.variant, block) for block in blocks if block.finding), "block")
    return tables


def interval_text(interval: Interval) -> str:
    """``−119 [−206; −77]``."""
    return f"{signed(interval.median, '.0f')} [{signed(interval.low, '.0f')}; {signed(interval.high, '.0f')}]"


def _arms(blocks: Sequence[EngineBlock]) -> Table | None:
    measured = [block for block in blocks if block.mode == "measure" and block.itl_us]
    if not measured:
        return None
    arms = all_compared(blocks)
    notes = [
        "host, launches: of the functions that the suite replaces",
        "medians; 95 % intervals by a bootstrap over palindromes",
        f"left out: palindromes with a prefill in them, or whose host changed its speed by more than {STEADY - 1:.0%}; "
        "of all: the change of ITL without leaving any out",
    ]
    for batch in sorted({block.batch for block in measured} - {arm.batch for arm in arms}):
        found = palindromes([block for block in measured if block.batch == batch])
        steady = sum(one.is_steady for one in found)
        notes.append(
            f"batch size {batch}: {steady} of {counted(len(found), 'palindrome')} are steady; {FEWEST} are needed"
        )
    prefills = [us for block in blocks for us in block.prefill_us]
    if prefills:
        median = significant(float(np.median(prefills)) / 1000)
        notes.append(f"beside them {counted(len(prefills), 'step')} with a prefill, of {median} ms by the median")
    rows = text_rows(
        (
            str(arm.batch),
            arm.name,
            f"{arm.itl.median / 1000:.2f}",
            interval_text(arm.change) if arm.change else "",
            interval_text(arm.unfiltered) if arm.unfiltered else "",
            f"{arm.tpot.median / 1000:.2f}",
            interval_text(arm.tpot_change) if arm.tpot_change else "",
            significant(sum(arm.host_us.values())),
            str(sum(arm.launches.values())) if arm.launches else "",
            f"{arm.kept} of {arm.of}",
        )
        for arm in arms
    )
    heads = ("ITL, ms", "change, µs", "of all, µs", "TPOT, ms", "change, µs", "host, µs", "launches", "palindromes")
    columns = (number_column("batch size"), Column("arm", code=True), *map(number_column, heads))
    return Table("ITL and TPOT of the engine by batch size and arm", columns, rows, tuple(notes), 2, "arms")


def _checks(blocks: Sequence[EngineBlock]) -> Table | None:
    checked, uncovered = Counter(), Counter()
    for block in blocks:
        checked.update(block.checked)
        uncovered.update(block.uncovered)
    if not checked:
        return None
    different = Counter(block.finding.variant.partition("/")[0] for block in blocks if block.finding)
    rows = tuple(
        (
            Entry(name, style="code"),
            Entry(str(checked[name])),
            Entry(str(different[name]), style="slower" if different[name] else ""),
            Entry(str(uncovered[name])),
        )
        for name in dict.fromkeys([*checked, *uncovered])
    )
    heads = ("comparisons", "different", "steps not covered")
    columns = (Column("operator"), *map(number_column, heads))
    return Table("Results beside the engine's own", columns, rows, kind="checks")


def _captured(blocks: Sequence[EngineBlock], every: int) -> Table | None:
    captured = [block for block in blocks if block.captured_us]
    if not captured:
        return None
    rows = []
    for batch in sorted({block.batch for block in captured}):
        here = [us for block in captured if block.batch == batch for us in block.captured_us]
        others = [us for block in blocks if block.batch == batch for us in block.itl_us]
        if others:
            step, other = float(np.median(here)), float(np.median(others))
            spread = signed((step - other) / every)
            rows.append((str(batch), str(len(here)), f"{other / 1000:.2f}", f"{step / 1000:.2f}", spread))
    heads = ("batch size", "captured", "a step, ms", "a captured one, ms", f"every {every}th, µs per step")
    note = f"{max(block.captured_bytes for block in captured):,} bytes in all; medians"
    return Table("Captured steps", tuple(map(number_column, heads)), text_rows(rows), (note,), kind="captured")
