"""Historic bugs of staged_writes, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from spec_decode_bench.baselines.staged_writes.chains import op_chain
from spec_decode_bench.baselines.staged_writes.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.broken import on_changed
from spec_decode_bench.harness.contract import Point, variant

_WRITES = ("group_ids", "indices", "write_starts", "cu_lens")


@variant("staged_writes", defect="the device sees host memory as it was before, not what was staged (vLLM #57415)")
def staging_of_setup(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """As under confidential computing, where the GPU reads no pinned memory in place."""
    place = point.memory.replace("uva", "host")
    kept = {f"{name}_{place}": getattr(x, name).clone() for name in _WRITES}
    return op_chain(point, replace(x, **kept), out)


@variant(
    "staged_writes",
    defect="rows are as wide as a context-parallel rank's share, and the last ids land in the next one (vLLM #50287)",
    skip=lambda p: "rows of one column cannot be narrower" if p.max_model_len <= p.block_size else None,
)
def rows_of_a_share(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return on_changed(op_chain, point, x, out, widths=lambda: (x.widths + 1) // 2)


@variant("staged_writes", defect="blocks of a running request replace its row from column 0 on (vLLM #46595)")
def appended_at_zero(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's connector took requests for resumed ones, whose blocks do replace a row."""
    name = f"write_starts_{point.memory.replace('uva', 'host')}"
    return op_chain(point, replace(x, **{name: torch.zeros_like(x.write_starts)}), out)
