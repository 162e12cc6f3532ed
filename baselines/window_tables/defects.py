"""Historic bugs of window_tables, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from spec_decode_bench.baselines.window_tables.chains import op_chain
from spec_decode_bench.baselines.window_tables.operator import Inputs, Outputs, list_capacity, list_width
from spec_decode_bench.baselines.workloads.broken import keeping, on_changed
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.harness.contract import Point, variant


@variant(
    "window_tables",
    defect="lists lie as far apart as the step's are wide, not as in the captured kernel (vLLM #52448, #51318)",
    skip=lambda p: "all columns are filled" if list_width(p) == list_capacity(p) else None,
)
def lists_packed(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    made = replace(out, c128_indices=torch.empty_like(out.c128_indices))
    lists = made.c128_indices[: x.num_tokens, : list_width(point)]
    packed = out.c128_indices.view(-1)[: lists.numel()].view_as(lists)
    return in_sequence(op_chain(point, x, made), lambda: packed.copy_(lists))


@variant("window_tables", defect="a padding token has length -1, which the next kernel compares unsigned (vLLM #51593)")
def padding_negative(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """There of the indexer, which hung."""
    lens, valid = out.swa_lens[: x.num_tokens], out.is_valid_token[: x.num_tokens]
    return in_sequence(op_chain(point, x, out), lambda: lens.sub_((~valid).int()))


@variant("window_tables", defect="lengths behind the step stay those of a larger batch (vllm-ascend #16546)")
def tail_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return keeping(op_chain(point, x, out), out.swa_lens[x.num_tokens :])


@variant(
    "window_tables",
    defect="the CPU's boundaries are used instead of the device's (vLLM #52783, #56188)",
    waives=("no_sync", "graph_safe"),
)
def host_boundaries_trusted(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return on_changed(op_chain, point, x, out, query_start_loc=lambda: x.query_start_loc_cpu)
