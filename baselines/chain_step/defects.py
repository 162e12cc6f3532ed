"""Historic bugs of chain_step, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from spec_decode_bench.baselines.chain_step.chains import op_chain
from spec_decode_bench.baselines.chain_step.operator import Inputs, Outputs, num_rows, passes, with_kv_indices
from spec_decode_bench.baselines.workloads.broken import keeping
from spec_decode_bench.harness.contract import Point, variant


def _no_padding(point: Point) -> str | None:
    return None if point.padding else "no rows of padding"


@variant(
    "chain_step",
    defect="positions of padding rows stay those of a larger batch in the drafter's graph (SGLang #10892)",
    skip=_no_padding,
)
def padding_positions_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return keeping(op_chain(point, x, out), out.draft_positions[num_rows(point) : point.batch_size])


@variant(
    "chain_step",
    defect="the sum of the lengths leaves padding rows out, and their packed slots are cut off (SGLang #26880)",
    skip=lambda p: _no_padding(p) or (None if with_kv_indices(p) else "no packed slots"),
)
def padding_rows_cut_off(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    whole = replace(out, kv_indices=torch.empty_like(out.kv_indices))
    chain, entries = op_chain(point, x, whole), torch.arange(out.kv_indices.shape[1], device=out.kv_indices.device)

    def launch() -> None:
        chain()
        for i in range(passes(point)):
            summed = (x.seq_lens[: num_rows(point)] + (i + 1)).sum()
            out.kv_indices[i].copy_(torch.where(entries < summed, whole.kv_indices[i], out.kv_indices[i]))

    return launch


@variant("chain_step", defect="lengths of the graph's capture are kept in its replay (SGLang #26655)")
def lengths_of_setup(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return op_chain(point, replace(x, seq_lens=x.seq_lens.clone()), out)


@variant("chain_step", defect="the batch row is used where the request's slot is needed (vllm-ascend #13477)")
def row_for_slot(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    rows = torch.arange(len(x.req_pool_indices), device=x.req_pool_indices.device)
    return op_chain(point, replace(x, req_pool_indices=rows), out)
