"""Historic bugs of gather_block_tables, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.gather_block_tables.chains import op_chain, set_up
from spec_decode_bench.baselines.gather_block_tables.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.broken import on_changed, rows_for_slots
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.baselines.workloads.request_slots import group_tables, num_real
from spec_decode_bench.harness.contract import Point, variant


@variant("gather_block_tables", defect="rows of an earlier, larger batch keep its blocks (vLLM #49757)")
def dirty_rows_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return set_up(point, x, out, rows=point.batch_size)


@variant("gather_block_tables", defect="padding rows keep the blocks of finished requests (vLLM #37728)")
def padding_rows_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return set_up(point, x, out, rows=num_real(point))


@variant("gather_block_tables", defect="blocks below a sliding window stay in the table (vLLM #42273)")
def evicted_blocks_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return set_up(point, x, out, windows=[0] * point.num_groups)


@variant(
    "gather_block_tables",
    defect="the window is taken from the optimistic count, before rejected tokens are given back (vLLM #47728)",
)
def window_of_optimistic_count(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return on_changed(op_chain, point, x, out, num_computed_tokens=lambda: x.num_computed_tokens + point.max_decode_len)


@variant("gather_block_tables", defect="the batch row is used where the request's slot is needed (vllm-ascend #13477)")
def row_for_slot(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return op_chain(point, rows_for_slots(x), out)


@variant(
    "gather_block_tables",
    defect="entries below the window are hidden in the shared source (like vLLM 0.19's clamped table)",
)
def source_masked_in_place(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return in_sequence(op_chain(point, x, out), lambda: x.tables.clamp_(max=1 << 24))


@variant(
    "gather_block_tables",
    defect="turns of 64 blocks are counted in 4,096 tokens: of smaller blocks some are left out (SGLang #11985)",
)
def turns_counted_in_tokens(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    chain, rows = op_chain(point, x, out), group_tables(point, out.block_tables)[0][: num_real(point)]
    if point.entries == "block":
        return chain
    before, column = torch.empty_like(rows), torch.arange(rows.shape[1], device=rows.device)

    def launch() -> None:
        before.copy_(rows)
        chain()
        tokens = x.num_blocks[0][x.idx_mapping] * point.block_size
        rows.copy_(torch.where(column // 64 < ((tokens + 4095) // 4096)[:, None], rows, before))

    return launch
