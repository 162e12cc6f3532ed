"""Historic bugs of block_draft_inputs, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from spec_decode_bench.baselines.block_draft_inputs.chains import in_host_memory, op_chain
from spec_decode_bench.baselines.block_draft_inputs.operator import Inputs, Outputs, query_tokens
from spec_decode_bench.baselines.workloads.broken import keeping, on_changed
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.harness.contract import Point, variant


@variant(
    "block_draft_inputs",
    defect="the block starts one position early, on the last kept token (ik_llama.cpp #2296)",
    skip=in_host_memory,
)
def block_one_early(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    drafted = point.batch_size * query_tokens(point)
    return in_sequence(op_chain(point, x, out), lambda: out.positions[:drafted].sub_(1))


@variant(
    "block_draft_inputs",
    defect="the anchor is a mask like the others, not the newest token (hipfire #483)",
    skip=in_host_memory,
)
def anchor_masked(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    drafted = point.batch_size * query_tokens(point)
    return in_sequence(op_chain(point, x, out), lambda: out.input_ids[:drafted].fill_(x.mask_token_id))


@variant(
    "block_draft_inputs",
    defect="a drafter that samples from its anchor is sampled from the masks behind it (SGLang #40203)",
    skip=lambda p: in_host_memory(p) or (None if p.sample_from_anchor == "yes" else "masks alone are sampled"),
)
def anchor_not_sampled(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return in_sequence(op_chain(point, x, out), lambda: out.sample_indices[: point.batch_size].add_(1))


@variant(
    "block_draft_inputs",
    defect="context below a window is written to the null block (vllm-ascend #16745)",
    skip=in_host_memory,
)
def null_block_written(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """The null block's slots are as good as any other's: here those of block 1."""
    return on_changed(op_chain, point, x, out, block_tables=lambda: torch.where(x.block_tables == 0, 1, x.block_tables))


@variant(
    "block_draft_inputs",
    defect="the slots of rejected tokens are written (like vLLM #30029)",
    skip=in_host_memory,
)
def rejected_tokens_written(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Only the context has them, as in runner V1: the block starts behind the kept tokens."""
    kept = torch.zeros_like(x.num_rejected)
    context = replace(out, **{name: torch.empty_like(one) for name, one in _query(out).items()})
    return in_sequence(op_chain(point, x, out), op_chain(point, replace(x, num_rejected=kept), context))


@variant(
    "block_draft_inputs",
    defect="a chunk continues with the slot's last token, of its former owner (vLLM #39833)",
    skip=in_host_memory,
)
def chunk_gets_last_token(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return op_chain(point, replace(x, num_sampled=torch.ones_like(x.num_sampled)), out)


@variant(
    "block_draft_inputs",
    defect="positions past the model's range are not gated (vLLM #57941)",
    skip=in_host_memory,
)
def positions_not_gated(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    chain, query = op_chain(point, x, out), query_tokens(point)
    ahead = torch.arange(query, device=out.positions.device)
    target = out.positions[: point.batch_size * query].view(-1, query)
    return in_sequence(chain, lambda: target.copy_(out.sample_pos[: point.batch_size, :1] - 1 + ahead))


@variant(
    "block_draft_inputs",
    defect="rows behind the batch sample into a live request (vLLM #47066)",
    skip=in_host_memory,
)
def idle_rows_sampled(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return keeping(op_chain(point, x, out), out.sample_idx_mapping[point.batch_size :])


@variant(
    "block_draft_inputs",
    defect="slots behind the batch are those of a larger step (vLLM #36580)",
    skip=in_host_memory,
)
def tail_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return keeping(op_chain(point, x, out), out.slot_mappings[:, point.batch_size * query_tokens(point) :])


@variant(
    "block_draft_inputs",
    defect="drafts are sampled without the request's temperature (z-lab/dflash #74)",
    skip=in_host_memory,
)
def temperature_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return keeping(op_chain(point, x, out), out.temperature)


def _query(out: Outputs) -> dict[str, torch.Tensor]:
    return {name: one for name, one in vars(out).items() if not name.startswith("context")}
