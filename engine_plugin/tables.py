"""Tables of a record from an engine."""

from __future__ import annotations

from rich.console import Console

from spec_decode_bench.engine_plugin.records import blocks_of
from spec_decode_bench.harness.records.schema import Run
from spec_decode_bench.harness.report.console import print_counts, print_endings
from spec_decode_bench.harness.report.table import Table


def show_blocks(console: Console, run: Run) -> list[Table]:
    """Print what a record holds; its tables."""
    blocks = blocks_of(run)
    print_counts(console, blocks, "block")
    print_endings(console, ((block.variant, block) for block in blocks if block.finding), "block")
    return []
