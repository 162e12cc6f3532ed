"""gather_block_tables from PyTorch operators, and compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from spec_decode_bench.baselines.gather_block_tables.operator import (
    Inputs,
    Outputs,
    naming_entries,
    operator,
    reaches,
    rows_to_write,
)
from spec_decode_bench.baselines.workloads.request_slots import group_block_sizes, group_tables
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled
from spec_decode_bench.harness.contract import COMPILER, Point, variant


def fill(
    x: Inputs,
    sources: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
    columns: torch.Tensor,
    sizes: Sequence[int],
    windows: Sequence[int],
    rows: int,
    by_token: bool,
) -> None:
    """columns: [widest table] int32. rows: filled or cleared in each target. by_token: entries are slots of tokens."""
    real = len(x.idx_mapping)
    computed = x.num_computed_tokens[x.idx_mapping] if any(windows) else None
    for source, target, size, window in zip(sources, targets, sizes, windows, strict=True):
        gathered = source.index_select(0, x.idx_mapping)
        if by_token:
            gathered = gathered // size
        if window:
            null = (computed - window).clamp(min=0) // size
            gathered = gathered.masked_fill_(columns[: source.shape[1]] < null[:, None], 0)
        target[:real].copy_(gathered)
        if rows > real:
            target[real:rows].zero_()


def set_up(
    point: Point,
    x: Inputs,
    out: Outputs,
    fill: Callable[..., None] = fill,
    rows: int | None = None,
    windows: Sequence[int] | None = None,
) -> Callable[[], None]:
    """Default rows and windows: those of the point."""
    sources, targets = naming_entries(point, x.tables), group_tables(point, out.block_tables)
    columns = torch.arange(max(table.shape[1] for table in sources), dtype=torch.int32, device=out.block_tables.device)
    sizes, count = group_block_sizes(point), rows_to_write(point) if rows is None else rows
    reach = reaches(point) if windows is None else windows
    by_token = point.entries == "token"
    return lambda: fill(x, sources, targets, columns, sizes, reach, count, by_token)


@variant("gather_block_tables", waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Per group: whole rows selected and copied, stale rows cleared; with a window five more to mask, with entries of
    tokens one more to divide.
    """
    return set_up(point, x, out)


_STEP = {"batch_size": BUSY_BATCH, "max_model_len": 100_000, "max_num_seqs": 270}
_EXAMPLES = (
    _STEP,
    _STEP | {"padding": 0.2},
    _STEP | {"window": 700, "num_groups": 4, "group_blocks": "mixed"},
    {"batch_size": 1},
    _STEP | {"entries": "token"},
)


@variant("gather_block_tables", requires=COMPILER, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the operator chain."""
    return set_up(point, x, out, compiled(fill, set_up, operator, _EXAMPLES, out.block_tables.device))
