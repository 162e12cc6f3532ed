"""Historic bugs of token_requests, kept as negative controls: verify must reject each of them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.token_requests.chains import numbers, search_chain
from spec_decode_bench.baselines.token_requests.operator import Inputs, Outputs
from spec_decode_bench.baselines.workloads.broken import on_changed
from spec_decode_bench.baselines.workloads.composition import in_sequence
from spec_decode_bench.harness.contract import Point, variant


@variant(
    "token_requests",
    defect="the CPU's boundaries are used instead of the device's (vLLM #52783, #56188)",
    waives=("no_sync", "graph_safe"),
)
def host_boundaries_trusted(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """Right while the host is up to date; adaptive verification moves the boundaries on the device alone."""
    return on_changed(search_chain, point, x, out, query_start_loc=lambda: x.query_start_loc_cpu)


@variant(
    "token_requests",
    defect="the map of the target's tokens is kept for the drafter's passes (TensorRT-LLM #16925, #17240)",
)
def map_of_the_target_kept(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    kept = Outputs(torch.empty_like(out.requests))
    search_chain(point, x, kept)()
    return in_sequence(lambda: out.requests[: x.num_tokens].copy_(kept.requests[: x.num_tokens]))


@variant("token_requests", defect="padding tokens keep the requests of a larger step (TensorRT-LLM #12657)")
def padding_tokens_stale(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    fresh, tokens = Outputs(torch.empty_like(out.requests)), numbers(point, out)[: x.num_tokens]
    made, held = fresh.requests[: x.num_tokens], out.requests[: x.num_tokens]
    real_tokens = lambda: held.copy_(torch.where(tokens < x.query_start_loc[-1], made, held))  # noqa: E731
    return in_sequence(search_chain(point, x, fresh), real_tokens)
