"""token_requests: the request of every token of a ragged batch, for kernels that work token by token.

Sparse attention and its indexer find the block table of a token through it. For the B requests of a step, token t of
the T launched ones, and A = query_start_loc[B] real tokens:

    requests[t] = b                query_start_loc[b] <= t < query_start_loc[b + 1]
    requests[t] = 0                A <= t < T, padding tokens (padding_request: zero)
    requests[t] = B + t - A        the same, where tokens of one request are taken together (padding_request: own)

Requests without tokens own none, wherever they stand. Entries from T on keep their contents. The device's boundaries
count: under adaptive verification the host knows only a bound on the number of tokens (``host_lens: stale``).

vLLM 0.33: v1/attention/ops/metadata.py:compute_token_to_req_indices, once per metadata group and pass of the drafter;
its indexer on SM100 needs ``own`` (_indexer_decode_metadata_kernel).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from spec_decode_bench.baselines.token_requests.cases import CONTENTS, EDGE_CASES, SEQUENCES
from spec_decode_bench.baselines.workloads import axes
from spec_decode_bench.baselines.workloads import request_slots as slots
from spec_decode_bench.baselines.workloads.decode_batch import int32
from spec_decode_bench.harness.contract import Axis, Expected, Operator, Point, Rule
from spec_decode_bench.harness.tensors import I32, Tensors, field

PADDING_REQUEST = Axis(
    "padding_request", axes.choice("zero", "own"), "zero", "request of padding tokens: 0 (zero), or B + t - A (own)"
)
AXES = slots.bounded(
    axes.BATCH_SIZE,
    axes.NEXT_N,
    axes.MAX_DECODE_LEN,
    axes.DECODE_LEN,
    slots.PADDING,
    slots.PREFILLS,
    slots.PREFILL_LEN,
    axes.TOKEN_PADDING,
    axes.HOST_LENS,
    PADDING_REQUEST,
    axes.MAX_NUM_BATCHED_TOKENS,
    axes.contents(CONTENTS),
)


def num_tokens(point: Point) -> int:
    """T: the tokens that the host launches for, token padding included."""
    if point.host_lens == "exact":
        return slots.num_tokens(point) + point.token_padding
    decodes = slots.num_real(point) - point.prefills
    return decodes * point.max_decode_len + point.prefills * point.prefill_len + point.token_padding


class Inputs(Tensors):
    query_start_loc: I32["batch_size + 1"]  # non-decreasing; authoritative
    query_start_loc_cpu: I32["batch_size + 1"] = field(host=True)  # L per decode where host_lens = stale
    num_tokens: int  # T


class Outputs(Tensors):
    requests: I32["max_num_batched_tokens"] = field(read=num_tokens)


@axes.with_contents(CONTENTS)
def make_inputs(point: Point, seed: int) -> Inputs:
    """Decodes first, then prefill chunks, then requests of padding."""
    decodes = slots.num_real(point) - point.prefills
    query = np.zeros(point.batch_size, dtype=np.int64)
    query[:decodes] = np.random.default_rng(seed).permutation(slots.decode_lens(point))
    query[decodes : decodes + point.prefills] = point.prefill_len
    host = query.copy()
    if point.host_lens == "stale":
        host[:decodes] = point.max_decode_len
    device, cpu = (int32(np.append(0, lens.cumsum())) for lens in (query, host))
    return Inputs(device, cpu, num_tokens(point))


def reference(point: Point, x: Inputs) -> Mapping[str, Expected]:
    """Request by request, token by token."""
    start, value = x.query_start_loc.tolist(), [0] * point.max_num_batched_tokens
    for b in range(point.batch_size):
        for t in range(start[b], start[b + 1]):
            value[t] = b
    if point.padding_request == "own":
        for t in range(start[-1], x.num_tokens):
            value[t] = point.batch_size + t - start[-1]
    return {"requests": Expected(int32(value), untouched=torch.arange(len(value)) >= x.num_tokens)}


def bytes_moved(point: Point, x: Inputs) -> int:
    """Boundaries once, a number per token."""
    return 4 * (point.batch_size + 1 + x.num_tokens)


def varied(point: Point) -> Mapping[str, Any]:
    """Fewer tokens in some rows, where all decodes have as many here and the host does not count them."""
    return {"decode_len": "ragged"} if point.decode_len == "uniform" and point.host_lens == "stale" else {}


operator = Operator(
    name="token_requests",
    summary="the request of every token of a ragged batch, and of padding tokens",
    axes=AXES,
    inputs=Inputs,
    outputs=Outputs,
    make_inputs=make_inputs,
    reference=reference,
    bytes_moved=bytes_moved,
    edge_cases=EDGE_CASES,
    sequences=SEQUENCES,
    varied=varied,
    baseline="op_chain",
    rules=(
        axes.DECODE_LEN_FITS,
        slots.PREFILLS_FIT,
        Rule(
            "the step's tokens (batch_size {batch_size}, max_decode_len {max_decode_len}, prefills {prefills} x "
            "{prefill_len}, token_padding {token_padding}) must not exceed max_num_batched_tokens "
            "({max_num_batched_tokens})",
            lambda p: num_tokens(p) <= p.max_num_batched_tokens,
        ),
        Rule(
            "batch_size ({batch_size}) and max_num_batched_tokens ({max_num_batched_tokens}) must sum to less than "
            "2^31, as requests are int32",
            lambda p: p.batch_size + p.max_num_batched_tokens < 2**31,
        ),
    ),
    redundant=slots.redundant,
)
