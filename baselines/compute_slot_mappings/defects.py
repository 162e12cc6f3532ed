"""Historic bugs of compute_slot_mappings, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from spec_decode_bench.baselines.compute_slot_mappings.chains import op_chain
from spec_decode_bench.baselines.compute_slot_mappings.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.broken import keeping, on_changed, rows_for_slots, wrapped
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Point, variant


@variant("compute_slot_mappings", defect="entries past the real tokens keep the slots of an earlier step (vLLM #36580)")
def tail_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The tail starts at the padded count, here the next multiple of 8."""
    return keeping(op_chain(point, x, out), out.slot_mappings[:, x.num_tokens : 8 * cdiv(x.num_tokens, 8)])


@variant("compute_slot_mappings", defect="rows without a request write through a stale table row (vLLM #56734)")
def dummy_rows_mapped(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Slot -1 wraps around to the last row of the table."""
    return on_changed(op_chain, point, x, out, idx_mapping=lambda: wrapped(point, x.idx_mapping))


@variant(
    "compute_slot_mappings",
    defect="context parallelism splits replicated groups too (vLLM #57260)",
    skip=lambda p: "one rank" if p.cp_size == 1 else None,
)
def every_group_sharded(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return op_chain(point, replace(x, sharded=torch.ones_like(x.sharded)), out)


@variant(
    "compute_slot_mappings", defect="a group without generic mapping is mapped through its narrow table (vLLM #57317)"
)
def disabled_group_mapped(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return op_chain(point, replace(x, enabled=torch.ones_like(x.enabled)), out)


@variant(
    "compute_slot_mappings", defect="the batch row is used where the request's slot is needed (vllm-ascend #13477)"
)
def row_for_slot(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return op_chain(point, rows_for_slots(x), out)


@variant(
    "compute_slot_mappings", defect="the owner of a token is kept from an earlier step's boundaries (like vLLM #52795)"
)
def boundaries_of_setup(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    stale = replace(x, query_start_loc=x.query_start_loc.clone(), idx_mapping=x.idx_mapping.clone())
    return op_chain(point, stale, out)
