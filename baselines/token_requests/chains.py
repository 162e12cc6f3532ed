"""token_requests from PyTorch operators, and compiled."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spec_decode_bench.baselines.token_requests.operator import Inputs, Outputs, num_tokens, operator
from spec_decode_bench.baselines.workloads.torch_compile import BUSY_BATCH, compiled, row_of
from spec_decode_bench.harness.contract import COMPILER, Point, variant


def needs_exact_host_lens(point: Point) -> str | None:
    """Skip reason of a chain that sizes its tensors on the host."""
    return None if point.host_lens == "exact" else "reads the number of tokens from the CPU copy, which is stale here"


def numbers(point: Point, out: Outputs) -> torch.Tensor:
    """0, 1, 2 ... int32, for all tokens of the buffer and all requests."""
    count = max(len(out.requests), point.batch_size)
    return torch.arange(count, dtype=torch.int32, device=out.requests.device)


@variant("token_requests", skip=needs_exact_host_lens, waives="no_alloc")
def op_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """A difference, a repeat_interleave and a copy, and a fill or an addition where there are padding tokens."""
    counted, rows, own = numbers(point, out), point.batch_size, point.padding_request == "own"

    def launch() -> None:
        actual = int(x.query_start_loc_cpu[-1])
        repeated = torch.repeat_interleave(counted[:rows], torch.diff(x.query_start_loc), output_size=actual)
        out.requests[:actual].copy_(repeated)
        padding = out.requests[actual : x.num_tokens]
        if own:
            torch.add(counted[: len(padding)], rows, out=padding)
        else:
            padding.zero_()

    return launch


def needs_tokens(point: Point) -> str | None:
    """Skip reason of a chain that launches nothing for tensors without elements."""
    return None if num_tokens(point) else "launches nothing for no token"


def search(x: Inputs, out: Outputs, tokens: torch.Tensor, own: bool) -> None:
    """Behind the last boundary the search finds B. tokens: 0 .. T - 1."""
    rows = row_of(x.query_start_loc, tokens)
    past = tokens - x.query_start_loc[-1]
    out.requests[: x.num_tokens].copy_(rows + past.clamp(min=0) if own else rows * (past < 0))


def set_up(point: Point, x: Inputs, out: Outputs, search: Callable = search) -> Callable[[], None]:
    tokens, own = numbers(point, out)[: x.num_tokens], point.padding_request == "own"
    return lambda: search(x, out, tokens, own)


@variant("token_requests", skip=needs_tokens, waives="no_alloc")
def search_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """TensorRT-LLM's searchsorted over the device's boundaries (#16925), three launches for padding tokens, a copy."""
    return set_up(point, x, out)


_STEP = {"batch_size": BUSY_BATCH, "decode_len": "ragged", "token_padding": 5}
_EXAMPLES = (_STEP, _STEP | {"padding_request": "own"}, {"batch_size": 1}, {"batch_size": 1, "next_n": 1})


@variant("token_requests", requires=COMPILER, skip=needs_tokens, waives="no_alloc")
def compiled_chain(point: Point, x: Inputs, out: Outputs) -> Callable[[], None]:
    """torch.compile (Inductor, dynamic shapes) of the search chain."""
    return set_up(point, x, out, compiled(search, set_up, operator, _EXAMPLES, out.requests.device))
