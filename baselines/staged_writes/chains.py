"""staged_writes from PyTorch operators, and compiled."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.staged_writes.operator import Inputs, Outputs, operator
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled
from spec_decode_bench.harness.contract import COMPILER, Point, variant


def skip(point: Point) -> str | None:
    return "PyTorch cannot read pinned memory from the device" if point.memory == "uva" else None


def write(x: Inputs, tables: torch.Tensor, numbers: torch.Tensor) -> None:
    """numbers: 0, 1, 2 ... one for each id."""
    w = torch.searchsorted(x.cu_lens, numbers, right=True)
    first = torch.cat([x.cu_lens.new_zeros(1), x.cu_lens[:-1]])
    group_ids = x.group_ids.long()
    row = x.starts[group_ids] + x.indices * x.widths[group_ids] + x.write_starts - first
    tables.index_copy_(0, row[w] + numbers, x.contents)


def set_up(point: Point, x: Inputs, out: Outputs, write: Callable[..., None] = write) -> Callable[[], None]:
    numbers = torch.arange(len(x.contents), dtype=torch.int32, device=x.contents.device)
    return lambda: write(x, out.tables, numbers)


@variant("staged_writes", skip=skip, waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """A search for the write of every id, the place of each by index arithmetic, and a copy by index."""
    return set_up(point, x, out)


_STEP = {"batch_size": BUSY_BATCH, "num_groups": 3, "group_blocks": "mixed", "prefills": 2, "max_num_seqs": 270}
_EXAMPLES = (_STEP, {"batch_size": BUSY_BATCH}, {"batch_size": 1})


@variant("staged_writes", requires=COMPILER, skip=skip, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the operator chain."""
    return set_up(point, x, out, compiled(write, set_up, operator, _EXAMPLES, out.tables.device))
