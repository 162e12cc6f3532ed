"""The times of several GPU models side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spec_decode_bench.harness.analysis.stats import median_us
from spec_decode_bench.harness.records.differences import check_together
from spec_decode_bench.harness.records.schema import Cell, RecordError, Run


@dataclass(frozen=True)
class GpuRow:
    """One variant at one point. cell: of the first GPU that has it. us: GPU -> its median."""

    cell: Cell
    us: dict[str, float]


@dataclass(frozen=True)
class AcrossGpus:
    """gpus: names, in the order of the records. cache: the state of all of them. rows: timed on one GPU at least."""

    metric: str
    cache: str
    gpus: tuple[str, ...]
    runs: tuple[Run, ...]
    rows: tuple[GpuRow, ...]

    def common(self, operator: str, variant: str) -> list[GpuRow]:
        """The rows of a variant that all GPUs have: only over the same points can means be compared."""
        rows = [row for row in self.rows if (row.cell.operator, row.cell.variant) == (operator, variant)]
        return [row for row in rows if len(row.us) == len(self.gpus)]


def across_gpus(runs: Sequence[Run], metric: str) -> AcrossGpus:
    """A cell of which one GPU has several records comes from the latest. Raises RecordError for records that must not
    stand in one table, and where there is nothing to show.
    """
    for run in runs:
        if run.header.environment.device != "cuda":
            raise RecordError(f"{run.path} is of a CPU; report compares GPUs")
        if run.cache != runs[0].cache:
            raise RecordError(
                f"{run.path} was measured with a {run.cache} cache, {runs[0].path} with a {runs[0].cache} one; report "
                "them one after the other"
            )
    check_together(runs)
    cells: dict[str, Cell] = {}
    us: dict[str, dict[str, float]] = {}
    for run in sorted(runs, key=lambda run: run.header.started):
        for cell in run.in_order:
            if (median := median_us(cell, metric)) is not None:
                cells.setdefault(cell.key, cell)
                us.setdefault(cell.key, {})[run.header.environment.gpu] = median
    if not cells:
        raise RecordError(f"no cell of these records has {metric}; choose another one with --metric")
    gpus = tuple(dict.fromkeys(run.header.environment.gpu for run in runs))
    rows = tuple(GpuRow(cell, us[key]) for key, cell in cells.items())
    return AcrossGpus(metric, runs[0].cache, gpus, tuple(runs), rows)
