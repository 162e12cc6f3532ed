"""token_requests of vLLM 0.33: its kernel, in which tokens search for their request, and the function around it."""

from __future__ import annotations

from collections.abc import Callable

from spec_decode_bench.baselines.token_requests.operator import Inputs, Outputs, num_tokens
from spec_decode_bench.baselines.workloads.integers import cdiv
from spec_decode_bench.harness.contract import Point, variant
from spec_decode_bench.upstream._vllm import Definitions

CODE = Definitions(
    "v1/attention/ops/metadata.py", "_token_request", "_token_request_mapping_kernel", "compute_token_to_req_indices"
)
#: Tokens of a program, as vLLM launches it.
TOKENS = 256


def _skip(point: Point) -> str | None:
    if point.padding_request == "own":
        return "vLLM maps padding tokens to 0 here; decode_flatten/vllm_varlen gives them requests of their own"
    if point.host_lens == "stale":
        return "vLLM's host knows the number of tokens"
    return None if num_tokens(point) else "vLLM makes no map of a step without tokens"


@variant("token_requests", requires=CODE.need, skip=_skip)
def vllm(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's kernel: every token searches for its request."""
    kernel, grid, mapped = CODE()._token_request_mapping_kernel, (cdiv(x.num_tokens, TOKENS),), x.query_start_loc_cpu

    def launch() -> None:
        kernel[grid](x.query_start_loc, out.requests, point.batch_size, int(mapped[-1]), x.num_tokens, num_warps=4)

    return launch


@variant("token_requests", requires=CODE.need, skip=_skip)
def vllm_call(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """vLLM's compute_token_to_req_indices, as CommonAttentionMetadata.token_to_req_indices calls it."""
    call, mapped = CODE().compute_token_to_req_indices, x.query_start_loc_cpu

    def launch() -> None:
        call(x.query_start_loc, out.requests, int(mapped[-1]), x.num_tokens)

    return launch
