"""The exit code of a run, by what its record has."""

from __future__ import annotations

from spec_decode_bench.harness.exit_codes import BAD, OK
from spec_decode_bench.harness.records.schema import Run, sources_compile


def exit_code(run: Run) -> int:
    """1 where a CUDA source does not compile, or a cell or a stack is a mismatch or failed."""
    fine = sources_compile(run.header.compiled) and not any(line.status.is_bad for line in (*run.cells, *run.loops))
    return OK if fine else BAD
