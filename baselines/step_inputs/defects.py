"""Historic bugs of step_inputs, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from spec_decode_bench.baselines.step_inputs.chains import on_device, op_chain, set_up
from spec_decode_bench.baselines.step_inputs.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.broken import keeping, rows_for_slots
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.harness.contract import Point, variant


@variant(
    "step_inputs",
    defect="drafts inside the prompt are recognized by their placeholder, not by position (vLLM #54137)",
    skip=on_device,
)
def drafted_by_value(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    sampled, token = out.draft_sampled[: x.num_logits], out.logits_indices[: x.num_logits]
    return in_sequence(op_chain(point, x, out), lambda: sampled.copy_(out.input_ids[token]))


@variant("step_inputs", defect="rows past the batch keep the lengths of a larger step (xllm #1939)", skip=on_device)
def stale_tail(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return keeping(op_chain(point, x, out), out.seq_lens[len(x.idx_mapping) :])


@variant(
    "step_inputs", defect="boundaries of the host, stale under adaptive verification (vLLM #52795)", skip=on_device
)
def boundaries_of_setup(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    stale = {name: getattr(x, name).clone() for name in ("query_start_loc", "cu_num_logits")}
    return set_up(point, replace(x, **stale), out)


@variant("step_inputs", defect="drafts and the last token are written over prompt tokens (vLLM #45237)", skip=on_device)
def prompt_overwritten(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return set_up(point, replace(x, prompt_lens_device=torch.zeros_like(x.prompt_lens)), out)


@variant(
    "step_inputs",
    defect="the batch row is used where the request's slot is needed (vllm-ascend #13477)",
    skip=on_device,
)
def row_for_slot(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return op_chain(point, rows_for_slots(x), out)
