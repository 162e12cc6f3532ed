"""Historic bugs of draft_inputs, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from spec_decode_bench.baselines.draft_inputs.chains import op_chain
from spec_decode_bench.baselines.draft_inputs.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.broken import keeping
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.harness.contract import Point, variant


def _only(*passes: str) -> Callable[[Point], str | None]:
    return lambda p: None if p.draft_pass in passes else f"not in {p.draft_pass} passes"


@variant(
    "draft_inputs",
    defect="last_token_indices is not padded: a replayed graph gathers out of range (vLLM #39773)",
    skip=_only("first"),
)
def last_index_not_padded(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return keeping(op_chain(point, x, out), out.last_token_indices[len(x.seq_lens) :])


@variant(
    "draft_inputs", defect="rejected tokens stay in the drafter's row (like vLLM #30029)", skip=_only("first", "second")
)
def rejected_tokens_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return op_chain(point, replace(x, num_rejected=torch.zeros_like(x.num_rejected)), out)


@variant(
    "draft_inputs",
    defect="a chunk continues with the slot's last token, of its former owner (vLLM #39833)",
    skip=_only("first"),
)
def chunk_gets_last_token(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return op_chain(point, replace(x, num_sampled=torch.ones_like(x.num_sampled)), out)


@variant(
    "draft_inputs",
    defect="the noise of draft sampling repeats from pass to pass (vLLM #54282)",
    skip=_only("second", "later"),
)
def sampling_key_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return in_sequence(op_chain(point, x, out), lambda: out.sample_src_positions[: len(x.seq_lens)].sub_(1))


@variant(
    "draft_inputs", defect="positions past the model's range are not gated (vLLM #57941)", skip=_only("second", "later")
)
def positions_not_gated(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return op_chain(Point({**point, "max_model_len": 2**31 - 1}), x, out)


@variant("draft_inputs", defect="hidden rows are not handed to the next pass (vllm-ascend #10512)", skip=_only("later"))
def hidden_rows_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return keeping(op_chain(point, x, out), out.hidden_states)


@variant(
    "draft_inputs",
    defect="the step index is kept from capture (vllm-ascend #10512, TRT-LLM #16219)",
    skip=_only("later"),
)
def step_of_setup(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return op_chain(point, replace(x, current_draft_step=torch.ones_like(x.current_draft_step)), out)
