"""The records that a command shows."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from spec_decode_bench.harness.analysis.warnings import unknown_line_warnings
from spec_decode_bench.harness.config.load import ConfigError
from spec_decode_bench.harness.numbers import counted
from spec_decode_bench.harness.records.schema import Run
from spec_decode_bench.harness.records.select import chosen, read_side
from spec_decode_bench.harness.report.console import warn


def chosen_runs(paths: Sequence[str], only: Sequence[str] = ()) -> list[Run]:
    """Records with the cells that ``only`` keeps; warns of those that lack planned ones. Raises ConfigError and
    RecordError.
    """
    runs = [run for path in paths for run in read_side(path)]
    for run in runs:
        if lost := len(run.missing):
            planned = counted(len(run.header.cells), "planned cell")
            warn(f"{run.path} lacks {lost} of {planned}; complete it with --resume {shlex.quote(run.path)}")
        elif run.truncated:
            warn(f"{run.path}: its last line is incomplete and was left out; every planned cell is there")
        for sentence in unknown_line_warnings(run):
            warn(sentence)
    runs = [chosen(run, only) for run in runs]
    if only and not any(run.cells for run in runs):
        raise ConfigError(f"--only {' '.join(only)} matches no cell of these records")
    return runs
