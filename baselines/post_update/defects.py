"""Historic bugs of post_update, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from spec_decode_bench.baselines.post_update.chains import on_device, op_chain
from spec_decode_bench.baselines.post_update.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.broken import on_changed, wrapped
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.baselines.workloads.request_slots import rows_of_slots
from spec_decode_bench.harness.contract import Point, variant


def _corrected(
    point: Point, x: Inputs, out: Outputs, target: torch.Tensor, wrong: Callable[[], torch.Tensor]
) -> Callable[[], None]:
    """The chain, then ``wrong()`` by row into a tensor by slot."""

    def correct() -> None:
        row, live = rows_of_slots(x.idx_mapping, len(target))
        target.copy_(torch.where(live, wrong()[row], target))

    return in_sequence(op_chain(point, x, out), correct)


@variant("post_update", defect="drafts are counted twice for penalties (vLLM #33251)", skip=on_device)
def penalties_twice(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    chain = op_chain(point, x, out)
    if x.output_bin_counts is None:
        return chain
    return in_sequence(chain, op_chain(point, replace(x, output_bin_counts=out.output_bin_counts), out))


@variant("post_update", defect="progress counts rejected drafts (as the host believes, vLLM #30029)", skip=on_device)
def progress_as_scheduled(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    def optimistic() -> torch.Tensor:
        query = torch.diff(x.query_start_loc[: len(x.idx_mapping) + 1])
        return x.num_computed_tokens[x.idx_mapping.clamp(min=0)] + query

    return _corrected(point, x, out, out.num_computed_tokens, optimistic)


@variant(
    "post_update",
    defect="a chunk leaves an accepted count of 0, or that of the slot's former owner (vLLM #48132)",
    skip=on_device,
)
def accepted_below_one(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return _corrected(point, x, out, out.num_accepted_tokens, lambda: out.num_sampled[: len(x.idx_mapping)])


@variant("post_update", defect="the last chunk of a prompt does not sample (comparison off by one)", skip=on_device)
def last_chunk_dropped(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return on_changed(op_chain, point, x, out, prompt_lens_device=lambda: x.prompt_lens + 1)


@variant("post_update", defect="a filtered row is written to the last slot: -1 wraps around", skip=on_device)
def filtered_rows_written(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return on_changed(op_chain, point, x, out, idx_mapping=lambda: wrapped(point, x.idx_mapping))


@variant(
    "post_update",
    defect="a chunk's sampled token counts: last token and history of the middle of a prompt",
    skip=on_device,
)
def chunks_sampled(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    return op_chain(point, replace(x, prompt_lens_device=torch.zeros_like(x.prompt_lens)), out)
